"""Every rung is right at awkward shapes, for every storage order, with every detector on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rung_formats import formats_for, uses_tensor_cores
from rung_runs import NEEDS_K_MAJOR, ORDERS, RUNGS, by_boxes, laid_out, rungs, simulated, takes, variants, whole_tiles
from tilewright.dtypes import F16
from tilewright.errors import ScheduleError, SimulationError
from tilewright.ir.kernel import SAFE
from tilewright.ladders import Rung, find_rung
from tilewright.lowering.variants import variant_for
from tilewright.problem import Gemm, Order, check, make_operands
from tilewright.problem.formats import format_options
from tilewright.toolchain import build, run_on_simulator

SHAPES = [
    (1, 1, 1),
    (2, 3, 5),
    (131, 67, 19),  # primes
    (127, 129, 15),  # one below and one above a tile
    (129, 255, 17),
    (257, 63, 7),  # K smaller than any tile
    (1, 300, 33),
    (300, 1, 9),
    (65, 33, 31),
    (131, 200, 71),  # rows of C that end at 16 bytes, inside a tile: TMA can store them
    (64, 128, 0),  # a sum of no products
]


def right(rung: Rung, gemm: Gemm, **options: Any) -> None:
    operands, computed, run, _ = simulated(rung, gemm, listeners=(), **options)
    verdict = check(operands, computed)
    assert verdict.ok, verdict.message
    assert not run.errors


@pytest.mark.cross_section("rung", "shape", every=29)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
@pytest.mark.parametrize("rung", rungs())
def test_awkward_shapes(rung: Rung, shape: tuple[int, int, int]) -> None:
    right(rung, rung.gemm(*shape, alpha=-0.5, beta=1.25))


@pytest.mark.cross_section("rung", every=13)
@pytest.mark.parametrize("rung", rungs())
def test_padded_leading_dimensions(rung: Rung) -> None:
    """Gaps hold NaN: whatever reads one shows it."""
    for *sizes, padding in ((132, 68, 20, 1), (132, 68, 20, 4), (136, 72, 24, 8)):  # unaligned rows, then aligned ones
        tight = rung.gemm(*sizes)
        leading = {f"ld{name.lower()}": tight.leading(name) + padding for name in ("A", "B", "C")}
        gemm = laid_out(rung, rung.gemm(*sizes, **leading))
        operands, computed, run, built = simulated(rung, gemm)
        assert built.variant.aligned == (padding > 1 or by_boxes(rung)) and not run.errors
        assert check(operands, computed).ok
        gaps = np.ones(len(run.c), bool)
        rows = np.arange(gemm.m)[:, None] * gemm.ldc + np.arange(gemm.n)
        gaps[rows.reshape(-1)] = False
        assert gaps.any() and np.isnan(gemm.out.decode(run.c[gaps])).all(), "a gap of C was written"


@pytest.mark.cross_section("rung", every=19, at=1)
@pytest.mark.parametrize("rung", rungs())
def test_factors_and_a_c_that_must_not_be_read(rung: Rung) -> None:
    for factors in ({}, {"alpha": 0.0}, {"alpha": 2.0, "beta": 1.0}, {"alpha": 0.0, "beta": -1.0}):
        gemm = rung.gemm(40, 36, 12, **factors)
        operands = make_operands(gemm)
        assert np.isnan(gemm.out.decode(operands.c)).all() == (gemm.beta == 0)
        right(rung, gemm)


@pytest.mark.cross_section("rung", "orders", every=23)
@pytest.mark.parametrize("orders", ORDERS, ids=lambda o: "".join(x.name[0] for x in o))
@pytest.mark.parametrize("rung", rungs())
def test_storage_orders(rung: Rung, orders: tuple[Order, Order, Order]) -> None:
    a, b, c = orders
    gemm = rung.gemm(68, 132, 21, a=a, b=b, c=c, beta=0.5)
    if takes(rung, gemm):
        right(rung, gemm)


@pytest.mark.parametrize("name", NEEDS_K_MAJOR)
def test_vectorised_te_rungs_refuse_row_major_a(name: str) -> None:
    rung = find_rung(name)
    step, steps = {"te/4": (22, 25), "te/5": (23, 26)}[name]
    with pytest.raises(ScheduleError) as refused:
        build(rung.gemm(128, 128, 32, a=Order.ROW), rung).kernel  # noqa: B018
    assert str(refused.value) == (
        "Cannot vectorise 'A_frag' by 4: A_tile holds neighbours along k, and of those 'A_frag' does not take a "
        "multiple of 4 in a row: it takes none of them along k.\n"
        f"  step {step} of {steps}: Vectorize('A_frag', 4)\n"
        "  Hint: Relayout('A_tile', rows='k') transposes it."
    )


@pytest.mark.cross_section("rung", every=29)
@pytest.mark.parametrize("rung", rungs())
def test_every_variant_is_right_where_it_applies(rung: Rung) -> None:
    """130 x 70 x 33 is not a multiple of anything: only the variants without exact dimensions apply."""
    gemm = laid_out(rung, rung.gemm(130, 70, 33, beta=0.5))
    true = variant_for(build(gemm, rung).program, gemm)
    for variant in variants():
        if not variant.exact and variant.alignment_bytes <= true.alignment_bytes:
            right(rung, gemm, variant=variant)
    right(rung, rung.gemm(132, 72, 36), variant=None)


@pytest.mark.cross_section("rung", every=13, at=2)
@pytest.mark.parametrize("rung", rungs())
def test_assuming_nothing_is_right_at_whole_tiles(rung: Rung) -> None:
    right(rung, rung.gemm(128, 256, 32), variant=SAFE)


@pytest.mark.cross_section("rung", every=10)
@pytest.mark.parametrize("rung", rungs())
def test_unaligned_pointers(rung: Rung) -> None:
    base_bytes = {"A": 4, "B": 8, "C": 12}
    if by_boxes(rung):
        with pytest.raises(SimulationError, match="A bulk copy is impossible: A begins at byte 4"):
            simulated(rung, rung.gemm(128, 128, 32), variant=SAFE, base_bytes=base_bytes)
        return
    right(rung, rung.gemm(128, 128, 32), variant=SAFE, base_bytes=base_bytes)


@pytest.mark.cross_section("rung", every=17, at=1)
@pytest.mark.parametrize("rung", rungs())
def test_warps_in_any_order_give_the_same_bits(rung: Rung) -> None:
    gemm = laid_out(rung, rung.gemm(35, 33, 17))
    operands = make_operands(gemm)
    built = build(gemm, rung)
    first, _ = run_on_simulator(built, operands)
    for seed in (1,) if rung.name == "te/2" else (1, 2):
        again, run = run_on_simulator(built, operands, schedule="warps", seed=seed)
        assert np.array_equal(first, again) and not run.errors


@pytest.mark.cross_section("rung", "name", every=15)
@pytest.mark.parametrize("name", ["f16", "f16_sums", "bf16"])
@pytest.mark.parametrize("rung", [param for param in rungs() if not uses_tensor_cores(find_rung(str(param.id)))])
def test_half_precision(rung: Rung, name: str) -> None:
    # te/0 keeps its sums in C, so it rounds them K times; worklog/12 refuses, see below.
    if rung.name not in ("te/0", "worklog/12"):
        right(rung, rung.gemm(130, 70, 33, beta=0.5, **format_options(name)))


TENSOR_FORMATS = [
    pytest.param(rung, name, id=f"{rung.name}-{name}")
    for rung in RUNGS
    if uses_tensor_cores(rung)
    for name in formats_for(rung)
]


@pytest.mark.cross_section("rung", "name", every=31)
@pytest.mark.parametrize(("rung", "name"), TENSOR_FORMATS)
def test_tensor_cores_in_every_format_and_order(rung: Rung, name: str) -> None:
    """Whole tiles, of which the rung makes claims, in every other order of a format and the others of the next; and
    edges, for C in either order."""
    for at, (a, b, c) in enumerate(ORDERS, start=formats_for(rung).index(name)):
        options = {"a": a, "b": b, "c": c, **format_options(name)}
        if not takes(rung, rung.gemm(1, 1, 1, **options)):
            continue
        if c is Order.ROW and at % 4 < 2:
            gemm = rung.gemm(*whole_tiles(rung), **options)
            operands, computed, run, _ = simulated(rung, gemm)
            assert check(operands, computed).ok and not run.errors
            assert not [claim.sentence for claim in rung.claims if not claim.holds(run.counters, gemm)]
        if (c is Order.ROW) == (a is b):
            right(rung, rung.gemm(131, 67, 45, beta=0.5, **options))


def test_two_byte_copies_are_refused() -> None:
    rung = find_rung("worklog/12")
    with pytest.raises(ScheduleError) as refused:
        build(rung.gemm(128, 128, 32, dtype=F16, out=F16), rung).kernel  # noqa: B018
    assert str(refused.value) == (
        "Cannot copy 'A_tile' by cp.async: 'A_tile' keeps neighbours of A apart, so 2 bytes would be copied at once, "
        "and cp.async moves 4, 8 or 16.\n"
        "  step 24 of 33: Transfer('A_tile', Route.ASYNC)\n"
        "  Hint: leave the tile as the operand lies, or copy it through registers."
    )
