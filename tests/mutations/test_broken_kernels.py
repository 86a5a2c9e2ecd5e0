"""Break each rung's kernel in one place: whatever orders or guards an access, its loss is noticed."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from rung_formats import uses_tensor_cores
from rung_runs import NEEDS_K_MAJOR, RUNGS
from tests.mutations.broken import branches, edited, in_memory, needless_guards, run_of, without
from tilewright.errors import SimulationError
from tilewright.ir.kernel import Kernel, Variant
from tilewright.ir.stmt import Barrier, Move, WaitCopies
from tilewright.ir.text import stmt_text
from tilewright.ir.visit import Path, walk
from tilewright.ladders import Rung, find_rung
from tilewright.problem import Gemm, Operands, check, make_operands
from tilewright.problem.reference import view
from tilewright.simulator import simulate
from tilewright.toolchain import build
from tilewright.units import ceil_div

WHOLE = (128, 128, 64)
WHOLE_OF_TENSOR_CORES = (128, 128, 256)
"""Whole tiles, and enough of them along k for every stage of a ring to be used twice."""

ORDERED_ANYHOW = ("hopper/1-0", "hopper/2-1")
"""Barriers that say when a tile has been read. The block is one warpgroup, which reads by products only: whoever has
waited for those knows that all four warps have."""

UNORDERED = "^Race on |is read before any thread wrote it|is used before it is"
"""What a run without a barrier finds first, which ends it: a race, a read of unwritten memory, an early mbarrier."""

EDGE_SHAPES = ((70, 5), (70, 29), (70, 45))
"""m and k, no multiples of any tile: less than one step over k, an even and an odd number of them, the last one short.
The quickest first: it finds most."""

EDGE_SHAPES_OF_TENSOR_CORES = tuple((70, k) for k in (5, 29, 45, 77, 173, 125))
"""Their tiles are deeper, and a ring of four stages copies three before its loop: k ends in each of them, and later, in
the first half of a tile and in the second, which are copied by different statements where copies are spread."""

COPIED_ASYNCHRONOUSLY = (
    "worklog/12", "swizzle/async_copy", "swizzle/block_order", "swizzle/stages_2", "swizzle/stages_3",
    "swizzle/stages_4", "swizzle/layers", "ampere/4", "ampere/5", "ampere/6",
)  # fmt: skip
"""By cp.async. Named here, so that collecting tests lowers no kernel."""

ORDERS: tuple[Any, ...] = ("lockstep", "moments")


def problems(rung: Rung) -> tuple[Gemm, ...]:
    """Problems whose operands have gaps that hold NaN, with and without a C that must be read."""
    shapes = EDGE_SHAPES_OF_TENSOR_CORES if uses_tensor_cores(rung) else EDGE_SHAPES
    by_tma = any(known.operand == "C" for known in kernel_of(rung).maps)
    columns = 72 if by_tma else 66  # TMA stores rows that end at multiples of 16 bytes
    return tuple(padded(rung, (m, columns, k), beta) for m, k in shapes for beta in (0.5, 0.0))


def padded(rung: Rung, shape: tuple[int, int, int], beta: float) -> Gemm:
    tight = rung.gemm(*shape, beta=beta)
    each = {operand.name: 16 // operand.dtype.bytes for operand in tight.operands}
    lda, ldb, ldc = ((ceil_div(tight.leading(name), each[name]) + 1) * each[name] for name in each)
    return rung.gemm(*shape, beta=beta, lda=lda, ldb=ldb, ldc=ldc)


def is_noticed(kernel: Kernel, operands: Operands) -> bool:
    """Whether a run breaks a rule, gives a wrong result, or writes into a gap of C."""
    run, gemm = run_of(kernel, operands, schedule="lockstep"), operands.gemm
    if run is None:
        return True
    if not check(operands, gemm.out.decode(view(gemm, "C", run.c))).ok:
        return True
    gaps = np.ones(len(run.c), bool)
    gaps[(np.arange(gemm.m)[:, None] * gemm.ldc + np.arange(gemm.n)).reshape(-1)] = False
    return not np.isnan(gemm.out.decode(run.c[gaps])).all()


def whole(rung: Rung) -> Gemm:
    return rung.gemm(*(WHOLE_OF_TENSOR_CORES if uses_tensor_cores(rung) else WHOLE))


def kernel_of(rung: Rung, variant: Variant | None = None) -> Kernel:
    return _kernel_named(rung.name, variant)


@cache
def _kernel_named(name: str, variant: Variant | None) -> Kernel:
    rung = find_rung(name)
    return build(whole(rung), rung, variant=variant).kernel


def places(rung: Rung, kind: type) -> list[Path]:
    """Every statement of a kind in a rung's kernel."""
    return [path for path, stmt in walk(kernel_of(rung).body) if isinstance(stmt, kind)]


@pytest.mark.cross_section("rung", every=19)
@pytest.mark.parametrize("rung", [pytest.param(rung, id=rung.name) for rung in RUNGS])
def test_each_missing_barrier_is_a_race(rung: Rung) -> None:
    """However the warps happen to be scheduled."""
    operands = make_operands(whole(rung))
    for number, path in enumerate(places(rung, Barrier)):
        if f"{rung.name}-{number}" in ORDERED_ANYHOW:
            continue
        broken = without(kernel_of(rung), path)
        for order in ORDERS:
            with pytest.raises(SimulationError, match=UNORDERED):
                simulate(broken, operands, listeners=(), schedule=order)


@pytest.mark.parametrize("name", ORDERED_ANYHOW)
def test_products_order_what_a_barrier_would(name: str) -> None:
    rung, number = name.split("-")
    kernel = kernel_of(find_rung(rung))
    path = places(find_rung(rung), Barrier)[int(number)]
    operands = make_operands(kernel.gemm)
    for order in ORDERS:
        assert not simulate(without(kernel, path), operands, listeners=(), schedule=order).errors


@pytest.mark.cross_section("rung", every=4)
@pytest.mark.parametrize("rung", [pytest.param(find_rung(name), id=name) for name in COPIED_ASYNCHRONOUSLY])
def test_each_missing_wait_is_found(rung: Rung) -> None:
    """Without the wait, or with one group too many under way, data are read before they have arrived."""
    kernel, operands = kernel_of(rung), make_operands(whole(rung))

    def late(stmt: Any) -> Any:
        return (replace(stmt, pending=stmt.pending + 1),)

    assert places(rung, WaitCopies)
    for path in places(rung, WaitCopies):
        for broken in (without(kernel, path), edited(kernel, path, late)):
            assert run_of(broken, operands) is None


@pytest.mark.slow
def test_these_are_the_rungs_that_copy_asynchronously() -> None:
    assert tuple(rung.name for rung in RUNGS if places(rung, WaitCopies)) == COPIED_ASYNCHRONOUSLY


@pytest.mark.cross_section("rung", "aligned", every=41, at=24)
@pytest.mark.parametrize("aligned", [True, False], ids=["aligned", "unaligned"])
@pytest.mark.parametrize("rung", [pytest.param(rung, id=rung.name) for rung in RUNGS])
def test_each_part_of_each_guard_is_needed(rung: Rung, aligned: bool) -> None:
    kernel = kernel_of(rung, Variant(alignment_bytes=16 if aligned else 1))
    needless = needless_guards(kernel, [make_operands(gemm) for gemm in problems(rung)], is_noticed)
    assert not needless, "\n".join(needless)


@pytest.mark.cross_section("rung", every=7)
@pytest.mark.parametrize("rung", [pytest.param(rung, id=rung.name) for rung in RUNGS])
def test_each_vector_access_at_an_edge_is_needed_one_by_one(rung: Rung) -> None:
    """The wide side of a branch alone leaves the matrix; the side of single elements alone is slow but right."""
    kernel = kernel_of(rung, Variant())
    operands = [make_operands(gemm) for gemm in problems(rung)]
    for path, branch in branches(kernel):
        wide = edited(kernel, path, lambda stmt, branch=branch: branch.then)  # type: ignore[misc]
        assert any(is_noticed(wide, o) for o in operands), stmt_text(branch)


@pytest.mark.cross_section("name", every=5)
@pytest.mark.parametrize("name", COPIED_ASYNCHRONOUSLY)
def test_each_count_of_an_asynchronous_copy_is_needed(name: str) -> None:
    rung = find_rung(name)
    kernel = kernel_of(rung, Variant())
    operands = [make_operands(gemm) for gemm in problems(rung)]
    counted = [path for path, stmt in walk(kernel.body) if isinstance(stmt, Move) and stmt.valid is not None]
    assert counted
    for path in counted:
        broken = edited(kernel, path, lambda stmt: (replace(stmt, valid=None),))
        assert any(is_noticed(broken, o) for o in operands)


@pytest.mark.cross_section("rung", every=13)
@pytest.mark.parametrize("rung", [pytest.param(rung, id=rung.name) for rung in RUNGS if rung.name not in NEEDS_K_MAJOR])
def test_wide_accesses_to_unaligned_operands_are_found(rung: Rung) -> None:
    """What `aligned` promises must be true: a kernel that assumes it is wrong where a pointer is off by an element."""
    kernel, operands = kernel_of(rung, Variant()), make_operands(whole(rung))
    touched = [in_memory(s).buffer.name for _, s in walk(kernel.body) if isinstance(s, Move) and s.width > 1]
    for name in {"A", "B", "C"} & set(touched):
        base_bytes = {name: operands.gemm.operand(name).dtype.bytes}
        with pytest.raises(SimulationError, match="not at a multiple of"):
            simulate(kernel, operands, listeners=(), base_bytes=base_bytes)  # type: ignore[arg-type]
