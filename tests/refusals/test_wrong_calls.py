"""Values of a wrong kind, given to the functions of the package, are refused in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.schedule import diff

GEMM = tw.Gemm(8, 8, 8)
ONES = np.ones((8, 8), np.float32)


def simulated(**options: Any) -> Any:
    return tw.build(GEMM, tw.Schedule()).simulate(tw.make_operands(GEMM), **options)


def watched(**options: Any) -> Any:
    return tw.watch(tw.build(GEMM, tw.Schedule()), **options)


REFUSED: list[tuple[Callable[..., Any], str]] = [
    (lambda: tw.Gemm(True, 8, 8), "m = True is not a matrix size."),
    (lambda: tw.Gemm(8, 8, 8, lda="9"), "lda = '9' is not a leading dimension."),  # type: ignore[arg-type]
    (lambda: tw.Gemm(8, 8, 8, lda=9.5), "lda = 9.5 is not a leading dimension."),  # type: ignore[arg-type]
    (lambda: tw.Gemm(8, 8, 8, alpha="2"), "alpha = '2' is not a number."),  # type: ignore[arg-type]
    (lambda: tw.Gemm(8, 8, 8, beta=1j), "beta = 1j is not a number."),  # type: ignore[arg-type]
    (lambda: tw.Gemm(8, 8, 8, alpha=1e39), "alpha = 1e+39 is more than f32 can hold, in which kernels take it."),
    (lambda: tw.Gemm(8, 8, 8, alpha=10**400), "alpha is more than f32 can hold, in which kernels take it."),
    (lambda: tw.Gemm(8, 8, 8, dtype="f16"), "dtype = 'f16' is not a number format."),  # type: ignore[arg-type]
    (lambda: tw.Gemm(8, 8, 8, dtype=None), "dtype = None is not a number format."),  # type: ignore[arg-type]
    (lambda: tw.Gemm(8, 8, 8, out=np.float32), f"out = {np.float32!r} is not a number format."),  # type: ignore[arg-type]
    (lambda: tw.Gemm(8, 8, 8, product=3), "product = 3 is not a number format."),  # type: ignore[arg-type]
    (lambda: tw.Gemm(8, 8, 8, a="ROW"), "a = 'ROW' is not an Order."),  # type: ignore[arg-type]
    (lambda: tw.Gemm(8, 8, 8, epilogue="gelu"), "epilogue = 'gelu' is not an Epilogue."),  # type: ignore[arg-type]
    (lambda: tw.build((8, 8, 8), tw.Schedule()), "The problem to build is a Gemm, not (8, 8, 8)."),  # type: ignore[arg-type]
    (lambda: tw.build(GEMM, "worklog/6"), "'worklog/6' is not a schedule."),  # type: ignore[arg-type]
    (lambda: tw.build(GEMM, None), "None is not a schedule."),  # type: ignore[arg-type]
    (lambda: tw.build(GEMM, [tw.Epilogue()] * 30), "A list is not a schedule."),  # type: ignore[arg-type]
    (lambda: tw.build(tw.Schedule(), GEMM), "The problem to build is a Gemm, not a Schedule."),  # type: ignore[arg-type]
    (lambda: tw.build(GEMM, tw.Schedule()).after(1), "There is no step 1: gemm has 0 steps."),
    (lambda: tw.build(GEMM, tw.Schedule()).after("x"), "There is no step 'x': gemm has 0 steps."),  # type: ignore[arg-type]
    (
        lambda: tw.build(GEMM, tw.Schedule()).occupancy("H200", "sm_90"),  # type: ignore[arg-type]
        "Occupancy follows from machine code, and this is a str.",
    ),
    (lambda: diff(tw.Schedule(), []), "Schedules are compared, and this is a list."),  # type: ignore[arg-type]
    (lambda: tw.build(GEMM, tw.Schedule(), variant="exact"), "'exact' is not a Variant."),  # type: ignore[arg-type]
    (
        lambda: tw.build(GEMM, tw.Schedule(), variant=tw.Variant(exact=frozenset("z"))),  # type: ignore[arg-type]
        "exact = frozenset({'z'}) are not dimensions.",
    ),
    (
        lambda: tw.build(GEMM, tw.Schedule(), variant=tw.Variant(alignment_bytes=3)),
        "alignment_bytes = 3 is not one of (1, 2, 4, 8, 16).",
    ),
    (
        lambda: tw.build(GEMM, tw.Schedule(), variant=tw.Variant(result_bytes="x")),  # type: ignore[arg-type]
        "result_bytes = 'x' is not one of (0, 1, 2, 4, 8, 16).",
    ),
    (lambda: tw.build(tw.Gemm(2**31 - 1, 1, 1), tw.Schedule()), "m = 2147483647 is more than 2147418111."),
    (lambda: tw.build(GEMM, tw.Schedule(), name=3), "name = 3 is not a text."),  # type: ignore[arg-type]
    (
        lambda: tw.plan((10**30, 2), (2, 2), device="H200"),
        f"A result of shape ({10**30}, 2) has more than 2**40 elements, and no GPU holds so many.",
    ),
    (lambda: tw.make_operands(8), "Operands are made of a Gemm, not of 8."),  # type: ignore[arg-type]
    (lambda: tw.make_operands(GEMM, seed=-1), "seed = -1 is not a seed."),
    (lambda: tw.make_operands(GEMM, seed=1.5), "seed = 1.5 is not a seed."),  # type: ignore[arg-type]
    (
        lambda: tw.make_operands(tw.Gemm(8, 8, 8, lda=10**20)),
        "lda = 100000000000000000000 is more than kernels take.",
    ),
    (
        lambda: tw.simulate(tw.build(GEMM, tw.Schedule()), tw.make_operands(GEMM)),  # type: ignore[arg-type]
        "A Kernel can be simulated, and this is a Build.",
    ),
    (
        lambda: tw.build(GEMM, tw.Schedule()).simulate(GEMM),  # type: ignore[arg-type]
        "A kernel is simulated on Operands, and this is a Gemm.",
    ),
    (lambda: simulated(schedule="lockstp"), "There is no schedule 'lockstp'."),
    (lambda: simulated(schedule=3), "There is no schedule '3'."),
    (lambda: simulated(seed="x"), "seed = 'x' is not a seed."),
    (lambda: simulated(schedule="warps", seed=-1), "seed = -1 is not a seed."),
    (lambda: simulated(on_finding="explode"), "There is no on_finding 'explode'."),
    (lambda: simulated(listeners=[7]), "7 is not a Listener."),
    (lambda: simulated(blocks=3), "3 are not blocks of a grid."),
    (lambda: simulated(blocks=[0]), "[0] are not blocks of a grid."),
    (lambda: simulated(blocks=[(0, 0, 9)]), "Block (0, 0, 9) is not in the grid (1, 1, 1)."),
    (lambda: tw.watch(GEMM), "A Build is watched, not a Gemm."),  # type: ignore[arg-type]
    (lambda: watched(block=5), "[5] are not blocks of a grid."),
    (lambda: watched(block=(0,)), "[(0,)] are not blocks of a grid."),
    (lambda: watched(block=(0, 9, 0)), "Block (0, 9, 0) is not in the grid (1, 1, 1)."),
    (lambda: watched(without="x"), "There is no line 'x': the kernel has 17."),
    (lambda: watched(schedule="x"), "There is no schedule 'x'."),
    (lambda: watched(most_moments=0), "most_moments = 0 is not a number of steps."),
    (lambda: watched(most_moments="x"), "most_moments = 'x' is not a number of steps."),
    (lambda: tw.check(tw.make_operands(GEMM), ONES, result="D"), "There is no result 'D'."),
    (
        lambda: tw.check(tw.make_operands(GEMM), ONES, promote_every=-3),
        "promote_every = -3 is not a number of products.",
    ),
    (
        lambda: tw.relayout_auto(GEMM, tw.find_rung("worklog/6").schedule, "A_tile"),  # type: ignore[arg-type]
        "A layout is searched for a Gemm and a Schedule, and this is a function.",
    ),
    (lambda: tw.plan((8, 8), (8, 8), device="H20"), "There is no device 'H20'."),
    (lambda: tw.plan((8, 8), (8, 8), device=3), "There is no device '3'."),  # type: ignore[arg-type]
    (lambda: tw.grouped_matmul(None, None), "grouped_matmul takes a list of matrices as a, and this is a NoneType."),
    (
        lambda: tw.grouped_matmul([ONES], 4),
        "grouped_matmul takes a list of matrices as b, and this is an int.",
    ),
    (
        lambda: tw.plan((8, 8), (8, 8), device="H200", epilogue=lambda x: x * 10**400),
        "The function computes with a number that float64 cannot hold.",
    ),
    (lambda: tw.ops.exp("x"), "A function of tilewright.ops was given a str, not a number."),
    (lambda: tw.check(GEMM, ONES), "Results are held against Operands, not a Gemm."),  # type: ignore[arg-type]
    (lambda: tw.check(tw.make_operands(GEMM), "C"), "A str is not a matrix of numbers."),  # type: ignore[arg-type]
    (lambda: tw.matmul(ONES, None), "b is a NoneType, and a is an array of NumPy."),
]


@pytest.mark.parametrize(("call", "told"), REFUSED, ids=[told for _, told in REFUSED])
def test_it_is_refused_in_words(call: Callable[..., Any], told: str) -> None:
    with pytest.raises(tw.TilewrightError) as refused:
        call()
    assert refused.value.headline == told


def test_sizes_may_be_integers_of_numpy() -> None:
    gemm = tw.Gemm(np.int64(8), np.int32(8), 8, lda=np.int64(12))  # type: ignore[arg-type]
    assert gemm == tw.Gemm(8, 8, 8, lda=12)
    assert type(gemm.m) is int and type(gemm.lda) is int


@pytest.mark.parametrize("alpha", [float("inf"), float("nan"), 2, np.float32(0.5)])
def test_factors_may_be_any_real_number(alpha: float) -> None:
    assert tw.Gemm(8, 8, 8, alpha=alpha).alpha is alpha
