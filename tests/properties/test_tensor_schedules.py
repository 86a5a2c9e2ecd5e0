"""Random schedules for tensor cores, of Hopper and before, compute the product, with every detector on."""

from __future__ import annotations

import random

from hypothesis import given, note, settings
from hypothesis import strategies as st

from tests.lowering.traffic import Traffic, check_product, check_table
from tests.random_hopper_schedules import random_hopper_gemm, random_hopper_schedule
from tests.random_schedules import Drawing, random_variant
from tests.random_tensor_schedules import random_tensor_gemm, random_tensor_schedule
from tests.strategies import NO_SHRINKING, budget
from tilewright.errors import LoweringError
from tilewright.problem import Gemm, check, make_operands
from tilewright.schedule import from_json, to_json
from tilewright.toolchain import build, run_on_simulator

RANDOM = st.integers(0, 2**32).map(random.Random)
ORDERS = st.sampled_from(("lockstep", "warps"))


def assert_right(rng: random.Random, gemm: Gemm, drawing: Drawing, order: str, *, whole_tiles: bool = False) -> None:
    """whole_tiles: a block loads its tiles of A and B once, and nothing else."""
    variant = random_variant(rng, drawing.program, gemm)
    note(f"{gemm!r}\n{drawing.schedule.text}\n{variant!r}")
    assert from_json(to_json(drawing.schedule)) == drawing.schedule
    built = build(gemm, drawing.schedule, variant=variant)
    try:
        assert built.cuda
    except LoweringError as error:
        assert error.headline.startswith(("The shared tiles take", "Rows of")), str(error)
        return
    operands = make_operands(gemm)
    room = rng.choice((None, 1, 2)) if built.kernel.cluster == 1 else None  # persistent blocks have several tiles then
    traffic = Traffic(operands)
    options = {"schedule": order, "resident_blocks": room, "listeners": (traffic,)}
    computed, run = run_on_simulator(built, operands, **options)
    verdict = check(operands, computed)
    assert verdict.ok, verdict.message
    assert run.errors == ()
    if whole_tiles:
        check_product(traffic, built)
    else:
        check_table(traffic.writes["C"], gemm, "C", 1)


@given(RANDOM, ORDERS)
@settings(max_examples=budget(14), phases=NO_SHRINKING)
def test_warps_compute_the_product(rng: random.Random, order: str) -> None:
    gemm = random_tensor_gemm(rng)
    assert_right(rng, gemm, random_tensor_schedule(rng, gemm), order)


@given(RANDOM, ORDERS)
@settings(max_examples=budget(10), phases=NO_SHRINKING)
def test_warpgroups_and_tma_compute_the_product(rng: random.Random, order: str) -> None:
    gemm = random_hopper_gemm(rng)
    assert_right(rng, gemm, random_hopper_schedule(rng, gemm), order, whole_tiles=True)
