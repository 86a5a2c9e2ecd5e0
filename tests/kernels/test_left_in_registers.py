"""Kernels of wgmma that read a tf32 operand through registers: results, what its detectors see, machine code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from auxiliary_kernels import compiled

from tilewright import BF16, F32, TF32, Gemm, Order
from tilewright.dtypes import TF32_TRUNCATED
from tilewright.errors import LoweringError
from tilewright.ir.async_stmt import ArriveBarrier, WaitBarrier, Wgmma, WgmmaFence, WgmmaWait
from tilewright.ir.buffer import Space
from tilewright.ir.expr import Ref
from tilewright.ir.kernel import Kernel
from tilewright.ir.stmt import Body, For, If, Move, Stmt
from tilewright.ir.visit import walk
from tilewright.isa.catalog import instruction
from tilewright.isa.wgmma import numbered_by_ptx
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.problem import Operands, make_operands
from tilewright.problem.epilogue import Epilogue
from tilewright.problem.tolerance import check
from tilewright.schedule import Prefetch, Schedule
from tilewright.simulator import simulate
from tilewright.simulator.findings import Kind
from tilewright.simulator.run import Run
from tilewright.toolchain import build, run_on_simulator

B_LEFT = WgmmaConfig((16, 64, 32), 1, stages=3, swap_ab=True, persistent=False, left_in_registers=True)
A_LEFT = WgmmaConfig((64, 24, 32), 1, stages=2, persistent=False, left_in_registers=True)


def nn(m: int, n: int, k: int, **more: object) -> Gemm:
    """A (m, k) and B (k, n) as rows."""
    return Gemm(m, n, k, F32, **{"product": TF32, **more})  # type: ignore[arg-type]


def across_a(gemm: Gemm) -> Gemm:
    """The same with A as (k, m), and B as (n, k)."""
    return replace(gemm, a=Order.COL, b=Order.COL, lda=0, ldb=0)


CASES: dict[str, tuple[WgmmaConfig, Gemm]] = {
    "B, swapped": (B_LEFT, nn(13, 72, 72)),
    "B, C in columns": (B_LEFT, nn(13, 68, 36, c=Order.COL, alpha=0.5, beta=-1.0)),
    "B, persistent": (replace(B_LEFT, persistent=True, raster_rows=4), nn(40, 132, 40)),
    "B, two warpgroups": (replace(B_LEFT, tile=(8, 128, 32), consumers=2), nn(9, 132, 100)),
    "B, two fragments": (replace(B_LEFT, tile=(8, 128, 32), stages=2), nn(7, 100, 64)),
    "B, shared by a cluster": (replace(B_LEFT, cluster=(2, 1)), nn(29, 64, 68)),
    "B, in parts of a cluster": (replace(B_LEFT, cluster_k=2), nn(15, 64, 132)),
    "B, vectors": (B_LEFT, nn(14, 68, 36, epilogue=Epilogue(bias="n", residual=True), beta=1.0)),
    "B, truncated": (B_LEFT, nn(13, 64, 36, product=TF32_TRUNCATED)),
    "B, no k": (B_LEFT, nn(5, 64, 0, lda=4)),
    "B, staged": (replace(B_LEFT, subtile=64), nn(14, 72, 40)),
    "B, staged, beta": (replace(B_LEFT, tile=(40, 128, 32), consumers=2, subtile=64), nn(44, 136, 36, beta=0.5)),
    "A, staged": (replace(A_LEFT, tile=(128, 64, 32), consumers=2, subtile=32), across_a(nn(100, 72, 40))),
    "A, staged in ping-pong": (
        replace(A_LEFT, consumers=2, ping_pong=True, persistent=True, subtile=24, subtile_stages=1),
        across_a(nn(132, 52, 36)),
    ),
    "A": (A_LEFT, across_a(nn(72, 21, 72))),
    "A, two warpgroups": (replace(A_LEFT, tile=(128, 8, 32), consumers=2), across_a(nn(100, 9, 40))),
    "A, ping-pong": (replace(A_LEFT, consumers=2, ping_pong=True, persistent=True), across_a(nn(132, 50, 36))),
}


@pytest.mark.parametrize("case", CASES)
def test_results_are_within_the_bound(case: str) -> None:
    config, gemm = CASES[case]
    assert config.reasons_against(gemm) == ()
    operands = make_operands(gemm)
    computed, run = run_on_simulator(build(gemm, config.schedule(gemm)), operands)
    assert not run.findings
    assert config.subtile == 0 or (run.counters.bulk_stores.boxes > 0 and run.counters.global_stores.requests == 0)
    stores, single = run.counters.shared_stores, config.swap_ab and config.subtile > 0
    assert stores.excess_wavefronts == stores.ideal_wavefronts * single  # two-way conflicts of single elements
    verdict = check(operands, computed)
    assert verdict.ok, verdict.message


def test_bits_are_those_of_the_kernel_that_packing_feeds() -> None:
    gemm = nn(13, 72, 72)
    operands = make_operands(gemm)
    along_k = replace(gemm, b=Order.COL, ldb=0)
    turned = Operands(along_k, operands.a, np.ascontiguousarray(operands.b.reshape(72, 72).T).reshape(-1), operands.c)
    found = []
    for config, of in ((B_LEFT, operands), (replace(B_LEFT, left_in_registers=False), turned)):
        computed, _ = run_on_simulator(build(of.gemm, config.schedule(of.gemm)), of)
        found.append(computed)
    assert (found[0] == found[1]).all()


def test_fragments_are_loaded_in_pairs_without_bank_conflicts() -> None:
    for case in ("B, two warpgroups", "A"):
        config, gemm = CASES[case]
        _, run = run_on_simulator(build(gemm, config.schedule(gemm)), make_operands(gemm))
        (loads,) = [line for line in run.counters.lines if line.origin in ("A_frag", "B_frag")]
        assert loads.opcodes == (("LDS.64", 1),) and loads.wavefronts == loads.ideal_wavefronts > 0


def without(kernel: Kernel, drop: Callable[[Stmt], bool]) -> Kernel:
    def kept(body: Body) -> Body:
        found: list[Stmt] = []
        for stmt in body:
            if drop(stmt):
                continue
            if isinstance(stmt, For):
                stmt = replace(stmt, body=kept(stmt.body))
            elif isinstance(stmt, If):
                stmt = replace(stmt, then=kept(stmt.then), otherwise=kept(stmt.otherwise))
            found.append(stmt)
        return tuple(found)

    return replace(kernel, body=kept(kernel.body))


def run_without(drop: Callable[[Stmt], bool]) -> Run:
    gemm = nn(13, 64, 192)
    kernel = build(gemm, B_LEFT.schedule(gemm)).kernel
    broken = without(kernel, drop)
    assert broken.body != kernel.body
    return simulate(broken, make_operands(gemm), on_finding="collect")


DROPPED: dict[str, tuple[Callable[[Stmt], bool], Kind]] = {
    "the wait before fragments are overwritten": (
        lambda s: isinstance(s, WgmmaWait) and s.pending == 1,
        Kind.IN_FLIGHT,
    ),
    "the wait before sums are read": (lambda s: isinstance(s, WgmmaWait) and s.pending == 0, Kind.IN_FLIGHT),
    "the fence behind the loads": (lambda s: isinstance(s, WgmmaFence), Kind.UNFENCED),
    "the loads": (lambda s: isinstance(s, Move) and s.origin == "B_frag", Kind.UNWRITTEN),
    "the wait for a full stage": (
        lambda s: isinstance(s, WaitBarrier) and s.place.buffer.name == "k_tile_full",
        Kind.UNWRITTEN,
    ),
    "the wait for an empty stage": (
        lambda s: isinstance(s, WaitBarrier) and s.place.buffer.name == "k_tile_empty",
        Kind.RACE,
    ),
    "the release": (lambda s: isinstance(s, ArriveBarrier), Kind.DEADLOCK),
}


@pytest.mark.parametrize("what", DROPPED)
def test_nothing_can_be_left_out(what: str) -> None:
    drop, kind = DROPPED[what]
    assert kind in {finding.kind for finding in run_without(drop).errors}


def test_fragments_of_one_half_alone_are_seen_in_use() -> None:
    """Both halves in the same registers: the loads of one meet the MMAs of the other."""
    gemm = nn(13, 64, 96)
    kernel = build(gemm, B_LEFT.schedule(gemm)).kernel

    def first(body: Body) -> Body:
        found: list[Stmt] = []
        for stmt in body:
            match stmt:
                case For():
                    stmt = replace(stmt, body=first(stmt.body))
                case If():
                    stmt = replace(stmt, then=first(stmt.then), otherwise=first(stmt.otherwise))
                case Move(dst=dst) if stmt.origin == "B_frag":
                    stmt = replace(stmt, dst=_in_first_half(dst))
                case Wgmma(a=a) if isinstance(a, Ref):
                    stmt = replace(stmt, a=_in_first_half(a))
            found.append(stmt)
        return tuple(found)

    broken = replace(kernel, body=first(kernel.body))
    run = simulate(broken, make_operands(gemm), on_finding="collect")
    assert Kind.IN_FLIGHT in {finding.kind for finding in run.errors}


def _in_first_half(place: Ref) -> Ref:
    return replace(place, index=(place.index[0] * 0, *place.index[1:]))


def test_rows_that_a_kernel_takes_for_others_give_wrong_results() -> None:
    """The simulator numbers rows as PTX does, whatever a kernel takes them for."""
    gemm = nn(8, 64, 32)
    kernel = build(gemm, replace(B_LEFT, tile=(8, 64, 32)).schedule(gemm)).kernel
    text = {stmt.instruction.family for _, stmt in walk(kernel.body) if isinstance(stmt, Wgmma)}
    assert text == {"wgmma.m64n8k8.paired"}
    paired = instruction("wgmma.m64n8k8.paired", TF32, F32)
    assert numbered_by_ptx(paired) == instruction("wgmma.m64n8k8", TF32, F32)
    assert paired.left is not None
    rows, columns = paired.left.places()
    assert sorted(zip(rows.reshape(-1).tolist(), columns.reshape(-1).tolist(), strict=True)) == [
        (row, column) for row in range(64) for column in range(8)
    ]
    ptx = numbered_by_ptx(paired)
    assert ptx.left is not None
    for mine, theirs in ((paired.left, ptx.left), (paired.c, ptx.c)):
        told = {}
        for own, other in zip(
            mine.places()[0].reshape(-1).tolist(), theirs.places()[0].reshape(-1).tolist(), strict=True
        ):
            assert told.setdefault(other, own) == own
        assert len(set(told.values())) == 64
        assert (mine.places()[1] == theirs.places()[1]).all()
    sums, left = (dict(_rows(one, other)) for one, other in ((paired.c, ptx.c), (paired.left, ptx.left)))
    assert sums == left


def _rows(mine: object, theirs: object) -> list[tuple[int, int]]:
    own, other = (one.places()[0].reshape(-1).tolist() for one in (mine, theirs))  # type: ignore[attr-defined]
    return list(zip(other, own, strict=True))


@pytest.mark.parametrize(
    ("config", "gemm"),
    [
        (replace(B_LEFT, tile=(200, 128, 32), consumers=2, stages=5, cluster=(1, 4)), nn(197, 28672, 4096)),
        (
            replace(B_LEFT, tile=(152, 192, 32), consumers=3, stages=5, persistent=True, raster_rows=4),
            nn(577, 3584, 512),
        ),
        (replace(A_LEFT, tile=(256, 152, 32), consumers=2, stages=4), across_a(nn(1024, 1024, 512))),
    ],
    ids=["B", "B, three warpgroups", "A"],
)
def test_it_compiles_without_spills_and_without_waits_after_every_wgmma(config: WgmmaConfig, gemm: Gemm) -> None:
    assert config.reasons_against(gemm) == ()
    found = compiled(build(gemm, config.schedule(gemm)).kernel, "sm_90a")
    assert found.resources.spill_load_bytes == 0 and "serialized" not in found.log


def test_what_it_cannot_do_it_says() -> None:
    both = replace(nn(64, 64, 64), a=Order.COL, lda=0)
    reasons = {
        "through registers where m or n is contiguous, and only there": (B_LEFT, across_a(nn(64, 64, 64))),
        "wgmma transposes 2-byte operands only": (replace(B_LEFT, left_in_registers=False), nn(64, 64, 64)),
        "of tf32 it reads one, that of its rows": (A_LEFT, both),
        "for one sum, which is not promoted": (replace(B_LEFT, promote_every=32), nn(64, 64, 64)),
    }
    for words, (config, gemm) in reasons.items():
        assert any(words in reason for reason in config.reasons_against(gemm)), words
    two_bytes = Gemm(64, 64, 64, BF16, a=Order.COL)
    assert replace(A_LEFT, tile=(64, 24, 64)).reasons_against(two_bytes)
    gemm = nn(64, 64, 64)
    steps = B_LEFT.schedule(gemm).steps
    with pytest.raises(LoweringError, match="not loaded in halves from a tile that TMA brings"):
        _ = build(gemm, Schedule(*(step for step in steps if not isinstance(step, Prefetch)))).kernel


def test_fragments_stand_in_registers() -> None:
    gemm = nn(13, 64, 64)
    kernel = build(gemm, B_LEFT.schedule(gemm)).kernel
    products = [stmt for _, stmt in walk(kernel.body) if isinstance(stmt, Wgmma)]
    assert products and all(isinstance(one.a, Ref) and one.a.buffer.space is Space.REGISTER for one in products)
