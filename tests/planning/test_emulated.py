"""Products of f32 operands by their pieces: whole plans on the simulator, against the bound of their algorithm."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest
from simulated import computed, simulated_dispatcher

from tilewright.codegen import print_cuda
from tilewright.dtypes import F32, Array
from tilewright.errors import LaunchError
from tilewright.ir.async_stmt import WaitPreviousGrid
from tilewright.ir.guard import Guard
from tilewright.ir.visit import walk
from tilewright.planning.assembly import Request
from tilewright.planning.dispatch import Dispatcher
from tilewright.planning.emulated import of_pieces
from tilewright.planning.packing import Alignment, Stack
from tilewright.planning.plan import Place, Role
from tilewright.problem import Activation, Epilogue, Gemm, Operands, make_operands
from tilewright.problem.emulation import ALGORITHMS, BF16X6, F16X3, TF32X3, Algorithm, f32_units
from tilewright.problem.gemm import orders_of
from tilewright.problem.reference import view
from tilewright.toolchain import grid_of

U = 2.0**-24
DISPATCHER = simulated_dispatcher()


def fallen_back_on(how: Algorithm | None) -> Dispatcher:
    """A dispatcher that estimates the pieces that need a guard to be faster, at sizes that are fast to simulate. how:
    what it then falls back on; None for f32 arithmetic."""
    found = simulated_dispatcher()
    others_us = float("inf") if how is None else 1e-3
    found._pieces_us = lambda request: 0 if request.fallback else others_us  # type: ignore[method-assign]
    return found


GUARDED, GUARDED_BY_F32 = fallen_back_on(BF16X6), fallen_back_on(None)


def alignment_of(gemm: Gemm) -> Alignment:
    rows = [gemm.leading(operand.name) * 4 for operand in gemm.operands]
    return Alignment(*(min(row & -row, 16) for row in rows))


def share_of_bound(gemm: Gemm, how: Algorithm, a: Array, b: Array, c: Array) -> float:
    """The largest error of an element, as a share of the bound."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    bound = how.units(gemm.k) * U * (abs(a) @ abs(b)) + how.underflow(gemm.k, abs(a).max(1), abs(b).max(0))
    return float((abs(c - a @ b) / bound).max())


def assert_within_bound(request: Request, operands: Operands | None = None) -> None:
    gemm = request.gemm
    operands = operands or make_operands(gemm)
    c = view(gemm, "C", computed(DISPATCHER, request, operands))
    assert request.algorithm is not None
    share = share_of_bound(gemm, request.algorithm, operands.matrix("A"), operands.matrix("B"), c)
    assert share <= 1, share


def request_of(gemm: Gemm, how: Algorithm | None, **more: Any) -> Request:
    return Request(gemm, alignment_of(gemm), algorithm=how, **more)


@pytest.mark.cross_section("how", "orders", every=5)
@pytest.mark.parametrize("orders", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("how", ALGORITHMS.values(), ids=str)
def test_every_algorithm_in_every_order(how: Algorithm, orders: str) -> None:
    a, b = orders_of(orders)
    for m, n, k in ((65, 40, 130), (1, 9, 3), (33, 130, 65)):
        assert_within_bound(request_of(Gemm(m, n, k, a=a, b=b), how))


def test_pieces_lie_behind_the_copy_that_they_are_made_of() -> None:
    """wgmma reads pieces of tf32 along k only: B of shape (k, n) is transposed before it is split."""
    plan = DISPATCHER.plan(request_of(Gemm(65, 40, 130), TF32X3))
    copy, split = plan.steps[1:3]
    assert (copy.role, split.role) == (Role.TRANSPOSE, Role.SPLIT) and split.pointers[0] == copy.pointers[1]
    (_, begins), (place, pieces) = split.pointers[:2]
    assert place is Place.SCRATCH and pieces >= begins + 40 * 132 * F32.bytes


def test_a_batch_of_pieces_steps_through_the_matrices_of_the_epilogue() -> None:
    gemm = Gemm(64, 64, 64, epilogue=Epilogue(residual=True), beta=1.0)
    inner = of_pieces(request_of(gemm, F16X3, stack=Stack(3, 4096, 4096, 4096, (8192,))))
    assert inner.stack is not None
    assert dict(zip([one.name for one in inner.gemm.added], inner.stack.added, strict=True))["residual"] == 8192


def test_leading_dimensions_and_a_sum_of_many_parts() -> None:
    """A small C over a long k is computed by split-K."""
    request = request_of(Gemm(20, 24, 1500, lda=1504, ldb=28, ldc=30), BF16X6)
    plan = DISPATCHER.plan(request)
    assert "split_k" in plan.words, plan.words
    assert_within_bound(request)
    assert_within_bound(replace(request, algorithm=F16X3))


def test_the_epilogue_and_the_factors_are_those_of_any_product() -> None:
    gemm = Gemm(40, 24, 70, alpha=-2.0, beta=0.5, epilogue=Epilogue("n", True, Activation.RELU))
    operands = make_operands(gemm)
    a, b, residual, bias = (
        operands.matrix(name).astype(np.float64)  # type: ignore[arg-type]
        for name in ("A", "B", "residual", "bias")
    )
    expected = np.maximum(0, -2 * (a @ b) + 0.5 * residual + bias)
    scale = 2 * abs(a) @ abs(b) + abs(residual) + abs(bias)
    for how in (BF16X6, F16X3):
        c = view(gemm, "C", computed(DISPATCHER, request_of(gemm, how), operands))
        assert (abs(c - expected) <= (how.units(70) + 4) * U * scale).all()


def test_rows_and_columns_of_any_magnitude_by_scaled_pieces() -> None:
    """Each row and column has a binade of its own; one row is zero, one subnormal."""
    gemm = Gemm(20, 24, 40)
    operands = make_operands(gemm)
    rng = np.random.default_rng(3)
    a, b = operands.a.reshape(20, 40), operands.b.reshape(40, 24)
    a *= np.exp2(rng.integers(-100, 60, (20, 1))).astype(np.float32)
    b *= np.exp2(rng.integers(-20, 60, (1, 24))).astype(np.float32)
    a[3], a[4] = 0, np.float32(1e-40)
    assert_within_bound(request_of(gemm, F16X3), operands)


@pytest.mark.cross_section("how", "shared", every=3)
@pytest.mark.parametrize("how", [BF16X6, TF32X3, F16X3], ids=str)
@pytest.mark.parametrize("shared", ["", "A", "B"])
def test_batches(how: Algorithm, shared: str) -> None:
    gemm, count = Gemm(24, 20, 40), 3
    each = [make_operands(gemm, seed=seed) for seed in range(count)]
    each = [replace(one, **{name.lower(): each[0].storage(name) for name in shared}) for one in each]
    flat = {n: np.concatenate([one.storage(n) for one in each[: 1 if n in shared else count]]) for n in "ABC"}
    steps = [0 if name in shared else flat[name].size // count for name in "ABC"]
    request = replace(request_of(gemm, how), stack=Stack(count, *steps))
    c = computed(DISPATCHER, request, Operands(gemm, flat["A"], flat["B"], flat["C"])).reshape(count, 24, 20)
    for number, one in enumerate(each):
        assert share_of_bound(gemm, how, one.matrix("A"), one.matrix("B"), c[number]) <= 1


def test_infinities_and_nan_are_those_of_f32() -> None:
    gemm = Gemm(12, 8, 20)
    operands = make_operands(gemm)
    a, b = operands.a.reshape(12, 20), operands.b.reshape(20, 8)
    a[0, 3], a[1, 4], a[2, 5], a[3, 0] = np.inf, -np.inf, np.nan, np.inf
    a[4, 7], b[7, 2], b[4, 3], b[3, 4] = 0.0, np.inf, 0.0, 1e-42
    a[5, :], a[5, 9], b[9, :] = 0.0, np.float32(3.4028235e38), np.linspace(-0.9, 0.9, 8)
    with np.errstate(all="ignore"):
        expected = a @ b
    for how in ALGORITHMS.values():
        c = view(gemm, "C", computed(DISPATCHER, request_of(gemm, how), operands))
        np.testing.assert_array_equal(np.isnan(c), np.isnan(expected))
        np.testing.assert_array_equal(np.where(np.isinf(c), c, 0), np.where(np.isinf(expected), expected, 0))


def test_f32_arithmetic_where_that_is_faster() -> None:
    small, large = (Gemm(size, size, size) for size in (64, 4096))
    words = {gemm.m: DISPATCHER.plan(request_of(gemm, BF16X6, or_f32=True)).words for gemm in (small, large)}
    assert words[64].startswith("simt") and words[4096].startswith("bf16x6"), words


def guarded(gemm: Gemm, **more: Any) -> Request:
    """As f32_emulated asks, whatever is estimated to be faster."""
    return request_of(gemm, F16X3, fallback=BF16X6, **more)


@pytest.mark.cross_section("shape", every=2)
@pytest.mark.parametrize("shape", [(20, 24, 1100), (130, 70, 1030)])
def test_the_device_chooses_by_how_many_binades_operands_span(shape: tuple[int, int, int]) -> None:
    """One number of either operand decides; the other plan's launches end at once."""
    gemm = Gemm(*shape)
    in_f32 = request_of(gemm, None, without_workspace=True)
    others = ((GUARDED, request_of(gemm, BF16X6), "bf16x6"), (GUARDED_BY_F32, in_f32, DISPATCHER.plan(in_f32).words))
    for dispatcher, _, way in others:
        plan = dispatcher.plan(guarded(gemm))
        assert plan.way == "f16x3" and plan.other_way == way and f"{way} where" in plan.words
    operands = make_operands(gemm)
    scaled, split = (computed(DISPATCHER, request_of(gemm, how), operands) for how in (F16X3, BF16X6))
    assert (scaled != split).any()
    np.testing.assert_array_equal(computed(GUARDED, guarded(gemm), operands), scaled)
    for name in "AB":
        deep = make_operands(gemm)
        deep.storage(name)[7] = 2.0**-40
        for dispatcher, other, _ in others:
            found = computed(dispatcher, guarded(gemm), deep)
            np.testing.assert_array_equal(found, computed(DISPATCHER, other, deep))


@pytest.mark.parametrize("dispatcher", [GUARDED, GUARDED_BY_F32], ids=["bf16x6", "f32"])
def test_every_thread_that_waits_asks_the_flags(dispatcher: Dispatcher) -> None:
    """One kernel decides, in front of all that follow it; splitting reads no flag."""
    plan = dispatcher.plan(guarded(Gemm(20, 24, 1100)))
    guards = [step.guard for step in plan.steps if step.guard is not None]
    assert guards[0] is Guard.DECIDES and Guard.DECIDES not in guards[1:] and guards[-1] is Guard.RAISED
    for step in plan.steps:
        launch: Any = step.launch
        waits = [stmt for _, stmt in walk(launch.kernel.body) if isinstance(stmt, WaitPreviousGrid)]
        assert waits and {wait.guard for wait in waits} == {step.guard} == {launch.kernel.variant.guard}
        text = print_cuda(launch.kernel).text
        assert text.count("if (!wait_and_") == (len(waits) if step.guard else 0), step.what


@pytest.mark.parametrize("how", [F16X3, BF16X6], ids=str)
@pytest.mark.parametrize("rows", [8, 32, 64])
def test_blocks_of_other_launches_fit_beside_those_that_read_prepared_pieces(how: Algorithm, rows: int) -> None:
    """One block an SM, on nearly all of them, that takes about two thirds of its shared memory."""
    _, product = DISPATCHER.plan(request_of(Gemm(rows, 4096, 4096), how, prepared=True)).steps
    launch: Any = product.launch
    share = launch.kernel.shared_bytes / DISPATCHER.spec.shared_bytes_per_sm
    assert launch.kernel.overlapped and 0.49 < share < 0.75, share
    assert 0.9 < prod(grid_of(launch.kernel, launch.problem)) / DISPATCHER.spec.sm_count <= 1


def test_one_matrix_of_a_batch_decides_for_all() -> None:
    gemm, count = Gemm(12, 16, 1024), 2
    each = [make_operands(gemm, seed=seed) for seed in range(count)]
    flat = {name: np.concatenate([one.storage(name) for one in each]) for name in "ABC"}
    stack = Stack(count, *(flat[name].size // count for name in "ABC"))
    for deep, how in ((1.0, F16X3), (2.0**-40, BF16X6)):
        flat["B"][-3] = deep
        operands = Operands(gemm, flat["A"], flat["B"], flat["C"])
        expected = computed(DISPATCHER, request_of(gemm, how, stack=stack), operands)
        np.testing.assert_array_equal(computed(GUARDED, guarded(gemm, stack=stack), operands), expected)


def test_guarded_results_keep_the_bound_of_f32() -> None:
    gemm = Gemm(12, 8, 1024)
    rng = np.random.default_rng(5)
    for binades in (10, 30, 60):
        operands = make_operands(gemm)
        for values in (operands.a, operands.b):
            drawn = np.exp2(rng.uniform(-binades / 2, binades / 2, values.size))
            values[:] = drawn * rng.choice([-1.0, 1.0], values.size)
        c = view(gemm, "C", computed(GUARDED, guarded(gemm), operands))
        a, b = (operands.matrix(name).astype(np.float64) for name in ("A", "B"))  # type: ignore[arg-type]
        assert (abs(c - a @ b) <= f32_units(1024) * U * (abs(a) @ abs(b))).all()


@pytest.mark.parametrize("binades", [(-149, -140), (-128, -100), (-149, 100)])
def test_rows_and_columns_of_subnormal_numbers_are_multiplied_as_any_others(binades: tuple[int, int]) -> None:
    """Each row and each column has a binade of its own: all below the range of f32, or beside rows within it."""
    gemm = Gemm(12, 8, 1024)
    rng = np.random.default_rng(7)
    operands = make_operands(gemm)
    a, b = operands.a.reshape(12, 1024), operands.b.reshape(1024, 8)
    first = rng.integers(*binades, 12)
    a[...] = np.ldexp(rng.integers(1, 2**9, a.shape), first[:, None])
    b[...] = rng.standard_normal(b.shape) * 2.0**20
    expected = computed(DISPATCHER, request_of(gemm, F16X3), operands)
    np.testing.assert_array_equal(computed(GUARDED, guarded(gemm), operands), expected)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    errors = np.linalg.norm(view(gemm, "C", expected) - exact, axis=1) - 2.0**-149 * 8
    assert (errors < 3e-7 * np.linalg.norm(exact, axis=1)).all()


def test_one_order_of_summation_does_not_depend_on_rows() -> None:
    few, many = (request_of(Gemm(m, 256, 512), BF16X6, or_f32=True, fixed_order=True) for m in (8, 64))
    operands = make_operands(many.gemm)
    rows = Operands(few.gemm, operands.a[: 8 * 512], operands.b, operands.c[: 8 * 256])
    all_of = computed(DISPATCHER, many, operands).reshape(64, 256)
    np.testing.assert_array_equal(computed(DISPATCHER, few, rows).reshape(8, 256), all_of[:8])


def test_what_has_no_wgmma_refuses_and_f32_emulated_is_f32_there() -> None:
    older = simulated_dispatcher("A100")
    with pytest.raises(LaunchError, match=r"bf16x6.*wgmma"):
        older.plan(request_of(Gemm(64, 64, 64), BF16X6))
    assert older.plan(request_of(Gemm(64, 64, 64), BF16X6, or_f32=True)).words.startswith("simt")


def test_without_memory_for_the_pieces() -> None:
    with pytest.raises(LaunchError, match="workspace"):
        DISPATCHER.plan(request_of(Gemm(64, 64, 64), BF16X6, without_workspace=True))
    with pytest.raises(LaunchError, match="GiB"):
        DISPATCHER.plan(request_of(Gemm(65536, 32768, 65536), BF16X6))
