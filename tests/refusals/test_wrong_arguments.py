"""Arguments of a wrong kind or size are refused in words, whichever step they are given to."""

from __future__ import annotations

from typing import Any

import pytest

from tilewright.dtypes import F16
from tilewright.errors import TilewrightError
from tilewright.ir.buffer import Space
from tilewright.ir.program import Level, RasterOrder
from tilewright.layout.arrangement import Interleaved, Xor
from tilewright.problem.gemm import Gemm, Order
from tilewright.problem.reference import make_operands
from tilewright.schedule import (
    Accumulate,
    Bind,
    Distribute,
    Epilogue,
    Pipeline,
    Prefetch,
    Raster,
    Relayout,
    Schedule,
    Snake,
    Split,
    Stage,
    Step,
    Transfer,
    Unroll,
    Vectorize,
    from_json,
    to_json,
)
from tilewright.toolchain import build

GEMM = Gemm(40, 40, 20)
TILED = (
    Split("m", 16, into=("m_block", "m_in")),
    Split("m_in", 4, into=("m_thread", "m_reg")),
    Split("k", 8, into=("k_tile", "k_in")),
    Bind("m_block", Level.GRID_Y),
    Bind("n", Level.GRID_X),
    Bind("m_thread", Level.BLOCK_X),
    Stage("A", Space.SHARED, under="k_tile"),
)
SHARED = (*TILED, Distribute("A_tile"))


def xor(*parts: Any) -> Step:
    return Relayout("A_tile", arrangement=Xor(*parts))


WRONG: list[tuple[tuple[Step, ...], Any]] = [
    (TILED, Distribute("A_tile", vector=0)),
    (TILED, Distribute("A_tile", vector=-4)),
    (TILED, Distribute("A_tile", vector=2.0)),  # type: ignore[arg-type]
    (TILED, Distribute("A_tile", vector="4")),  # type: ignore[arg-type]
    (TILED, Distribute("A_tile", pattern="cyclic")),  # type: ignore[arg-type]
    ((), Vectorize("C", 0)),
    ((), Vectorize("C", -2)),
    ((), Vectorize("C", 2.0)),  # type: ignore[arg-type]
    ((), Vectorize("C", True)),
    (TILED, Relayout("A_tile", pad=-1)),
    (TILED, Relayout("A_tile", pad=1.5)),  # type: ignore[arg-type]
    (TILED, Relayout("A_tile", rows="q")),  # type: ignore[arg-type]
    (TILED, Relayout("A_tile", arrangement="xor")),  # type: ignore[arg-type]
    (TILED, Relayout("A_tile", arrangement=Interleaved(0))),
    (TILED, Relayout("A_tile", arrangement=Interleaved(-2))),
    (TILED, Relayout("A_tile", arrangement=Interleaved(2.0))),  # type: ignore[arg-type]
    *((TILED, xor(*parts)) for parts in ((-1, 0, 0), (1, -1, 0), (1, 0, -1), (1, 0, 40), (1.0, 0, 0), (True, 0, 0))),
    (TILED, Stage("B", "shared", under="k_tile")),  # type: ignore[arg-type]
    (TILED, Stage("D", Space.SHARED, under="k_tile")),  # type: ignore[arg-type]
    (TILED, Stage({}, Space.SHARED, under="k_tile")),  # type: ignore[arg-type]
    (TILED, Snake("k_tile", 1)),  # type: ignore[arg-type]
    ((), Bind("m", "grid.x")),  # type: ignore[arg-type]
    ((), Bind(3, Level.GRID_X)),  # type: ignore[arg-type]
    ((), Split("m", True, into=("a", "b"))),
    ((), Split("m", "2", into=("a", "b"))),  # type: ignore[arg-type]
    ((), Split("m", 2, into="ab")),  # type: ignore[arg-type]
    ((), Split("m", 2, into=("a", 3))),  # type: ignore[arg-type]
    (SHARED, Pipeline("k_tile", 2.0)),  # type: ignore[arg-type]
    (SHARED, Pipeline("k_tile", "2")),  # type: ignore[arg-type]
    (SHARED, Pipeline("k_tile", True)),
    (SHARED, Pipeline("k_tile", 17)),
    (SHARED, Transfer("A_tile", "cp.async")),  # type: ignore[arg-type]
    (SHARED, Raster("row")),  # type: ignore[arg-type]
    (SHARED, Raster(RasterOrder.GROUPED, 2.5)),  # type: ignore[arg-type]
    (SHARED, Raster(RasterOrder.GROUPED, 10**12)),
    (SHARED, Raster(RasterOrder.GROUPED, True)),
    ((Accumulate("k"),), Epilogue(alpha="x")),  # type: ignore[arg-type]
    ((Accumulate("k"),), Epilogue(beta=1)),  # type: ignore[arg-type]
    (SHARED, Pipeline("k_tile", alternating="no")),  # type: ignore[arg-type]
    ((), Accumulate(None)),  # type: ignore[arg-type]
    ((), Unroll(None)),  # type: ignore[arg-type]
    (TILED, Prefetch(None)),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("before", "step"), WRONG, ids=lambda value: repr(value) if isinstance(value, Step) else "")
def test_a_wrong_argument_is_refused_by_its_step(before: tuple[Step, ...], step: Step) -> None:
    with pytest.raises(TilewrightError) as refused:
        Schedule(*before, step).apply(GEMM)
    assert refused.value.place.startswith(f"step {len(before) + 1} of {len(before) + 1}: ")
    assert refused.value.hint or isinstance(step, Relayout), "there is a way out"


@pytest.mark.parametrize("entry", ['{"vector": 0}', '{"vector": "4"}', '{"vector": 1.5}', '{"vector": null}'])
def test_a_file_is_no_way_around(entry: str) -> None:
    """A database or a file may hold anything."""
    written = to_json(Schedule(*SHARED)).replace('"vector": 1', entry.strip("{}"))
    assert written != to_json(Schedule(*SHARED))
    with pytest.raises(TilewrightError, match="its vector width is"):
        from_json(written).apply(GEMM)


def test_a_schedule_takes_further_steps_and_nothing_else() -> None:
    assert Schedule(*TILED) + Unroll("k_in") == Schedule(*TILED) + Schedule(Unroll("k_in"))
    with pytest.raises(TypeError, match="unsupported operand"):
        Schedule(*TILED) + 1  # type: ignore[operator]


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (Gemm(41, 40, 24), ", with no edges along m, and m = 41 is not a multiple of 16."),
        (Gemm(48, 40, 24, F16, out=F16), ", and the operands are 48x40x24 f16 NN."),
        (Gemm(48, 40, 24, b=Order.COL), ", and the operands are 48x40x24 f32 NT."),
    ],
)
def test_operands_that_a_kernel_is_not_for_are_refused(other: Gemm, says: str) -> None:
    built = build(Gemm(48, 40, 24), Schedule(*SHARED))
    with pytest.raises(TilewrightError) as refused:
        built.simulate(make_operands(other))
    assert refused.value.headline == f"gemm was built for 48x40x24 f32 NN{says}"
