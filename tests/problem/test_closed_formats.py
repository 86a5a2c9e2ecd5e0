"""A format that nobody described fails in every reader of formats: it is never computed as some other format.

The made-up format claims that kernels may take it, and says nothing else. What it says more, one test after another, is
what lies in front of the reader that the test is about.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilewright import dtypes
from tilewright.artifacts import Extent, TensorBox
from tilewright.codegen import print_cuda
from tilewright.codegen.conversions import conversion, cuda_format, sum_register, vector
from tilewright.codegen.expr import CudaExpr
from tilewright.device.catalog import device
from tilewright.dtypes import BF16, F32, TF32, DType, Names, Rounding, Summation
from tilewright.errors import FormatError, LoweringError, ProblemError, ScheduleError, TilewrightError, UnknownName
from tilewright.export.bundle import bundle
from tilewright.frontend.libraries.views import format_named
from tilewright.frontend.options import options_asked
from tilewright.ir.expr import Const, Fma, Var, wider
from tilewright.ladders import find_rung
from tilewright.planning.candidates import candidates
from tilewright.problem.formats import format_options
from tilewright.problem.gemm import Gemm
from tilewright.problem.reference import Operands, make_operands
from tilewright.problem.tolerance import relative_bound
from tilewright.runtime.tensor_map import encode
from tilewright.schedule import Schedule, Tensorize
from tilewright.simulator.arithmetic import FloatArithmetic
from tilewright.suite.problems import problems
from tilewright.toolchain import build, operands_from

BARE = DType("made_up", 8, "uint8", "made_up_bits", is_factor=True, is_result=True)
ROUNDED = Rounding(lambda values: np.asarray(values).astype(np.uint8), lambda stored: stored)
SUMMED = replace(BARE, rounding=ROUNDED, sums={"f32": Summation(2.0**-23, True)}, unit_roundoff=2.0**-3)
COMPUTED = replace(SUMMED, computed_in="float32", smallest_normal=2.0**-14)


@pytest.fixture(autouse=True)
def _known_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registered like any other format."""
    monkeypatch.setattr(dtypes, "ALL", (*dtypes.ALL, BARE))
    monkeypatch.setitem(dtypes._BY_NAME, "made_up", BARE)


def problem(dtype: DType) -> Gemm:
    return Gemm(64, 64, 64, dtype, out=F32)


def stored(dtype: DType) -> Operands:
    """Operands as a caller would bring them: bits, which no reader may take for numbers."""
    bits = np.ones(64 * 64, np.uint8)
    return Operands(problem(dtype), bits, bits, np.zeros(64 * 64, np.float32))


def test_it_is_registered() -> None:
    assert dtypes.dtype("made_up") is BARE


READERS = {
    "problem: a factor": lambda: Gemm(8, 8, 8, replace(BARE, is_factor=False)),
    "problem: a result": lambda: Gemm(8, 8, 8, out=replace(BARE, is_result=False)),
    "problem: sums": lambda: problem(BARE),
    "problem: a product": lambda: Gemm(8, 8, 8, F32, product=BARE),
    "reference": lambda: make_operands(problem(replace(SUMMED, rounding=None))),
    "reference: stored bits": lambda: stored(replace(SUMMED, rounding=None)).matrix("A"),
    "tolerance": lambda: relative_bound(Gemm(8, 8, 8, replace(SUMMED, sums={"f16": SUMMED.sums["f32"]}))),
    "tolerance: the smallest number": lambda: SUMMED.tiny,
    "simulator: registers": lambda: FloatArithmetic().register_type(SUMMED),
    "simulator: a constant": lambda: FloatArithmetic().constant(1.0, BARE),
    "simulator: memory": lambda: FloatArithmetic().decode(np.zeros(1, np.uint8), BARE),
    "simulator: tensor cores": lambda: COMPUTED.as_multiplied(np.ones(1, np.float32)),
    "ir: a common format": lambda: wider(COMPUTED, replace(BARE)),
    "codegen: the format": lambda: cuda_format(COMPUTED),
    "codegen: to f32": lambda: conversion(COMPUTED, F32),
    "codegen: from f32": lambda: conversion(F32, COMPUTED),
    "codegen: a vector": lambda: vector(COMPUTED, 16),
    "codegen: sums": lambda: sum_register(COMPUTED),
    "isa: PTX": lambda: COMPUTED.ptx,
    "isa: machine code": lambda: COMPUTED.sass,
    "model: the rate": lambda: COMPUTED.rate,
    "planning": lambda: list(candidates(problem(COMPUTED), device("h200"))),
    "tensor map": lambda: encode(
        TensorBox(
            "A", (Extent("K"), Extent("M")), Extent("lda"), COMPUTED, (64, 64), "CU_TENSOR_MAP_SWIZZLE_NONE", "", False
        ),
        0,
        64,
        64,
        64,
    ),
    "suite: cuBLAS": lambda: COMPUTED.cublas,
    "bench: PyTorch": lambda: COMPUTED.array_name,
    "export: the host's type": lambda: COMPUTED.host,
    "export: the type of CUDA's headers": lambda: COMPUTED.header,
}


@pytest.mark.parametrize("reader", READERS, ids=str)
def test_every_reader_refuses_it(reader: str) -> None:
    with pytest.raises(FormatError, match="made_up"):
        READERS[reader]()


SIMT = find_rung("worklog/3")
TENSOR = find_rung("hopper/1")


def test_a_kernel_of_it_is_neither_printed_nor_simulated() -> None:
    """Lowering only places elements; the kernel that it makes has no meaning that a reader could take for granted."""
    built = build(problem(COMPUTED), SIMT)
    with pytest.raises(FormatError, match="made_up"):
        print_cuda(built.kernel)
    unknown = build(problem(SUMMED), SIMT)
    with pytest.raises(FormatError, match="made_up"):
        unknown.simulate(stored(SUMMED))


def test_no_matrix_instruction_multiplies_it() -> None:
    for using in ("wgmma.m64n128k16", "mma.m16n8k16", "wmma.m16n16k16"):
        with pytest.raises(ScheduleError, match="does not multiply made_up into f32"):
            list(Schedule(Tensorize("m", "n", "k", using=using)).programs(problem(COMPUTED)))
    with pytest.raises(TilewrightError, match=r"made_up|wgmma"):
        build(problem(COMPUTED), TENSOR).kernel  # noqa: B018


def test_lowering_does_not_multiply_the_operands_as_they_are_where_they_are_to_be_rounded() -> None:
    source = replace(F32, name="wide", products=("made_up",))
    gemm = Gemm(64, 64, 64, source, product=COMPUTED)
    with pytest.raises(LoweringError, match="made_up"):
        build(gemm, SIMT).kernel  # noqa: B018


def test_a_format_that_only_lacks_arithmetic_is_not_computed() -> None:
    """As a copy of bf16: everything is said, but the emitted text knows no conversion."""
    twin = replace(BF16, name="twin")
    with pytest.raises(FormatError, match="twin"):
        print_cuda(build(Gemm(64, 64, 64, twin), SIMT).kernel)
    with pytest.raises(FormatError, match="no multiply-add in tf32"):
        CudaExpr(None).fma(Fma(Const(1.0, TF32), Const(1.0, TF32), Const(0.0, TF32)))  # type: ignore[arg-type]


def test_names_of_formats_are_closed_lists() -> None:
    for unknown in (
        lambda: format_options("made_up"),
        lambda: problems(formats=["made_up"]),
        lambda: device("h200").tensor.flops_per_clk_per_sm("made_up", "f32"),
    ):
        with pytest.raises(UnknownName, match="made_up"):
            unknown()
    with pytest.raises(ProblemError, match="made_up"):
        format_named("made_up", np.zeros(1))
    with pytest.raises(ProblemError, match="made_up"):
        options_asked(1.0, None, "made_up", "default", None, False, None, False)
    with pytest.raises(ProblemError, match="uint8"):
        operands_from(np.zeros((8, 8), np.uint8), np.zeros((8, 8), np.uint8))


def test_no_launcher_is_exported_for_it() -> None:
    with pytest.raises(ProblemError, match="made_up"):
        bundle(problem(COMPUTED), SIMT.schedule(problem(COMPUTED)), archs=["sm_90a"], origin="a test")


def test_what_a_format_lacks_is_told_with_those_that_have_it() -> None:
    with pytest.raises(FormatError) as told:
        _ = replace(TF32, names=Names()).tensor_map
    assert str(told.value) == (
        "The format tf32 has no type in a tensor map.\n  Hint: formats with one are f32, f16, bf16, tf32, e4m3, "
        "e5m2, i32."
    )


def test_two_formats_of_one_size_have_no_common_format() -> None:
    with pytest.raises(FormatError, match="Neither f16 nor bf16"):
        _ = (Var("x", dtypes.F16) + Var("y", BF16)).dtype
