"""Orders of warps: what is wrong only where a wait is noticed late or a copy completes early is found, and again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright.errors import SimulationError
from tilewright.ir.async_stmt import TeamBarrier
from tilewright.ir.expr import Const
from tilewright.ir.kernel import Kernel
from tilewright.ir.visit import rewrite
from tilewright.ladders import LADDERS, Rung, find_rung
from tilewright.problem import check, make_operands
from tilewright.simulator import Kind, search_orders, simulate
from tilewright.toolchain import build, run_on_simulator

SIZE = (256, 512, 64)


def shared_barrier() -> Kernel:
    """hopper/best with one named barrier for both warpgroups of consumers, which each have their own."""
    kernel = build(find_rung("hopper/best").gemm(*SIZE), find_rung("hopper/best")).kernel
    return replace(
        kernel,
        body=rewrite(
            kernel.body, lambda stmt: (replace(stmt, number=Const(1)),) if isinstance(stmt, TeamBarrier) else None
        ),
    )


@pytest.mark.parametrize("seed", range(4))
def test_a_named_barrier_that_two_warpgroups_share(seed: int) -> None:
    kernel = shared_barrier()
    run = simulate(
        kernel,
        make_operands(kernel.gemm),
        listeners=(),
        on_finding="collect",
        schedule="moments",
        seed=seed,
        resident_blocks=2,
    )
    assert (run.schedule, run.seed) == ("moments", seed)
    assert {Kind.RACE} <= {finding.kind for finding in run.errors}


def test_a_finding_says_in_which_order_and_comes_again() -> None:
    kernel = shared_barrier()
    operands, messages = make_operands(kernel.gemm), []
    for _ in range(2):
        with pytest.raises(SimulationError, match="in the order schedule='moments', seed=1") as caught:
            simulate(kernel, operands, listeners=(), schedule="moments", seed=1, resident_blocks=2)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


@pytest.mark.cross_section("rung", "seed", every=4)
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("rung", LADDERS["hopper"], ids=lambda rung: rung.slug)
def test_right_kernels_are_clean_in_any_order(rung: Rung, seed: int) -> None:
    gemm = rung.gemm(264, 264, 136)
    operands = make_operands(gemm)
    computed, run = run_on_simulator(build(gemm, rung), operands, schedule="moments", seed=seed, resident_blocks=2)
    assert check(operands, computed).ok and run.errors == ()


def test_the_search_finds_a_named_barrier_that_two_warpgroups_share() -> None:
    """Also with one block for all tiles and in few orders: the warps of one warpgroup come before all of the other."""
    kernel = shared_barrier()
    found = search_orders(kernel, make_operands(kernel.gemm), resident_blocks=1)
    assert {Kind.RACE} <= {finding.kind for finding in found.errors}
    assert found.orders <= 10 and "of a search" in found.errors[0].order


@pytest.mark.cross_section("rung", every=9)
@pytest.mark.parametrize("rung", (*LADDERS["ampere"], *LADDERS["hopper"]), ids=lambda rung: rung.name)
def test_right_kernels_have_one_order(rung: Rung) -> None:
    """Their barriers leave no choice: one order of each block speaks for all. A persistent block has several tiles."""
    gemm = rung.gemm(136, 264, 72)
    kernel = build(gemm, rung).kernel
    found = search_orders(kernel, make_operands(gemm), resident_blocks=kernel.cluster)
    assert found.ok and found.complete and found.orders == found.blocks
    assert "every other order is equivalent to one of these: no race, no deadlock" in str(found)
