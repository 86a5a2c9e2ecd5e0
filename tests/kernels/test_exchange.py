"""Kernels by which ranks exchange rows and parts of sums: exact on the simulator, whatever the order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest

from tests.mutations.broken import without
from tests.simulator.test_ranks import paths_of
from tilewright.device.catalog import device
from tilewright.dtypes import BF16, F16, F32, I32, Array, DType
from tilewright.errors import SimulationError
from tilewright.ir.async_stmt import SignalFlag, WaitFlag
from tilewright.ir.kernel import SHARD_STARTS, Kernel
from tilewright.ir.stmt import Barrier
from tilewright.kernels.exchange import ExchangeConfig, blocks_for, flags_of
from tilewright.problem.exchange import Exchange
from tilewright.simulator import Rank, RanksRun, simulate_ranks

Order = Literal["lockstep", "warps", "moments"]


@dataclass(frozen=True)
class Stored:
    """An exchange with what lies on its rank."""

    problem: Exchange
    source: Array

    def storage(self, name: str) -> Array:
        if name == "source":
            return self.source
        dtype = I32 if name in (SHARD_STARTS, "peer_flags") else self.problem.dtype
        return dtype.encode(np.full(self.problem.storage_elements(name), 0 if dtype is I32 else np.nan, np.float64))


def exchanges(rows: Sequence[int], columns: int, dtype: DType, summed: bool, blocks: int) -> list[Exchange]:
    return [Exchange(tuple(rows), rank, columns, dtype, blocks, summed) for rank in range(len(rows))]


def sources_of(problems: Sequence[Exchange]) -> list[Array]:
    """Values that are added without rounding, but for the last ones."""
    random = np.random.default_rng(1)
    return [
        one.dtype.encode(random.integers(-31, 32, one.storage_elements("source")).astype(np.float64))
        for one in problems
    ]


def kernel_of(problem: Exchange, **options: bool) -> Kernel:
    config = ExchangeConfig.of(problem, **options)
    assert config.reasons_against(problem, device("H200")) == ()
    return config.kernel(problem)


def run_of(problems: Sequence[Exchange], kernel: Kernel | None = None, order: Order = "lockstep") -> RanksRun:
    ranks, nan = [], problems[0].dtype.encode(np.array([np.nan]))[0]
    for one, source in zip(problems, sources_of(problems), strict=True):
        tables = {
            SHARD_STARTS: np.array(one.starts, np.int32),
            "received": np.full(max(one.received_rows, 1) * one.columns, nan),
            "flags": np.zeros(flags_of(len(one.rows)), np.int32),
        }
        ranks.append(Rank(Stored(one, source), {}, tables))
    return simulate_ranks(kernel or kernel_of(problems[0]), ranks, ("received", "flags"), schedule=order)


def expected(problems: Sequence[Exchange]) -> list[Array]:
    dtype, sources = problems[0].dtype, [one.dtype.decode(s) for one, s in zip(problems, sources_of(problems))]
    if not problems[0].summed:
        return [dtype.encode(np.concatenate(sources))] * len(problems)
    total = np.sum(sources, 0)
    starts, columns = problems[0].starts, problems[0].columns
    return [dtype.encode(total[starts[i] * columns : starts[i + 1] * columns]) for i in range(len(problems))]


@pytest.mark.parametrize("order", ["lockstep", "warps", "moments"])
@pytest.mark.parametrize("summed", [False, True])
@pytest.mark.parametrize(("rows", "columns"), [((3, 2), 24), ((0, 5), 7), ((2, 1, 3), 8), ((300, 9), 128)], ids=str)
def test_exact_in_every_order(rows: tuple[int, ...], columns: int, summed: bool, order: Order) -> None:
    problems = exchanges(rows, columns, BF16, summed, 2)
    run = run_of(problems, order=order)
    for one, memory, right in zip(problems, run.memory, expected(problems), strict=True):
        found = memory["result"] if summed else memory["received"][: len(right)]
        np.testing.assert_array_equal(found, right)
        assert one.results and not memory["flags"].any()
