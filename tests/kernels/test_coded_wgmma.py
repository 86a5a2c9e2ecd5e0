"""Products with weights in codes by wgmma: right on the simulator, whose detectors see what is missing; compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from auxiliary_kernels import assert_nothing_moves_before_the_wait, compiled
from drawn_problems import drawn_product

from tilewright.codegen import print_cuda
from tilewright.device.catalog import device
from tilewright.dtypes import BF16, E4M3, F16, F32, DType
from tilewright.ir.async_stmt import (
    ArriveBarrier,
    SharedMatrix,
    TeamBarrier,
    TmaLoad,
    WaitBarrier,
    Wgmma,
    WgmmaFence,
    WgmmaWait,
)
from tilewright.ir.kernel import Kernel
from tilewright.ir.stmt import Alloc, Body, For, If, Stmt
from tilewright.ir.verify import BrokenRule, verify
from tilewright.ir.visit import walk
from tilewright.isa.catalog import instruction
from tilewright.kernels.coded_wgmma import CodedWgmmaConfig
from tilewright.kernels.statements import at, registers
from tilewright.problem.coded_product import CodedProduct, CodedWeight, meant
from tilewright.problem.epilogue import Epilogue
from tilewright.problem.tolerance import check
from tilewright.problem.weight_codes import E4M3_CODES, INT4, Codes
from tilewright.simulator import simulate
from tilewright.simulator.findings import Kind

SMALL = CodedWgmmaConfig(8, 1, 1, 128, 2)


def product(
    m: int, n: int, k: int, codes: Codes = INT4, group: int = 128, dtype: DType = BF16, **more: Any
) -> CodedProduct:
    epilogue = Epilogue(bias=more.pop("bias", None), scale=() if group else ("n",))
    return CodedProduct(m, CodedWeight(n, k, codes, group), dtype, more.pop("out", dtype), epilogue=epilogue, **more)


def verdict(config: CodedWgmmaConfig, problem: CodedProduct) -> Any:
    assert config.reasons_against(problem, device("H200")) == ()
    given = drawn_product(problem)
    run = simulate(config.kernel(problem), given)
    assert not run.findings
    stored = run.stored["C"]
    step = stored.itemsize
    c = np.lib.stride_tricks.as_strided(stored, (problem.m, problem.n), (problem.ldc * step, step))
    return check(meant(given), problem.out.decode(c))


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
@pytest.mark.parametrize(("codes", "group"), [(INT4, 128), (INT4, 32), (INT4, 0), (E4M3_CODES, 64), (E4M3_CODES, 0)])
def test_products_are_within_the_bound(codes: Codes, group: int, dtype: DType) -> None:
    found = verdict(SMALL, product(3, 70, 416 if group in (0, 32) else 384, codes, group, dtype, bias="n"))
    assert found.ok, found.message


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (CodedWgmmaConfig(16, 2, 2, 128, 3, 2, 2, 4, overlapped=True), product(13, 136, 640, group=64, bias="n")),
        (CodedWgmmaConfig(32, 1, 1, 64, 3), product(70, 64, 256, E4M3_CODES, 32, lda=264, ldc=67)),
        (CodedWgmmaConfig(24, 1, 2, 64, 3, steps=1), product(30, 64, 192, INT4, 64, out=F32, alpha=0.5, beta=-1.0)),
        (CodedWgmmaConfig(64, 2, 1, 128, 3, 4, 4, 2), product(63, 160, 896, E4M3_CODES, dtype=F16, out=F32)),
        (CodedWgmmaConfig(32, 1, 1, 128, 2, 4), product(9, 17, 128)),  # blocks of a cluster that sum nothing
    ],
    ids=lambda value: f"{value.rows}x{value.columns}" if isinstance(value, CodedWgmmaConfig) else "",
)
def test_every_shape_of_a_kernel(config: CodedWgmmaConfig, problem: CodedProduct) -> None:
    found = verdict(config, problem)
    assert found.ok, found.message


def test_infinities_and_nan_of_activations_and_scales_pass_through() -> None:
    problem = product(4, 20, 128)
    given = drawn_product(problem)
    given.storage("A").reshape(4, 128)[1, 7] = 0x7FC0
    given.storage("A").reshape(4, 128)[2, 9] = 0x7F80
    given.storage("scales")[4] = 0x7FC0
    stored = BF16.decode(simulate(SMALL.kernel(problem), given).stored["C"].reshape(4, 20))
    assert np.isnan(stored[1]).all() and np.isnan(stored[:, 2]).all()
    assert np.isfinite(np.delete(stored[[0, 3]], 2, axis=1)).all()


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


DROPPED: dict[str, tuple[Callable[[Stmt], bool], Kind]] = {
    "the wait before fragments are overwritten": (
        lambda s: isinstance(s, WgmmaWait) and s.pending == 1,
        Kind.IN_FLIGHT,
    ),
    "the wait before sums are read": (lambda s: isinstance(s, WgmmaWait) and s.pending == 0, Kind.IN_FLIGHT),
    "the fence behind unpacking": (lambda s: isinstance(s, WgmmaFence), Kind.UNFENCED),
    "the wait for a full stage": (
        lambda s: isinstance(s, WaitBarrier) and s.place.buffer.name == "full",
        Kind.UNWRITTEN,
    ),
    "the wait for an empty stage": (
        lambda s: isinstance(s, WaitBarrier) and s.place.buffer.name == "empty",
        Kind.RACE,
    ),
    "the wait for other blocks": (
        lambda s: isinstance(s, WaitBarrier) and s.place.buffer.name == "parts_full",
        Kind.RACE,
    ),
    "the meeting before sums are added": (lambda s: isinstance(s, TeamBarrier), Kind.RACE),
    "the release": (lambda s: isinstance(s, ArriveBarrier), Kind.DEADLOCK),
}


@pytest.mark.parametrize("what", DROPPED)
def test_nothing_can_be_left_out(what: str) -> None:
    drop, kind = DROPPED[what]
    problem = product(9, 64, 1024)
    kernel = CodedWgmmaConfig(16, 1, 1, 128, 2, 2).kernel(problem)
    broken = without(kernel, drop)
    assert broken.body != kernel.body
    run = simulate(broken, drawn_product(problem), on_finding="collect")
    assert kind in {finding.kind for finding in run.errors}


def test_a_fragment_of_another_format_or_instruction_is_refused() -> None:
    kernel = SMALL.kernel(product(3, 64, 128))
    wgmma = next(stmt for _, stmt in walk(kernel.body) if isinstance(stmt, Wgmma))
    assert isinstance(wgmma.b, SharedMatrix)
    names = [part.name for part in ()]
    b = replace(wgmma.b, place=at(wgmma.b.place.buffer, 0, 0, 0, 0))
    sums = registers("part", F32, 1, 4)
    for held, used in ((registers("left", F16, 8), "does not multiply f16"), (registers("left", E4M3, 8), "")):
        family = instruction("wgmma.m64n8k32", E4M3, F32) if held.dtype is E4M3 else wgmma.instruction
        stmt = replace(wgmma, instruction=family, d=at(sums, 0, 0), a=at(held, 0), b=b, fresh=None)
        with pytest.raises(BrokenRule, match=used or "takes no fragment of A"):
            verify((Alloc(sums), Alloc(held), stmt), names=names, after="a test")


@pytest.mark.parametrize(
    ("config", "codes", "group"),
    [
        (CodedWgmmaConfig(64, 4, 1, 128, 3, 2, 2, 4, overlapped=True), INT4, 128),
        (CodedWgmmaConfig(64, 4, 1, 128, 3, 1, 4, 4, overlapped=True), E4M3_CODES, 64),
        (CodedWgmmaConfig(16, 2, 2, 128, 4, 1, 2, 4, overlapped=True), INT4, 0),
    ],
)
def test_it_compiles_without_spills_and_without_waits_after_every_wgmma(
    config: CodedWgmmaConfig, codes: Codes, group: int
) -> None:
    problem = product(64, 14336, 4096, codes, group)
    assert print_cuda(config.kernel(problem)).must_fit
    found = compiled(config.kernel(problem), "sm_90a")
    assert found.resources.spill_load_bytes == 0 and "serialized" not in found.log
    assert_nothing_moves_before_the_wait(config.kernel(problem))


def test_the_maps_say_how_codes_lie() -> None:
    problem = product(3, 70, 192, E4M3_CODES, 64)
    kernel = CodedWgmmaConfig(8, 1, 1, 64, 2).kernel(problem)
    boxes = {p.tensor_map.pointer: p.tensor_map for p in kernel.parameters if p.tensor_map is not None}
    sizes = {"M": 3, "N": 70, "K": 192, "lda": 200}
    found = {name: (*(one.of(sizes) for one in box.extents), box.leading.of(sizes)) for name, box in boxes.items()}
    assert found == {"A": (192, 3, 200), "codes": (6 * 128, 5, 6 * 128), "scales": (3 * 16, 5, 3 * 16)}
    assert found["codes"][0] * found["codes"][1] == problem.weight.words
    assert str(boxes["codes"].extents[0]) == "(K + 31) / 32 * 128"
    assert {stmt.map.name for _, stmt in walk(kernel.body) if isinstance(stmt, TmaLoad)} == {
        f"{name}_map" for name in boxes
    }


def test_what_it_cannot_do_it_says() -> None:
    problem = product(3, 70, 256)
    reasons = {
        CodedWgmmaConfig(12): "12 rows of A are not a multiple of 8",
        CodedWgmmaConfig(8, cluster=2): "2 blocks of a cluster do not share 8 rows",
        CodedWgmmaConfig(own_k=64): "64 of k are not whole units of 64 in groups of 128",
        CodedWgmmaConfig(steps=3): "3 steps of 16 of k do not divide groups of 128",
        CodedWgmmaConfig(8, 5): "5 warpgroups that multiply are not 1 to 4",
        CodedWgmmaConfig(128, 3): "128 rows of A take more registers than 3 warpgroups have",
        CodedWgmmaConfig(stages=40): "bytes of shared memory",
        CodedWgmmaConfig(vector=4): "rows of 70 elements, 70 apart, are not stored 4 at a time",
    }
    for config, words in reasons.items():
        assert any(words in reason for reason in config.reasons_against(problem)), words
    assert "no multiple of 16 bytes" in SMALL.reasons_against(replace(problem, lda=257))[0]
    assert SMALL.reasons_against(problem, device("A100")) == ("A100 SXM 80 GB has no wgmma",)
