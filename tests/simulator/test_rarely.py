"""What hardly a kernel does: promises in branches, teams that disagree, tiles without a swizzle, long recordings."""

from __future__ import annotations

import sys
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hopper_kernels import THREAD, ring
from simulated_kernels import changed

from tilewright.dtypes import BF16
from tilewright.errors import SimulationError
from tilewright.ir.async_stmt import SharedMatrix, TeamBarrier
from tilewright.ir.expr import Const, Expr, Op, as_expr, binary
from tilewright.ir.kernel import Kernel
from tilewright.ir.stmt import Barrier, If, Let, Stmt
from tilewright.ladders import find_rung
from tilewright.layout.swizzle import NO_SWIZZLE, SWIZZLES
from tilewright.problem import Gemm, make_operands
from tilewright.simulator import Kind, simulate
from tilewright.simulator.assigns import RoundPairOp
from tilewright.simulator.asynchronous.descriptor import tile_offsets
from tilewright.simulator.recorder import record as recorded
from tilewright.simulator.recorder.record import _windows
from tilewright.toolchain import build

SMALL = Gemm(64, 64, 128, dtype=BF16, out=BF16)


def findings(broken: Kernel) -> list[Any]:
    run = simulate(broken, make_operands(SMALL), on_finding="collect", resident_blocks=broken.cluster)
    return list(run.findings)


def error(broken: Kernel) -> str:
    with pytest.raises(SimulationError) as caught:
        simulate(broken, make_operands(SMALL), resident_blocks=broken.cluster)
    return str(caught.value)


def before_barriers(made: Stmt) -> Kernel:
    """A ring with a statement in the place of its first barrier."""
    done: list[Stmt] = []

    def change(stmt: Stmt) -> Stmt | None:
        if isinstance(stmt, Barrier) and not done:
            done.append(stmt)
            return made
        return None

    return changed(ring(), change)


@pytest.mark.parametrize(
    ("lanes", "value", "kept"),
    [
        (binary(Op.LT, THREAD % 32, 8), THREAD // 16, True),  # of these lanes
        (binary(Op.LT, THREAD % 32, 8), THREAD // 4, False),
        (binary(Op.GE, THREAD % 32, 16), THREAD // 16, True),
        (binary(Op.GE, THREAD % 32, 15), THREAD // 16, False),
        (binary(Op.LT, THREAD % 32, 1), THREAD, True),  # one lane agrees with itself
        (binary(Op.LT, THREAD % 32, 2), THREAD, False),
    ],
)
def test_a_promise_of_one_value_is_of_the_lanes_that_are_there(lanes: Expr, value: Expr, kept: bool) -> None:
    promise = If(lanes, (Let("alike", value, uniform=True),))
    assert (Kind.NOT_UNIFORM in {one.kind for one in findings(before_barriers(promise))}) == (not kept)


def test_a_promise_of_all_lanes() -> None:
    for value, kept in ((THREAD // 32, True), (THREAD // 31, False), (binary(Op.DIV, THREAD % 32, 31), False)):
        found = findings(before_barriers(Let("alike", value, uniform=True)))
        assert (Kind.NOT_UNIFORM in {one.kind for one in found}) == (not kept)


@pytest.mark.parametrize("number", [1, 15])
def test_warps_that_meet_at_one_barrier_expect_as_many(number: int) -> None:
    """Where two warps expect 64 threads and two 128, it says at which barrier, and which warps came there."""
    warp = THREAD // 32
    few, many = (TeamBarrier(as_expr(number), threads) for threads in (64, 128))
    broken = before_barriers(If(binary(Op.LT, warp, 1), (few,), (many,)))
    run = simulate(broken, make_operands(SMALL), on_finding="collect", resident_blocks=1, schedule="warps", seed=1)
    told = [one for one in run.findings if one.kind is Kind.DIVERGENT_BARRIER]
    assert f"Warps meet at named barrier {number} with different numbers of threads." in {one.headline for one in told}
    assert all(one.where.warp in range(8) for one in told)


@pytest.mark.parametrize(("number", "there"), [(-1, False), (0, True), (15, True), (16, False), (17, False)])
def test_named_barriers_have_numbers_below_16(number: int, there: bool) -> None:
    broken = changed(
        ring(), lambda stmt: TeamBarrier(Const(number), stmt.threads) if isinstance(stmt, TeamBarrier) else None
    )
    if there:
        assert Kind.DIVERGENT_BARRIER not in {one.kind for one in findings(broken)}
    else:
        assert f"There is no named barrier {number}." in error(broken)


def test_only_whole_warps_meet_at_a_named_barrier() -> None:
    broken = changed(ring(), lambda stmt: TeamBarrier(stmt.number, 120) if isinstance(stmt, TeamBarrier) else None)
    assert "A named barrier of 120 threads: only whole warps can meet." in error(broken)


@pytest.mark.parametrize("itemsize", [1, 2, 4])
def test_rows_along_k_without_a_swizzle_are_pieces_of_16_bytes(itemsize: int) -> None:
    """Of 8 rows a piece of 16 bytes each, one after another; 8 rows on are `stride` further, a piece on `leading`."""
    place: Any = None
    leading, stride, rows = 512, 1040, 24
    found = tile_offsets(SharedMatrix(place, NO_SWIZZLE, False, leading, stride), rows, 32 // itemsize, itemsize)
    for row, column in product(range(rows), range(32 // itemsize)):
        piece, inside = divmod(column * itemsize, 16)
        assert found[row, column] == row // 8 * stride + row % 8 * 16 + piece * leading + inside


@pytest.mark.parametrize("bits", [0, 1, 2, 3])
@pytest.mark.parametrize("turned", [False, True])
def test_elements_of_a_tile_by_its_descriptor(bits: int, turned: bool) -> None:
    place: Any = None
    swizzle = SWIZZLES[bits]
    width = 16 << bits
    leading, stride = 4096, 8 * width
    found = tile_offsets(SharedMatrix(place, swizzle, turned, leading, stride), 64, 16, 2)
    for row, column in product((0, 1, 7, 8, 9, 40, 63), range(16)):
        if not turned:
            inside = column * 2
            across = inside // 16 * leading + inside % 16 if not bits else inside
            expected = row // 8 * stride + row % 8 * width + across
        else:
            along, block = (stride, leading) if not bits else (leading, stride)
            expected = row // (width // 2) * along + row % (width // 2) * 2 + column // 8 * block + column % 8 * width
        assert found[row, column] == expected


def test_a_pair_is_rounded_where_neither_is_nan() -> None:
    nan = np.nan
    first, second = np.array([1.25, nan, 3.75, nan]), np.array([2.25, 5.25, nan, nan])
    stored = [first.copy(), second.copy()]
    marked: list[int] = []
    views: Any = [
        SimpleNamespace(
            read=lambda _, at=at: stored[at].copy(),
            of=lambda _, at=at: stored[at],
            mark=lambda _, at=at: marked.append(at),
        )
        for at in (0, 1)
    ]
    context: Any = SimpleNamespace(
        arithmetic=SimpleNamespace(cast=lambda value, dtype: np.floor(value)), tell_computed=lambda *told: None
    )
    site: Any = None
    for lanes, expected in (
        (None, ([1, nan, 3.75, nan], [2, 5.25, nan, nan])),
        (np.array([False, True, True, True]), ([1.25, nan, 3.75, nan], [2.25, 5.25, nan, nan])),
    ):
        stored[:] = [first.copy(), second.copy()]
        mask = None if lanes is None else SimpleNamespace(lanes=lanes)
        convoy: Any = SimpleNamespace(mask=mask)
        RoundPairOp(site, context, (views[0], views[1]), BF16)(convoy)
        for told, wanted in zip(stored, expected, strict=True):
            np.testing.assert_array_equal(told, wanted)
    assert marked == [0, 1, 0, 1]


@pytest.mark.parametrize("share", [0.8, 0.5, 0.2, 0.01])
def test_a_recording_of_too_many_values_keeps_fewer_moments(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as there is room for; and none, where its first state is too large already."""
    rung = find_rung("worklog/3")
    one = build(rung.gemm(64, 64, 64), rung)
    operands = make_operands(one.gemm)
    whole = recorded(one.kernel, operands)
    most = int(share * len(whole.changes.values))
    monkeypatch.setattr(sys.modules["tilewright.simulator.recorder.record"], "MOST_VALUES", most)
    short = recorded(one.kernel, operands)
    assert short.skipped > len(whole.moments) * (1 - share) * 0.9
    if share > 0.1:
        assert 0.9 * most < len(short.changes.values) <= most
    else:
        assert len(short.moments) == 1 and len(short.changes.values) > most


@pytest.mark.parametrize(
    ("happened", "error_at", "most", "kept"),
    [
        (10, None, 10, (range(10), range(0))),
        (11, None, 10, (range(5), range(6, 11))),
        (100, 50, 10, (range(5), range(47, 52))),
        (100, 99, 10, (range(5), range(95, 100))),
        (100, 3, 10, (range(10), range(0))),
        (100, 8, 10, (range(10), range(0))),
        (100, 9, 10, (range(5), range(6, 11))),
    ],
)
def test_the_moments_that_are_kept(happened: int, error_at: int | None, most: int, kept: tuple[range, range]) -> None:
    length: Any = SimpleNamespace(happened=happened, error=error_at)
    assert _windows(length, most) == kept
