"""Sums over ranks in the kernels: tiles leave for the ranks that keep them, which add them up, whatever the order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, Literal

import numpy as np
import pytest

from tests.lowering.test_ordered_sums import KINDS, schedule_at
from tests.mutations.broken import edited, without
from tests.simulator.test_ranks import KINDS as OTHER_KINDS
from tests.simulator.test_ranks import paths_of
from tilewright.dtypes import BF16, Array
from tilewright.errors import LoweringError, SimulationError
from tilewright.ir.async_stmt import Scope, SignalFlag, WaitFlag
from tilewright.ir.expr import ONE, ZERO, Const
from tilewright.ir.kernel import (
    MOST_ROWS,
    OWN_RANK,
    OWN_ROW,
    RANK_FLAGS,
    RANK_SUMS,
    SHARD_STARTS,
    SHARDS,
    Kernel,
)
from tilewright.ir.work import Problems, SplitK
from tilewright.kernels.wgmma_presets import one_tile
from tilewright.problem import Gemm, Operands, make_operands
from tilewright.problem.reference import view
from tilewright.simulator import Rank, RanksRun, simulate_ranks
from tilewright.toolchain import Build, build

EXCHANGED = (RANK_SUMS, RANK_FLAGS)


def built(gemm: Gemm, name: str = "cooperative") -> Build:
    config = KINDS.get(name) or OTHER_KINDS[name]
    return replace(build(gemm, schedule_at(gemm, config)), split_k=SplitK.RANKS)


def ranks_of(kernel: Kernel, gemm: Gemm, rows: Sequence[int]) -> tuple[list[Operands], list[Rank]]:
    """A part of k for each rank, and nothing received yet."""
    starts = [0, *accumulate(rows)]
    tiles = -(-max(rows) // kernel.tile["m"]) * (-(-gemm.n // kernel.cluster_tile["n"]) + 1)
    elements = len(rows) * tiles * kernel.tile["m"] * kernel.tile["n"]
    poison = BF16.encode(np.array([np.nan], np.float32))[0]
    operands = [make_operands(gemm, seed=rank + 1) for rank in range(len(rows))]
    found = []
    for rank, one in enumerate(operands):
        tables = {
            SHARD_STARTS: np.array(starts, np.int32),
            RANK_SUMS: np.full(elements, poison),
            RANK_FLAGS: np.zeros(len(rows) * tiles * 4, np.int32),
        }
        numbers = {SHARDS: len(rows), OWN_ROW: starts[rank + 1] % gemm.m, OWN_RANK: rank, MOST_ROWS: max(rows)}
        found.append(Rank(one, {name.name: value for name, value in numbers.items()}, tables))
    return operands, found


def run_of(kernel: Kernel, ranks: Sequence[Rank], **options: Any) -> RanksRun:
    return simulate_ranks(kernel, ranks, EXCHANGED, **options)


def own_rows(gemm: Gemm, run: RanksRun, rows: Sequence[int]) -> list[Array]:
    starts = [0, *accumulate(rows)]
    decoded = [gemm.out.decode(view(gemm, "C", memory["C"])) for memory in run.memory]
    return [one[starts[rank] : starts[rank + 1]] for rank, one in enumerate(decoded)]


@pytest.mark.parametrize(
    ("name", "rows", "blocks"),
    [
        ("cooperative", (128, 72), 3),
        pytest.param("ping-pong", (128, 128), 1, marks=pytest.mark.slow),
        pytest.param("cluster", (64, 0, 100), 2, marks=pytest.mark.slow),
        ("from registers", (0, 136), 9),
        ("swap-AB", (32, 21), 3),
    ],
)
def test_each_rank_has_the_sum_of_its_rows(name: str, rows: tuple[int, ...], blocks: int) -> None:
    """The same bits in every order, and flags that are 0 again."""
    gemm = Gemm(sum(rows), 136, 72, BF16, out=BF16)
    kernel = built(gemm, name).kernel
    operands, ranks = ranks_of(kernel, gemm, rows)
    exact = sum(one.matrix("A").astype(float) @ one.matrix("B").astype(float) for one in operands)
    bound = sum(abs(one.matrix("A").astype(float)) @ abs(one.matrix("B").astype(float)) for one in operands)
    orders: tuple[Literal["lockstep", "moments"], ...] = ("lockstep", "moments")
    runs = [run_of(kernel, ranks, schedule=order, resident_blocks=blocks) for order in orders]
    starts = [0, *accumulate(rows)]
    for rank, (one, other) in enumerate(zip(*(own_rows(gemm, run, rows) for run in runs), strict=True)):
        np.testing.assert_array_equal(one, other)
        here = slice(starts[rank], starts[rank + 1])
        assert (abs(one - exact[here]) <= 2.0**-7 * bound[here]).all()
    assert not any(memory[RANK_FLAGS].any() for run in runs for memory in run.memory)


SMALL = Gemm(256, 128, 64, BF16, out=BF16)
ROWS = (128, 128)


def small(change: Any = None) -> tuple[Kernel, list[Rank]]:
    kernel = built(SMALL).kernel
    _, ranks = ranks_of(kernel, SMALL, ROWS)
    return (kernel if change is None else change(kernel)), ranks


def flag_paths(kernel: Kernel, value: Any) -> list[Any]:
    return paths_of(kernel, SignalFlag, value=value)


def test_a_missing_wait_is_found() -> None:
    kernel, ranks = small(lambda one: without(one, paths_of(one, WaitFlag)[0]))
    with pytest.raises(SimulationError, match=r"Race on peer_rank_sums\[\d+\]"):
        run_of(kernel, ranks)


def test_a_flag_that_is_never_set_is_a_deadlock() -> None:
    kernel, ranks = small(lambda one: without(one, flag_paths(one, ONE)[0]))
    with pytest.raises(SimulationError, match="Deadlock"):
        run_of(kernel, ranks)


@pytest.mark.parametrize("kind", [SignalFlag, WaitFlag])
def test_a_flag_of_one_gpu_is_found(kind: type) -> None:
    def narrowed(one: Kernel) -> Kernel:
        value = {"value": ONE} if kind is SignalFlag else {}
        (path,) = paths_of(one, kind, **value)
        return edited(one, path, lambda stmt: (replace(stmt, scope=Scope.GPU),))  # type: ignore[type-var]

    kernel, ranks = small(narrowed)
    with pytest.raises(SimulationError, match="set by another GPU, and orders threads of one GPU only"):
        run_of(kernel, ranks)


def told_of_flag(number: int) -> str:
    """What is said where threads wait for another flag than their own."""

    def elsewhere(one: Kernel) -> Kernel:
        (path,) = paths_of(one, WaitFlag)
        moved = lambda stmt: (replace(stmt, place=replace(stmt.place, index=(stmt.place.index[0], Const(number)))),)  # noqa: E731
        return edited(one, path, moved)  # type: ignore[type-var]

    kernel, ranks = small(elsewhere)
    return " ".join(finding.headline for finding in run_of(kernel, ranks, on_finding="collect").findings)


def test_flags_are_numbered_from_0_to_the_last() -> None:
    """Each rank has as many, those of rank 1 behind those of rank 0."""
    (count,) = re.findall(r"Flag 999999 of (\d+) does not exist", told_of_flag(999999))
    each = int(count) // len(ROWS)
    assert f"Flag -1 of {count} does not exist" in told_of_flag(-1)
    assert f"Flag {count} of {count} does not exist" in told_of_flag(each)
    assert "does not exist" not in told_of_flag(each - 1)


def test_a_part_of_another_rank_is_found() -> None:
    """The flag of one source for the part of another, of three ranks."""
    gemm, rows = Gemm(192, 128, 64, BF16, out=BF16), (64, 64, 64)
    kernel = built(gemm, "cluster").kernel
    _, ranks = ranks_of(kernel, gemm, rows)
    swapped = [replace(ranks[0], arguments={**ranks[0].arguments, OWN_RANK.name: 1}), *ranks[1:]]
    with pytest.raises(SimulationError):
        run_of(kernel, swapped)


def test_flags_are_left_at_zero() -> None:
    kernel, ranks = small(lambda one: without(one, flag_paths(one, ZERO)[0]))
    assert any(memory[RANK_FLAGS].any() for memory in run_of(kernel, ranks).memory)


@pytest.mark.parametrize("name", KINDS)
def test_kernels_do_not_spill(name: str) -> None:
    resources = built(Gemm(256, 256, 512, BF16, out=BF16), name).compile("sm_90a").resources
    assert resources.spill_load_bytes == 0


def test_what_cannot_be_shared_out_is_refused() -> None:
    with pytest.raises(LoweringError, match="Sums over ranks need a persistent kernel with a producer"):
        _ = replace(build(SMALL, schedule_at(SMALL, one_tile(64, 128, 1))), split_k=SplitK.RANKS).kernel
    for other in ({"problems": Problems.STRIDED}, {"arriving": True}):
        with pytest.raises(LoweringError, match=r"Ranks share out the k of one|Rows of A can arrive"):
            _ = replace(built(SMALL), **other).kernel  # type: ignore[arg-type]


def test_a_flag_that_releases_nothing_orders_nothing() -> None:
    def careless(kernel: Kernel) -> Kernel:
        path = flag_paths(kernel, ONE)[0]
        return edited(kernel, path, lambda stmt: (replace(stmt, releases=False),))

    kernel, ranks = small(careless)
    with pytest.raises(SimulationError, match=r"Race on peer_rank_sums\[\d+\]"):
        run_of(kernel, ranks)
