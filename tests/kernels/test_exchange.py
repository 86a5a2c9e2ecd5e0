"""Kernels by which ranks exchange rows and parts of sums: exact on the simulator, whatever the order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pytest
from auxiliary_kernels import assert_nothing_moves_before_the_wait, compiled

from tests.mutations.broken import without
from tests.simulator.test_ranks import paths_of
from tilewright.device.catalog import device
from tilewright.dtypes import BF16, F16, F32, I32, Array, DType
from tilewright.errors import SimulationError
from tilewright.ir.async_stmt import SignalFlag, WaitFlag
from tilewright.ir.kernel import SHARD_STARTS, Kernel
from tilewright.ir.stmt import Barrier
from tilewright.kernels.exchange import BLOCKS, ExchangeConfig, flags_of
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


def exchanges(rows: Sequence[int], columns: int, dtype: DType, summed: bool) -> list[Exchange]:
    return [Exchange(tuple(rows), rank, columns, dtype, summed) for rank in range(len(rows))]


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


def received_rows(one: Exchange) -> int:
    """Rows of the memory that each rank receives into."""
    return (len(one.rows) - 1) * max(one.rows) if one.summed else sum(one.rows)


def run_of(
    problems: Sequence[Exchange],
    kernel: Kernel | None = None,
    order: Order = "lockstep",
    sources: Sequence[Array] = (),
    before: int = 0,
    late: tuple[int, int] | None = None,
) -> RanksRun:
    """before: exchanges through the memory. late: the rank and the block that has not told rank 0 of the last one."""
    ranks, nan = [], problems[0].dtype.encode(np.array([np.nan]))[0]
    for one, source in zip(problems, sources or sources_of(problems), strict=True):
        tables = {
            SHARD_STARTS: np.array(one.starts, np.int32),
            "received": np.full(max(received_rows(one), 1) * one.columns, nan),
            "flags": np.full(flags_of(len(one.rows)), before, np.int32),
        }
        if late is not None and one.rank == 0:
            tables["flags"][late[0] * BLOCKS + late[1]] -= 1
        ranks.append(Rank(Stored(one, source), {}, tables))
    return simulate_ranks(kernel or kernel_of(problems[0]), ranks, ("received", "flags"), schedule=order)


def expected(problems: Sequence[Exchange]) -> list[Array]:
    dtype, sources = (
        problems[0].dtype,
        [one.dtype.decode(s) for one, s in zip(problems, sources_of(problems), strict=True)],
    )
    if not problems[0].summed:
        return [dtype.encode(np.concatenate(sources))] * len(problems)
    total = np.sum(sources, 0)
    starts, columns = problems[0].starts, problems[0].columns
    return [dtype.encode(total[starts[i] * columns : starts[i + 1] * columns]) for i in range(len(problems))]


@pytest.mark.parametrize("order", ["lockstep", "warps", "moments"])
@pytest.mark.parametrize("summed", [False, True])
@pytest.mark.parametrize(("rows", "columns"), [((3, 2), 24), ((0, 5), 7), ((2, 1, 3), 8), ((300, 9), 128)], ids=str)
def test_exact_in_every_order(rows: tuple[int, ...], columns: int, summed: bool, order: Order) -> None:
    problems = exchanges(rows, columns, BF16, summed)
    run = run_of(problems, order=order)
    for one, memory, right in zip(problems, run.memory, expected(problems), strict=True):
        found = memory["result"] if summed else memory["received"][: len(right)]
        np.testing.assert_array_equal(found, right)
        assert one.results and not (memory["flags"] > 1).any()


@pytest.mark.parametrize("dtype", [F32, F16], ids=str)
def test_of_every_format(dtype: DType) -> None:
    problems = exchanges((5, 4), 12, dtype, True)
    for memory, right in zip(run_of(problems).memory, expected(problems), strict=True):
        np.testing.assert_array_equal(memory["result"], right)


def test_a_sum_is_rounded_once_in_the_order_of_the_ranks() -> None:
    """bf16 has 8 bits: 256 + 1 + 1 is 256 if each step is rounded, and 258 if the last one is."""
    problems, values = exchanges((1, 0, 0), 8, BF16, True), (256.0, 1.0, 1.0)
    sources = [BF16.encode(np.full(8, value)) for value in values]
    (found, _, _) = run_of(problems, sources=sources).memory
    assert (BF16.decode(found["result"]) == 258).all()


def broken(kernel: Kernel, kind: type, number: int) -> Kernel:
    return without(kernel, paths_of(kernel, kind)[number])


SUMMED = exchanges((70, 70), 64, BF16, True)


def test_a_missing_wait_is_found() -> None:
    with pytest.raises(SimulationError, match=r"Race on peer_received\[\d+\]"):
        run_of(SUMMED, broken(kernel_of(SUMMED[0]), WaitFlag, 1))


@pytest.mark.parametrize("number", [1, 2], ids=["before the flag is set", "behind the wait"])
def test_a_missing_barrier_is_found(number: int) -> None:
    with pytest.raises(SimulationError, match=r"Race on peer_received\[\d+\]"):
        run_of(SUMMED, broken(kernel_of(SUMMED[0]), Barrier, number), "warps")


@pytest.mark.parametrize("summed", [False, True])
def test_a_flag_that_nobody_sets_is_found(summed: bool) -> None:
    problems = exchanges((70, 70), 64, BF16, summed)
    with pytest.raises(SimulationError, match="Deadlock"):
        run_of(problems, broken(kernel_of(problems[0]), SignalFlag, 0))


@pytest.mark.parametrize("summed", [False, True])
@pytest.mark.parametrize("before", [1, 2**31 - 1])
def test_exchanges_are_counted(before: int, summed: bool) -> None:
    """Flags say how many there were, also where the number wraps around; the next exchange waits for as many."""
    problems = exchanges((3, 2), 8, BF16, summed)
    run = run_of(problems, before=before)
    behind = np.array(before + 1).astype(np.int32)
    for memory in run.memory:
        flags, counters = np.split(memory["flags"], [4 * BLOCKS])
        assert (counters == behind).all()
        assert ((flags == behind) | (flags == before)).all() and (flags == behind).sum() == 2 * BLOCKS


def test_a_peer_that_still_reads_is_waited_for() -> None:
    """One block of a peer has not told that it has read the sums before: nobody writes."""
    problems = exchanges((3, 2), 8, BF16, True)
    with pytest.raises(SimulationError, match="Deadlock"):
        run_of(problems, before=5, late=(1, BLOCKS - 1))


def test_what_the_kernel_is_not_made_for_is_said() -> None:
    many = replace(SUMMED[0], rows=(1,) * 600, columns=7)
    told = ExchangeConfig(8).reasons_against(many, device("A100"))
    assert [text.split()[0] for text in told] == ["rows", "a", "A100"]


@pytest.mark.parametrize("summed", [False, True])
def test_compiled_without_spills(summed: bool) -> None:
    problem = exchanges((3, 2), 64, BF16, summed)[0]
    assert_nothing_moves_before_the_wait(kernel_of(problem), has_tables=True)
    assert compiled(kernel_of(problem), "sm_90a").resources.spill_store_bytes == 0
    assert compiled(kernel_of(problem, overlapped=False), "sm_80").resources.spill_store_bytes == 0
