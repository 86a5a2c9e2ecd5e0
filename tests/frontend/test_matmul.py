"""`tilewright.matmul` from arrays to results, on a GPU that is the CPU: every result within the bound of its format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cpu_gpu import State, cpu_gpu, on_gpu

from tilewright.dtypes import BF16, F16, F32, DType
from tilewright.frontend import compute, linear, matmul
from tilewright.problem.functions import STEEPEST, Activation

SHAPES = [(1, 1, 1), (2, 3, 5), (33, 65, 31), (70, 130, 65), (128, 64, 32), (1, 90, 300), (90, 1, 77), (3, 100, 130)]


@pytest.fixture(autouse=True)
def gpu() -> Iterator[State]:
    with cpu_gpu() as state:
        yield state


def drawn(*shape: int, dtype: DType = F32, order: str = "N", seed: int = 0) -> Any:
    """Random normal numbers; order "T": the last two dimensions are stored the other way round."""
    rng = np.random.default_rng([seed, *shape])
    stored = shape if order == "N" else (*shape[:-2], shape[-1], shape[-2])
    array = on_gpu(dtype.encode(rng.standard_normal(stored, np.float32)))
    return array if order == "N" else np.swapaxes(array, -1, -2)


def spread(array: Any, *shape: int) -> Any:
    """A view with strides of 0."""
    return np.broadcast_to(array, shape, subok=True)


def values(array: Any, dtype: DType) -> Any:
    return np.asarray(dtype.decode(np.asarray(array)), np.float64)


def assert_right(
    computed: Any,
    a: Any,
    b: Any,
    *,
    dtype: DType = F32,
    out: DType | None = None,
    alpha: float = 1.0,
    added: Any = 0.0,
    activation: Activation | None = None,
) -> None:
    """Within gamma(k + 3) of the sum of magnitudes, and a rounding of the result (see problem/tolerance.py)."""
    out = out or dtype
    x, y = values(a, dtype), values(b, dtype)
    expected = alpha * (x @ y) + added
    magnitude = abs(alpha) * (np.abs(x) @ np.abs(y)) + np.abs(added)
    units = x.shape[-1] + 3
    if activation is not None:
        expected, magnitude, units = activation.of(expected), STEEPEST * magnitude, units + 32
    bound = (units * F32.unit_roundoff * 1.01 + out.unit_roundoff) * magnitude + np.finfo(np.float16).tiny
    assert np.shape(computed) == expected.shape
    assert (np.abs(values(computed, out) - expected) <= bound).all()


@pytest.mark.cross_section("dtype", "orders", every=6)
@pytest.mark.parametrize("orders", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=str)
def test_every_format_order_and_awkward_shape(dtype: DType, orders: str) -> None:
    for m, n, k in SHAPES:
        a, b = drawn(m, k, dtype=dtype, order=orders[0]), drawn(k, n, dtype=dtype, order=orders[1])
        for _ in range(2):  # planned, then remembered
            assert_right(matmul(a, b), a, b, dtype=dtype)


def test_a_remembered_call_computes_anew(gpu: State) -> None:
    for seed in range(3):
        a, b = drawn(40, 50, seed=seed), drawn(50, 60, seed=seed)
        assert_right(matmul(a, b), a, b)
    assert len(gpu.launches) == 3


def test_views_of_any_strides() -> None:
    whole = drawn(150, 200)
    for a in (
        whole[3:103, 5:133], whole[::2, :130], whole[:64, ::3], whole[:, 7], whole[1:129, 1:65].T, whole[::-1, :70],
        whole[:70, ::-1], spread(whole[0], 40, 200), spread(whole[:, :1], 150, 30),
    ):  # fmt: skip
        b = drawn(a.shape[-1], 33)
        assert_right(matmul(a, b), a, b)
        assert_right(matmul(b.T, a.T), b.T, a.T)


def test_transposed_views_are_not_copied(gpu: State, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any) -> Any:
        raise AssertionError("an operand was copied")

    monkeypatch.setattr("cpu_gpu.CpuArrays.tight", refuse)
    a, b = drawn(3, 20, 40, order="T"), drawn(3, 40, 30, order="T")
    assert_right(matmul(a, b), a, b)
    assert_right(matmul(a[0], b[0]), a[0], b[0])


@pytest.mark.cross_section("dtype", every=2)
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_out_of_any_strides(dtype: DType) -> None:
    a, b = drawn(70, 40, dtype=dtype), drawn(40, 90, dtype=dtype)
    room = np.zeros((160, 200), dtype.storage)
    for target in (
        room[:70, :90],
        room[:90, :70].T,
        room[10:80, 4:94],
        room[:140:2, :90],
        room[:70, :180:2],
        room[69::-1, :90],
    ):
        out = on_gpu(target) if target.base is None else target.view(type(a))
        assert matmul(a, b, out=out, alpha=-0.5) is out
        assert_right(out, a, b, dtype=dtype, alpha=-0.5)


def test_out_that_overlaps_an_operand() -> None:
    a, b = drawn(64, 64), drawn(64, 64)
    before = a.copy()
    assert matmul(a, b, out=a) is a
    assert_right(a, before, b)


def test_out_that_overlaps_an_operand_in_part() -> None:
    room = drawn(200, 64)
    a, b, out = room[:64], drawn(64, 64), room[30:94]
    before = a.copy()
    assert matmul(a, b, out=out) is out
    assert_right(out, before, b)
    turned, before = room[:64].T, room[:64].T.copy()
    assert_right(matmul(turned, b, out=room[:64]), before, b)


def test_out_that_is_c_and_overlaps_an_operand() -> None:
    a, b = drawn(64, 64), drawn(64, 64)
    before = a.copy()
    assert matmul(a, b, c=a, out=a, beta=0.5) is a
    assert_right(a, before, b, added=0.5 * values(before, F32))


def refuse_to_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on, only calls that are remembered are answered."""

    def refuse(*given: Any) -> Any:
        raise AssertionError("a call was planned that was made before")

    monkeypatch.setattr(compute, "views_of", refuse)


def test_a_call_into_out_is_remembered_and_computes_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    bias = drawn(60)
    matmul(drawn(40, 50), drawn(50, 60), out=drawn(40, 60), bias=bias)
    refuse_to_plan(monkeypatch)
    a, b, out = drawn(40, 50, seed=1), drawn(50, 60, seed=1), drawn(40, 60, seed=1)
    assert matmul(a, b, out=out, bias=bias) is out
    assert_right(out, a, b, added=values(bias, F32))


def test_a_sum_kept_in_out_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, out = drawn(40, 50), drawn(50, 60), drawn(40, 60)
    for _ in range(2):
        before = values(out, F32)
        assert matmul(a, b, c=out, out=out) is out
        assert_right(out, a, b, added=before)
        refuse_to_plan(monkeypatch)


def test_a_remembered_sum_in_out_is_not_taken_for_one_with_another_c() -> None:
    a, b, c = drawn(40, 50), drawn(50, 60), drawn(40, 60)
    out = c.copy()
    for added in (out, c, out, c):
        before = values(added, F32)
        assert_right(matmul(a, b, c=added, out=out), a, b, added=before)


def test_a_remembered_call_sees_that_out_overlaps_this_time() -> None:
    room, bias = drawn(300, 64), drawn(64)
    b, c = drawn(64, 64), room[200:264]
    for first in (100, 100, 32, 63, 0, 140, 232):  # apart, apart, over a, and over c
        a, out = room[:64], room[first : first + 64]
        before, added = a.copy(), values(c, F32) + values(bias, F32)
        assert matmul(a, b, out=out, c=c, bias=bias) is out
        assert_right(out, before, b, added=added)


def test_out_of_other_strides_is_another_call() -> None:
    a, b = drawn(40, 50), drawn(50, 60)
    for out in (drawn(40, 60), drawn(40, 80)[:, :60], drawn(60, 40).T, drawn(40, 64)[:, 1:61], drawn(40, 60)):
        assert_right(matmul(a, b, out=out), a, b)


@pytest.mark.cross_section("m", "n", every=3)
@pytest.mark.parametrize(("m", "n", "k"), [(1, 33, 47), (47, 33, 1), (33, 1, 47), (1, 1, 47), (1, 130, 1), (130, 1, 1)])
def test_single_lines_of_any_length_and_strides(m: int, n: int, k: int) -> None:
    """Their leading dimension is free, and is taken as one that every copy can use."""
    for a, b in ((drawn(m, k), drawn(k, n)), (drawn(m, 2 * k)[:, ::2], drawn(k, 3 * n)[:, ::3])):
        assert_right(matmul(a, b), a, b)
        bias, c = drawn(n), drawn(m, n)
        assert_right(matmul(a, b, bias=bias, c=c), a, b, added=values(bias, F32) + values(c, F32))


def test_what_lies_between_the_rows_of_out_stays() -> None:
    a, b, room = drawn(33, 20), drawn(20, 30), on_gpu(np.full((33, 40), 7, np.float32))
    matmul(a, b, out=room[:, 5:35])
    assert (np.asarray(room)[:, :5] == 7).all() and (np.asarray(room)[:, 35:] == 7).all()


@pytest.mark.cross_section("dtype", "activation", every=8)
@pytest.mark.parametrize("activation", [None, *Activation], ids=str)
@pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=str)
def test_fused_epilogues(dtype: DType, activation: Activation | None) -> None:
    a, b, c = drawn(40, 50, dtype=dtype), drawn(50, 33, dtype=dtype), drawn(40, 33, dtype=dtype)
    column, row = drawn(33, dtype=dtype), drawn(40, 1, dtype=dtype)
    name = None if activation is None else activation.value
    for bias in (None, column, row):
        added = 0 if bias is None else values(bias, dtype)
        assert_right(matmul(a, b, bias=bias, activation=name), a, b, dtype=dtype, added=added, activation=activation)
        computed = matmul(a, b, c=c, alpha=0.5, beta=-2.0, bias=bias, activation=name)
        added = added - 2.0 * values(c, dtype)
        assert_right(computed, a, b, dtype=dtype, alpha=0.5, added=added, activation=activation)


def test_an_epilogue_of_long_sums_in_parts(gpu: State) -> None:
    a, b, bias, c = drawn(20, 3000), drawn(3000, 40), drawn(40), drawn(20, 40)
    computed = matmul(a, b, bias=bias, c=c, activation="relu")
    assert any(name.startswith("reduce") for name in gpu.launches)
    assert_right(computed, a, b, added=values(bias, F32) + values(c, F32), activation=Activation.RELU)


def test_an_epilogue_is_one_launch(gpu: State) -> None:
    matmul(drawn(256, 64), drawn(64, 512), bias=drawn(512), c=drawn(256, 512), activation="gelu")
    assert len(gpu.launches) == 1


def test_c_of_any_shape_and_strides() -> None:
    a, b = drawn(40, 20), drawn(20, 30)
    for c in (drawn(30), drawn(40, 1), drawn(1, 30), drawn(40, 30, order="T"), drawn(80, 70)[::2, 3:33]):
        assert_right(matmul(a, b, c=c, beta=0.5), a, b, added=0.5 * values(c, F32))
    out = drawn(40, 30, seed=3)
    before = values(out, F32)
    assert matmul(a, b, c=out, out=out) is out
    assert_right(out, a, b, added=before)
    turned = on_gpu(np.zeros((30, 40), np.float32)).T
    c = drawn(40, 30)
    assert_right(matmul(a, b, c=c, out=turned), a, b, added=values(c, F32))


def test_beta_zero_does_not_read_c() -> None:
    a, b, c = drawn(40, 20), drawn(20, 30), on_gpu(np.full((40, 30), np.nan, np.float32))
    assert_right(matmul(a, b, c=c, beta=0), a, b)


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_narrow_operands_into_f32(dtype: DType) -> None:
    a, b = drawn(40, 20, dtype=dtype), drawn(20, 30, dtype=dtype)
    assert_right(matmul(a, b, out_dtype="f32"), a, b, dtype=dtype, out=F32)
    bias = drawn(30, dtype=F32)
    assert_right(matmul(a, b, out_dtype=np.float32, bias=bias), a, b, dtype=dtype, out=F32, added=values(bias, F32))


BATCHES = [
    ((4, 33, 20), (4, 20, 30)), ((2, 3, 33, 20), (20, 30)), ((33, 20), (5, 20, 30)), ((2, 1, 33, 20), (3, 20, 30)),
    ((20,), (3, 20, 30)), ((3, 33, 20), (20,)), ((20,), (20,)), ((1, 33, 20), (1, 20, 30)), ((6, 1, 20), (20, 30)),
    ((4, 1, 90), (4, 90, 80)), ((2, 2, 80, 90), (2, 2, 90, 1)), ((3, 1, 4, 20), (1, 2, 20, 5)),
]  # fmt: skip


@pytest.mark.cross_section("left", "dtype", every=8)
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize(("left", "right"), BATCHES, ids=str)
def test_batches_as_numpy_broadcasts_them(left: tuple[int, ...], right: tuple[int, ...], dtype: DType) -> None:
    a, b = drawn(*left, dtype=dtype), drawn(*right, dtype=dtype)
    assert_right(matmul(a, b), a, b, dtype=dtype)


def test_batches_of_views_and_epilogues() -> None:
    a, b = drawn(4, 3, 20, 16)[:, 1:], drawn(4, 2, 16, 24)[::-1]
    bias, c = drawn(24), drawn(4, 2, 20, 24)
    added = values(bias, F32) + 0.5 * values(c, F32)
    computed = matmul(a, b, bias=bias, c=c, beta=0.5, activation="silu")
    assert_right(computed, a, b, added=added, activation=Activation.SILU)
    rows = drawn(20, 1)
    assert_right(matmul(a, b, bias=rows), a, b, added=values(rows, F32))
    target = on_gpu(np.zeros((2, 4, 24, 20), np.float32)).transpose(1, 0, 3, 2)
    assert matmul(a, b, out=target) is target
    assert_right(target, a, b)


@pytest.mark.parametrize(
    ("left", "right", "launches"),
    [
        ((9, 40, 20), (9, 20, 30), 1),
        ((3, 2, 40, 20), (20, 30), 1),
        ((5, 1, 128), (5, 128, 96), 1),
        ((3, 1, 40, 20), (2, 20, 30), 2),
    ],
)
def test_a_strided_batch_is_one_launch(
    gpu: State, left: tuple[int, ...], right: tuple[int, ...], launches: int
) -> None:
    matmul(drawn(*left), drawn(*right))
    assert len(gpu.launches) == launches


def test_empty_products() -> None:
    for left, right in (
        ((0, 4), (4, 5)),
        ((3, 4), (4, 0)),
        ((3, 0), (0, 5)),
        ((0,), (0,)),
        ((2, 0, 3), (3, 4)),
        ((0, 2, 3), (0, 3, 4)),
    ):
        a, b = drawn(*left), drawn(*right)
        np.testing.assert_array_equal(np.asarray(matmul(a, b)), np.asarray(a) @ np.asarray(b))
    bias = drawn(5)
    computed = matmul(drawn(3, 0), drawn(0, 5), bias=bias, activation="relu")
    np.testing.assert_array_equal(np.asarray(computed), np.broadcast_to(np.maximum(np.asarray(bias), 0), (3, 5)))


def test_nan_and_infinity_pass_through() -> None:
    a, b = drawn(20, 30), drawn(30, 40)
    a[3, 4], b[5, 6] = np.nan, np.inf
    computed, expected = np.asarray(matmul(a, b)), np.asarray(a) @ np.asarray(b)
    np.testing.assert_array_equal(np.isnan(computed), np.isnan(expected))
    np.testing.assert_array_equal(np.isinf(computed), np.isinf(expected))


def test_linear_is_that_of_torch() -> None:
    x, weight, bias = drawn(2, 3, 40), drawn(50, 40), drawn(50)
    assert_right(linear(x, weight, bias), x, weight.T, added=values(bias, F32))
    assert_right(linear(x[0, 0], weight, activation="gelu_tanh"), x[0, 0], weight.T, activation=Activation.GELU_TANH)
    assert_right(linear(x, weight[0]), x, weight[0])


def test_more_rows_than_a_grid_has_blocks_for(monkeypatch: pytest.MonkeyPatch, gpu: State) -> None:
    monkeypatch.setattr("tilewright.frontend.layouts.MOST_ROWS", 48)
    a, b, bias, c = drawn(130, 20), drawn(20, 30), drawn(130, 1), drawn(130, 30)
    assert_right(matmul(a, b, bias=bias, c=c), a, b, added=values(bias, F32) + values(c, F32))
    assert len(gpu.launches) == 3


def test_more_products_than_a_grid_has_blocks_for(monkeypatch: pytest.MonkeyPatch, gpu: State) -> None:
    monkeypatch.setattr("tilewright.frontend.layouts.MOST_ALONG_Z", 4)
    a, b, c = drawn(10, 20, 30), drawn(10, 30, 8), drawn(10, 20, 8)
    assert_right(matmul(a, b, c=c), a, b, added=values(c, F32))
    assert len(gpu.launches) == 3


def test_rows_do_not_depend_on_how_many_there_are() -> None:
    a, b = drawn(150, 2000), drawn(2000, 90)
    whole = np.asarray(matmul(a, b, batch_invariant=True))
    for rows in (1, 7, 64, 100):
        np.testing.assert_array_equal(np.asarray(matmul(a[:rows], b, batch_invariant=True)), whole[:rows])
    np.testing.assert_array_equal(np.asarray(matmul(a, b, deterministic="bitwise")), whole)
