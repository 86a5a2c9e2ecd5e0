"""Bias, residual and activation, fused into every kind of store."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.lowering.work_items import check_batch
from tilewright.dtypes import BF16, F16, F32
from tilewright.errors import LoweringError
from tilewright.frontend import ops
from tilewright.frontend.symbols import Symbol
from tilewright.ir.stmt import Move
from tilewright.ir.visit import walk
from tilewright.ladders import find_rung
from tilewright.problem import Activation, Epilogue, Gemm, Order, check, make_operands, reference
from tilewright.problem.values import Accumulated, Added, Element, Factor
from tilewright.schedule import Epilogue as Apart
from tilewright.schedule import Schedule
from tilewright.toolchain import build, run_on_simulator

ACC, RATE = Symbol(Accumulated()), Symbol(Factor("rate"))
GATE, SHIFT = Symbol(Element(Added("gate", None, BF16))), Symbol(Element(Added("shift", "n", F16)))
ROW, ONE = Symbol(Element(Added("row", "m", F32))), Symbol(Element(Added("one", "n", F32, single=True)))
CHOSEN = ops.where((GATE > 0) & (ACC <= ROW), ops.exp(ops.minimum(ACC, 2.0)), ops.cast(ACC, "bf16") - SHIFT)
FUNCTION = (CHOSEN * RATE + abs(ONE) / (1.5 + ops.sigmoid(ACC))).value
EPILOGUES = [
    Epilogue("n", True, function=FUNCTION),
    Epilogue(bias="n", activation=Activation.GELU),
    Epilogue(bias="m", residual=True, activation=Activation.RELU),
    Epilogue(residual=True, activation=Activation.SILU),
    Epilogue(activation=Activation.GELU_TANH),
    Epilogue(scale=("m",)),
    Epilogue("n", True, Activation.SILU, scale=("m", "n")),
]
SMALL = {"m": 64, "n": 64, "consumers": 1, "stages": 2}
SUBTILES = {"m": 128, "n": 128, "consumers": 2, "stages": 2, "raster_rows": 1, "subtiles": 2}
AMPERE = {
    "m": 64, "n": 64, "k_bytes": 64, "warp_m": 32, "warp_n": 32, "stages": 2, "double_buffered_fragments": False,
    "interleaved_copies": False, "serpentine": False, "raster_rows": 1,
}  # fmt: skip


@pytest.mark.cross_section("epilogue", "rung", every=5)
@pytest.mark.parametrize("epilogue", EPILOGUES, ids=str)
@pytest.mark.parametrize(
    ("rung", "point", "gemm"),
    [
        ("worklog/3", None, {}),
        ("worklog/6", None, {"dtype": F16, "out": F16, "c": Order.COL}),
        ("worklog/best", None, {}),
        ("ampere/full", AMPERE, {"dtype": F16, "out": F16}),
        ("hierarchy/wmma", None, {"dtype": F16, "out": F32}),
        ("hopper/shared_b", SMALL, {"dtype": BF16, "out": F32}),
        ("hopper/tma_store", SUBTILES, {"dtype": BF16, "out": BF16}),
    ],
)
def test_every_kind_of_store(
    rung: str, point: dict[str, int] | None, gemm: dict[str, object], epilogue: Epilogue
) -> None:
    problem = Gemm(72, 136, 40, alpha=0.5, beta=-1.5, epilogue=epilogue, **gemm)  # type: ignore[arg-type]
    found = find_rung(rung)
    schedule = found.schedule(problem) if point is None else found.choices.schedule_at(problem, point)  # type: ignore[union-attr]
    operands = make_operands(problem)
    computed, _ = run_on_simulator(build(problem, schedule), operands)
    verdict = check(operands, computed)
    assert verdict.ok, verdict.message


@pytest.mark.parametrize(
    ("rung", "point", "gemm", "width"),
    [
        ("worklog/6", None, {}, 4),
        ("ampere/full", AMPERE, {"dtype": F16, "out": F16}, 2),
        ("hopper/tma_store", SUBTILES, {"dtype": BF16, "out": BF16}, 2),
    ],
)
def test_matrices_are_read_in_as_many_neighbours_as_a_thread_holds(
    rung: str, point: dict[str, int] | None, gemm: dict[str, object], width: int
) -> None:
    problem = Gemm(256, 256, 128, epilogue=Epilogue(function=(ACC * GATE + SHIFT + ROW).value), **gemm)  # type: ignore[arg-type]
    found = find_rung(rung)
    schedule = found.schedule(problem) if point is None else found.choices.schedule_at(problem, point)  # type: ignore[union-attr]
    kernel = build(problem, schedule).kernel
    held = "_vector" if any(buffer.name == "shift_vector" for buffer in kernel.shared) else ""
    names = {"gate": "gate", "shift": f"shift{held}", "row": f"row{held}"}  # in memory, where the epilogue reads them
    moves = [stmt for _, stmt in walk(kernel.body) if isinstance(stmt, Move)]
    widths = {name: {move.width for move in moves if move.src.buffer.name == held} for name, held in names.items()}
    assert widths == {"gate": {width}, "shift": {width}, "row": {1}}


def test_a_residual_with_rows_further_apart_at_edges() -> None:
    gemm = Gemm(33, 35, 17, epilogue=Epilogue("n", residual=True), beta=2.0, ld_added=(41,))
    operands = make_operands(gemm)
    computed, _ = run_on_simulator(build(gemm, find_rung("worklog/6")), operands)
    assert check(operands, computed).ok


def test_scales_are_f32_beside_narrow_operands_and_apply_to_the_sum_alone() -> None:
    gemm = Gemm(8, 16, 32, F16, out=F16, beta=1.0, epilogue=Epilogue("n", scale=("m", "n")))
    assert [(one.name, one.dtype, one.contiguous) for one in gemm.added] == [
        ("bias", F16, "n"),
        ("scale_m", F32, "m"),
        ("scale_n", F32, "n"),
    ]
    operands = make_operands(gemm)
    a, b, c, bias, rows, columns = (operands.matrix(one.name).astype(np.float64) for one in gemm.matrices)
    np.testing.assert_allclose(reference(operands), a @ b * rows * columns + c + bias, rtol=1e-12)


def test_scales_far_apart_and_strange_ones() -> None:
    """A row's scale is its own: its size, and NaN, stay in it."""
    gemm = Gemm(72, 40, 64, BF16, out=F32, epilogue=Epilogue(scale=("m",)))
    operands = make_operands(gemm)
    scales = 2.0 ** np.linspace(-60, 60, 72).round().astype(np.float32)
    scales[5], scales[6] = np.nan, 0
    operands = replace(operands, added={"scale_m": scales.astype(np.float32)})
    computed, _ = run_on_simulator(build(gemm, find_rung("hopper/3")), operands)
    assert np.isnan(computed[5]).all() and (computed[6] == 0).all()
    assert check(operands, computed).ok


def test_a_batch_shares_its_scales() -> None:
    gemm = Gemm(136, 136, 72, BF16, out=BF16, beta=0.5, epilogue=Epilogue("n", True, scale=("m", "n")))
    check_batch(gemm, find_rung("hopper/8"), 3, resident_blocks=2)


@pytest.mark.cross_section("rung", every=2)
@pytest.mark.parametrize("rung", ["hopper/best", "ampere/6"])
def test_kernels_with_scales_compile_without_spills(rung: str) -> None:
    gemm = find_rung(rung).gemm(4096, 4096, 4096)
    gemm = replace(gemm, epilogue=Epilogue("n", True, Activation.SILU, scale=("m", "n")), beta=1.0)
    resources = build(gemm, find_rung(rung)).compile("sm_90a").resources
    assert resources.spill_load_bytes == 0


def test_a_sum_that_begins_with_c_is_not_scaled() -> None:
    gemm = Gemm(40, 40, 70, beta=0.5, epilogue=Epilogue(scale=("m",)))
    early = Schedule(*(step for step in find_rung("worklog/6").schedule(gemm) if not isinstance(step, Apart)))
    with pytest.raises(LoweringError, match="the addend is not scaled"):
        _ = build(gemm, early).kernel


def test_a_sum_in_c_has_no_epilogue() -> None:
    gemm = Gemm(8, 8, 8, epilogue=Epilogue("n"))
    with pytest.raises(LoweringError, match="leaves no finished sum"):
        _ = build(gemm, find_rung("te/0")).kernel


def test_functions_as_they_are_defined() -> None:
    x = np.array([-3.0, -0.5, 0.0, 0.5, 3.0, np.nan])
    assert np.isnan(Activation.RELU.of(x)[-1])
    np.testing.assert_allclose(
        Activation.GELU.of(x[:5]), [-0.00404969, -0.15426877, 0, 0.34573123, 2.99595031], atol=1e-8
    )
    np.testing.assert_allclose(
        Activation.SILU.of(x[:5]), [-0.14227762, -0.18877033, 0, 0.31122967, 2.85772238], atol=1e-8
    )
