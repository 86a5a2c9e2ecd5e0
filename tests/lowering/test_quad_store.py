"""Results that the lanes of a quad trade before they store them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright.dtypes import BF16, F16, F32
from tilewright.errors import ProblemError, ScheduleError
from tilewright.ir.kernel import SAFE, Kernel, Variant
from tilewright.ir.stmt import Move, QuadTranspose, Stmt
from tilewright.ir.visit import rewrite, walk
from tilewright.kernels.mma_presets import BEST
from tilewright.problem import Activation, Epilogue, Gemm, Order, check, make_operands
from tilewright.problem.reference import view
from tilewright.schedule import Schedule, Vectorize
from tilewright.simulator import simulate
from tilewright.toolchain import build, run_on_simulator

SMALL = replace(BEST, tile=(64, 64, 32), warp_tile=(32, 32), store="quad_shuffle")


def kernel_of(gemm: Gemm, variant: Variant | None = None) -> Kernel:
    return build(gemm, SMALL.schedule(gemm), variant=variant).kernel


def stores(kernel: Kernel) -> list[Move]:
    return [s for _, s in walk(kernel.body) if isinstance(s, Move) and s.dst.buffer.name == "C"]


@pytest.mark.cross_section("m", "ldc", "beta", "outer", every=3)
@pytest.mark.parametrize("outer", ["m_frag", "n_frag"])
@pytest.mark.parametrize("beta", [0.0, 0.5])
@pytest.mark.parametrize(
    ("m", "n", "ldc"), [(64, 64, 64), (65, 72, 80), (72, 67, 72), (70, 65, 65), (65, 70, 70), (64, 68, 68)]
)
def test_every_edge_and_alignment_of_c(m: int, n: int, ldc: int, beta: float, outer: str) -> None:
    gemm = Gemm(m, n, 40, F16, out=F16, ldc=ldc, alpha=1.5, beta=beta)
    operands = make_operands(gemm)
    built = build(gemm, replace(SMALL, n_outer=outer == "n_frag").schedule(gemm))
    computed, run = run_on_simulator(built, operands)
    assert check(operands, computed).ok and not run.findings


@pytest.mark.parametrize("variant", [SAFE, Variant(frozenset("mnk")), Variant()])
def test_whatever_is_assumed(variant: Variant) -> None:
    gemm = Gemm(64, 128, 64, BF16, out=BF16, beta=-1.0)
    operands = make_operands(gemm)
    run = simulate(kernel_of(gemm, variant), operands)
    assert check(operands, gemm.out.decode(view(gemm, "C", run.c))).ok


@pytest.mark.parametrize("along", ["m", "n"])
def test_an_epilogue_is_applied_before_lanes_trade(along: str) -> None:
    gemm = Gemm(72, 80, 32, F16, out=F16, beta=2.0, epilogue=Epilogue(along, True, Activation.GELU))  # type: ignore[arg-type]
    operands = make_operands(gemm)
    computed, _ = run_on_simulator(build(gemm, SMALL.schedule(gemm)), operands)
    assert check(operands, computed).ok


def test_each_lane_stores_sixteen_bytes_and_quads_store_whole_sectors() -> None:
    gemm = Gemm(64, 64, 32, F16, out=F16)
    operands = make_operands(gemm)
    run = build(gemm, SMALL.schedule(gemm)).simulate(operands)
    counts = run.counters.of_origin("C")
    assert {move.width for move in stores(kernel_of(gemm))} == {8}
    assert counts.instructions["STG.128"] * 32 * 16 == 64 * 64 * 2
    assert counts.instructions["SHFL"] == 4 * counts.instructions["STG.128"]
    assert counts.global_stores.sectors * 32 == 64 * 64 * 2


def test_a_trade_that_is_left_out_is_noticed() -> None:
    gemm = Gemm(64, 64, 32, F16, out=F16)
    operands = make_operands(gemm)

    def left_out(stmt: Stmt) -> tuple[Stmt, ...] | None:
        return () if isinstance(stmt, QuadTranspose) else None

    kernel = kernel_of(gemm)
    mutant = replace(kernel, body=rewrite(kernel.body, left_out))
    assert not check(operands, gemm.out.decode(view(gemm, "C", simulate(mutant, operands).c))).ok


def test_where_beta_is_0_c_is_not_read_and_nothing_else_is_taken() -> None:
    gemm = Gemm(64, 64, 32, F16, out=F16)
    overwrites, adds = kernel_of(gemm), kernel_of(replace(gemm, beta=1.0))
    assert overwrites.variant.overwrites and not adds.variant.overwrites

    def reads_c(kernel: Kernel) -> bool:
        return any(isinstance(s, Move) and s.src.buffer.name == "C" for _, s in walk(kernel.body))

    assert not reads_c(overwrites) and reads_c(adds)
    simulate(adds, make_operands(gemm))
    with pytest.raises(ProblemError, match=r"built for beta = 0 and does not read C, and beta is 1"):
        simulate(overwrites, make_operands(replace(gemm, beta=1.0)))


@pytest.mark.parametrize(
    ("gemm", "words"),
    [
        (Gemm(64, 64, 32, F16, out=F16, c=Order.COL), "no four lanes hold 8"),
        (Gemm(64, 64, 32, F16, out=F32), "8 x 4 bytes at once"),
    ],
)
def test_what_lanes_cannot_trade_is_refused(gemm: Gemm, words: str) -> None:
    steps = replace(SMALL, store="per_thread").schedule(gemm).steps
    with pytest.raises(ScheduleError, match=words):
        build(gemm, Schedule(*steps, Vectorize("C", 8))).kernel  # noqa: B018


def test_a_staged_result_is_not_shuffled() -> None:
    gemm = Gemm(64, 64, 32, F16, out=F16)
    with pytest.raises(ScheduleError, match="exchange words only where each stores its own"):
        build(gemm, Schedule(*SMALL.schedule(gemm), *replace(SMALL, store="shared").schedule(gemm)[-3:])).kernel  # noqa: B018
