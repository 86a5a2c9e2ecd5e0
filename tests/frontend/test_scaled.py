"""Whole calls of `scaled_matmul` on a simulated H200: every launch of a call runs on the simulator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cpu_gpu import STATE, FakeGpu, cpu_gpu, on_gpu
from simulated import SimulatedKernels

from tilewright.device.catalog import device
from tilewright.dtypes import BF16, E4M3, E5M2, F32, TF32, Array, DType
from tilewright.errors import LaunchError, LoweringError, ProblemError
from tilewright.frontend import matmul, ops, quantize, scaled_matmul
from tilewright.frontend.libraries import DTypeError, library_of
from tilewright.frontend.scaled import scaled_options, words_of_scaled
from tilewright.frontend.shapes import ShapeError
from tilewright.planning import dispatch
from tilewright.problem.gemm import Gemm
from tilewright.problem.tolerance import relative_bound


@pytest.fixture(autouse=True)
def simulated_gpu() -> Iterator[None]:
    with cpu_gpu(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "Kernels", lambda gpu: SimulatedKernels(FakeGpu(), device("H200")))
        yield


def drawn(*shape: int, dtype: DType = E4M3, seed: int = 0) -> Any:
    codes = dtype.encode(np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(np.float32))
    return on_gpu(codes if dtype is E4M3 else codes.view("S1"))


def scales(*shape: int, seed: int = 7) -> Any:
    return on_gpu(np.random.default_rng(seed + sum(shape)).uniform(0.25, 4, shape).astype(np.float32))


def number(array: Any, dtype: DType) -> Array:
    return dtype.decode(np.asarray(array).view(dtype.numpy)).astype(np.float64)


def share(
    a: Any,
    b: Any,
    c: Any,
    scale_a: Any,
    scale_b: Any,
    *,
    dtype: DType = E4M3,
    out: DType = BF16,
    every: int = 128,
    bias: Any = 0.0,
) -> float:
    """The largest error of an element, as a share of its bound."""
    left, right = number(a, dtype), number(b, dtype)
    row = np.asarray(scale_a, np.float64).reshape(-1, 1)
    column = np.asarray(scale_b, np.float64).reshape(1, -1)
    exact = left @ right * row * column + np.asarray(bias, np.float64)
    sizes = [np.where(x == 0, 0, np.maximum(np.abs(x), dtype.tiny)) for x in (left, right)]
    allowed = relative_bound(Gemm(*c.shape, a.shape[1], dtype, out=out), promote_every=every)
    bound = allowed * (sizes[0] @ sizes[1] * row * column + np.abs(bias)) * 1.01 + out.tiny
    return float((np.abs(number(c, out) - exact) / bound).max())


@pytest.mark.parametrize("fast", [False, True], ids=["promoted", "fast"])
def test_a_gpu_that_multiplies_fp8_by_mma_sync(fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute capability 8.9 and 12.0; a row-major B is transposed first."""
    monkeypatch.setattr(dispatch, "Kernels", lambda gpu: SimulatedKernels(FakeGpu(), device("RTX 4090")))
    a, scale_a, scale_b = drawn(40, 272), scales(40, 1), scales(1, 48)
    for b, packed in ((drawn(48, 272).T, False), (drawn(272, 48), True)):
        c = scaled_matmul(a, b, scale_a, scale_b, fast_accumulation=fast)
        assert share(a, b, c, scale_a, scale_b, every=0 if fast else 128) <= 1
        words = words_of_scaled(library_of(a), (a, b, scale_a, scale_b, None, None), scaled_options(None, fast))
        assert (
            words.startswith("mma(") and ("promote_every=128" in words) is not fast and ("B packed" in words) is packed
        )


@pytest.mark.parametrize("fast", [False, True], ids=["promoted", "fast"])
@pytest.mark.parametrize("kind", ["tensor", "row", "row and tensor"])
def test_scales_of_every_kind(kind: str, fast: bool) -> None:
    m, n, k = 40, 48, 272
    a, b = drawn(m, k), drawn(n, k).T
    scale_a = scales(1) if kind == "tensor" else scales(m, 1)
    scale_b = scales() if kind != "row" else scales(1, n)
    c = scaled_matmul(a, b, scale_a, scale_b, fast_accumulation=fast)
    assert c.dtype == np.uint16
    assert share(a, b, c, scale_a, scale_b, every=0 if fast else 128) <= 1
    words = words_of_scaled(library_of(a), (a, b, scale_a, scale_b, None, None), scaled_options(None, fast))
    assert words.startswith("wgmma(") and ("promote_every=128" in words) is not fast


@pytest.mark.parametrize(("m", "n", "k"), [(1, 16, 32), (5, 7, 9), (17, 33, 129), (64, 1, 16), (3, 2, 1), (130, 8, 1)])
def test_sizes_that_are_multiples_of_nothing(m: int, n: int, k: int) -> None:
    a, b, scale_a, scale_b = drawn(m, k), drawn(n, k).T, scales(m), scales(n)
    c = scaled_matmul(a, b, scale_a, scale_b, out_dtype="f32")
    assert share(a, b, c, scale_a, scale_b, out=F32) <= 1


@pytest.mark.parametrize("orders", ["nn", "tn", "tt"])
def test_other_orders_are_transposed_before(orders: str) -> None:
    m, n, k = 24, 40, 72
    a = drawn(m, k) if orders[0] == "n" else drawn(k, m).T
    b = drawn(k, n) if orders[1] == "n" else drawn(n, k).T
    c = scaled_matmul(a, b, scales(1), scales(1), out_dtype="f32")
    assert share(a, b, c, scales(1), scales(1), out=F32) <= 1
    gaps = drawn(m, 2 * k)[:, ::2]
    c = scaled_matmul(gaps, b, scales(1), scales(1), out_dtype="f32")
    assert share(gaps, b, c, scales(1), scales(1), out=F32) <= 1


def test_bias_out_and_e5m2() -> None:
    m, n, k = 24, 40, 64
    a, b, bias = drawn(m, k, dtype=E5M2), drawn(n, k, dtype=E5M2).T, scales(n)
    out = on_gpu(np.zeros((m, n), np.float32))
    assert scaled_matmul(a, b, scales(m), scales(1), bias=bias, out=out, out_dtype="f32") is out
    assert share(a, b, out, scales(m), scales(1), dtype=E5M2, out=F32, bias=bias) <= 1
    narrow = scaled_matmul(a, b, scales(m), scales(1), bias=bias)
    assert share(a, b, narrow, scales(m), scales(1), dtype=E5M2, bias=bias) <= 1
    columns = on_gpu(np.zeros((n, m), np.float32)).T
    scaled_matmul(a, b, scales(m), scales(1), bias=bias, out=columns, out_dtype="f32")
    np.testing.assert_array_equal(columns, out)


@pytest.mark.cross_section("m", "sides", every=2)
@pytest.mark.parametrize("sides", [(1, 128), (1, 1), (128, 1), (128, 128)], ids=str)
@pytest.mark.parametrize(("m", "n", "k"), [(40, 272, 272), (5, 130, 128), (130, 48, 9)])
def test_scales_of_blocks(m: int, n: int, k: int, sides: tuple[int, int]) -> None:
    a, b, depth = drawn(m, k), drawn(n, k).T, -(-k // 128)
    scale_a = scales(depth, -(-m // sides[0])).T
    scale_b = scales(depth, -(-n // sides[1])) if k < 272 else scales(-(-n // sides[1]), depth + 3)[:, :depth].T
    bias = scales(n)
    c = scaled_matmul(a, b, scale_a, scale_b, bias=bias, out_dtype="f32")
    of_a = np.repeat(np.repeat(scale_a, sides[0], 0)[:m], 128, 1)[:, :k].astype(np.float64)
    of_b = np.repeat(np.repeat(scale_b, sides[1], 1)[:, :n], 128, 0)[:k].astype(np.float64)
    left, right = number(a, E4M3), number(b, E4M3)
    wide = [np.where(x == 0, 0, np.maximum(np.abs(x), E4M3.tiny)) for x in (left, right)]
    bound = relative_bound(Gemm(m, n, k, E4M3, out=F32), promote_every=128) * 1.01
    bound = bound * ((wide[0] * of_a) @ (wide[1] * of_b) + np.abs(bias))
    assert (np.abs(c - (left * of_a) @ (right * of_b) - bias) <= bound).all()


def test_operands_of_two_formats() -> None:
    a, b = drawn(24, 40), drawn(33, 40, dtype=E5M2).T
    for second in (b, np.ascontiguousarray(b).view(type(b))):
        c = scaled_matmul(a, second, scales(1), scales(1), out_dtype="f32")
        exact = number(a, E4M3) @ E5M2.decode(np.asarray(b.T).view(np.uint8)).astype(np.float64).T
        np.testing.assert_allclose(c, exact * scales(1) ** 2, rtol=1e-3, atol=1e-2)


def test_empty_sums_and_results() -> None:
    bias = scales(7)
    c = scaled_matmul(drawn(5, 0), drawn(0, 7), scales(5), scales(1), bias=bias, out_dtype="f32")
    np.testing.assert_array_equal(c, np.broadcast_to(bias, (5, 7)))
    assert scaled_matmul(drawn(0, 16), drawn(16, 7), scales(1), scales(7)).shape == (0, 7)


def test_a_scale_that_is_not_a_number_makes_its_row_none() -> None:
    a, b, scale_a = drawn(5, 16), drawn(7, 16).T, scales(5)
    scale_a[2] = np.nan
    c = scaled_matmul(a, b, scale_a, scales(1), out_dtype="f32")
    assert np.isnan(c[2]).all() and np.isfinite(np.delete(c, 2, axis=0)).all()


def test_known_calls_launch_again_and_read_new_scales() -> None:
    a, b, one = drawn(16, 32), drawn(16, 32).T, on_gpu(np.float32([1]))
    first = number(scaled_matmul(a, b, one, one), BF16)
    one[0] = 2
    np.testing.assert_array_equal(number(scaled_matmul(a, b, one, one), BF16), 4 * first)


GOOD: dict[str, Any] = {"a": drawn(8, 16), "b": drawn(16, 8).T.copy().T, "scale_a": scales(1), "scale_b": scales(8)}

WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "another format": ({"a": scales(8, 16)}, DTypeError, "a holds f32, and operands with scales are of FP8"),
    "a batch": ({"a": drawn(2, 8, 16)}, ShapeError, r"a has shape \(2, 8, 16\), and matrices have two dimensions"),
    "another k": ({"b": drawn(17, 8)}, ShapeError, r"a of shape \(8, 16\) does not go with b of shape \(17, 8\)"),
    "a scale for each k": ({"scale_a": scales(16)}, ShapeError, r"scale_a has shape \(16,\)"),
    "a scale that lies across": ({"scale_b": scales(8, 1)}, ShapeError, r"scale_b has shape \(8, 1\)"),
    "a scale of another format": ({"scale_a": on_gpu(np.zeros(1, np.uint16))}, DTypeError, "scale_a holds bf16"),
    "blocks beside rows": (
        {"a": drawn(8, 256), "b": drawn(256, 8), "scale_a": scales(8, 2)},
        ShapeError,
        r"scale_b has shape \(8,\), beside scale_a of shape \(8, 2\)(.|\n)*\(2, 8\) or \(2, 1\)",
    ),
    "scales with gaps": ({"scale_b": scales(16)[::2]}, ProblemError, "elements of scale_b lie 2 apart"),
    "a bias for each row": ({"bias": scales(8, 1)}, ShapeError, r"a bias of shape \(8, 1\) is not one of \(8,\)"),
    "an out of another shape": ({"out": scales(8, 9)}, ShapeError, r"`out` is f32 of shape \(8, 9\)"),
    "a result of tf32": ({"out_dtype": TF32}, DTypeError, "a result of tf32 is not stored"),
    "a word for a flag": ({"fast_accumulation": 1}, ProblemError, "neither True nor False"),
    "no scale": ({"scale_a": None}, ProblemError, "scale_a is a NoneType"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_asked_is_refused(what: str) -> None:
    given, error, text = WRONG[what]
    with pytest.raises(error, match=text):
        scaled_matmul(**{**GOOD, **given})


def test_matmul_takes_no_operands_that_have_scales() -> None:
    with pytest.raises(DTypeError, match=r"Operands of e4m3 are multiplied with their scales(.|\n)*scaled_matmul"):
        matmul(GOOD["a"], GOOD["b"])


def test_a_device_without_fp8_and_a_new_call_in_a_capture_are_refused() -> None:
    STATE.capturing = True
    with pytest.raises(LaunchError, match="recording a CUDA graph"):
        scaled_matmul(**GOOD)
    with cpu_gpu(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "Kernels", lambda gpu: SimulatedKernels(FakeGpu(), device("A100")))
        with pytest.raises(LaunchError, match="The tensor cores of A100 SXM 80 GB multiply no FP8"):
            scaled_matmul(**GOOD)
    with cpu_gpu(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "Kernels", lambda gpu: SimulatedKernels(FakeGpu(), device("L40S")))
        with pytest.raises(LaunchError, match="takes scales of blocks by wgmma, which L40S does not have"):
            scaled_matmul(drawn(8, 144), drawn(8, 144).T, scales(2, 8).T, scales(2, 8))


def test_a_quantised_result_is_read_by_the_next_product() -> None:
    """By a given scale of all, a row of scales, and with what the next scale is made of."""
    m, n, k = 40, 48, 160
    a, b, scale_a, scale_b = drawn(m, k), drawn(n, k).T, scales(m, 1), scales(1, n)
    row = scales(n)
    exact = (number(a, E4M3) @ number(b, E4M3)) * np.asarray(scale_a) * np.asarray(scale_b)
    activated = np.asarray(ops.silu(exact))
    inverse = np.float32(448 / np.abs(activated).max() / 4)

    def codes(acc: Any, row: Any, inverse: Any) -> Any:
        x = ops.silu(acc)
        return {"codes": x * row * inverse, "amax": ops.amax(x), "plain": x}

    found = scaled_matmul(
        *(a, b, scale_a, scale_b),
        out_dtype={"codes": "e4m3", "plain": "f32"},
        epilogue=codes,
        operands={"row": row, "inverse": float(inverse)},
    )
    assert found["codes"].dtype == np.uint8 and found["amax"].shape == (1,)
    np.testing.assert_allclose(np.asarray(found["plain"]), activated, rtol=2e-2, atol=0.2)
    np.testing.assert_array_equal(np.asarray(found["amax"]), [np.abs(np.asarray(found["plain"])).max()])
    expected = np.asarray(found["plain"]) * np.asarray(row) * inverse
    assert (np.abs(number(found["codes"], E4M3) - expected) <= np.abs(expected) / 16 + 2.0**-10).all()
    again = scaled_matmul(found["codes"], drawn(32, n).T, on_gpu(np.float32([1 / inverse])), scales(1))
    assert again.dtype == np.uint16 and again.shape == (m, 32)


def test_a_column_major_operand_of_the_epilogue_is_copied() -> None:
    a, b, residual = drawn(24, 160), drawn(40, 160).T, on_gpu(np.arange(960, dtype=np.float32).reshape(40, 24))
    asked: Any = {"epilogue": lambda acc, residual: acc + residual, "out_dtype": "f32"}
    found = scaled_matmul(a, b, scales(1), scales(1), operands={"residual": residual.T}, **asked)
    tight = on_gpu(np.ascontiguousarray(residual.T))
    assert found.tobytes() == scaled_matmul(a, b, scales(1), scales(1), operands={"residual": tight}, **asked).tobytes()


def test_pairs_of_an_odd_number_of_columns_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"\(24, 39\) has an odd number of columns"):
        scaled_matmul(drawn(24, 160), drawn(39, 160).T, scales(1), scales(1), epilogue=ops.rotated_pair)


def test_scales_of_blocks_come_from_the_epilogue() -> None:
    """And are what the next product takes, as those of `quantize`."""
    m, n, k = 40, 272, 128
    a, b = drawn(m, k), drawn(n, k).T

    def hidden(acc: Any) -> Any:
        x = ops.silu(acc)
        return {"hidden": ops.quantized(x), "plain": x}

    found = scaled_matmul(a, b, scales(1), scales(1), epilogue=hidden, out_dtype={"plain": "f32"})
    codes, of_blocks = found["hidden"]
    again, other = quantize(found["plain"], scales="1x128")
    np.testing.assert_array_equal(np.asarray(of_blocks), np.asarray(other))
    np.testing.assert_array_equal(np.asarray(codes), np.asarray(again))
    assert of_blocks.shape == (m, 3) and of_blocks.strides == other.strides and codes.dtype == np.uint8
    weight, of_weight = drawn(32, n).T, on_gpu(np.ones((3, 1), np.float32))
    result = scaled_matmul(codes, weight, of_blocks, of_weight, out_dtype="f32")
    exact = np.asarray(found["plain"], np.float64) @ number(weight, E4M3)
    assert np.linalg.norm(np.asarray(result) - exact) < 0.05 * np.linalg.norm(exact)
    alone = scaled_matmul(a, b, scales(1), scales(1), epilogue=lambda acc: ops.quantized(ops.silu(acc), "e4m3"))
    np.testing.assert_array_equal(np.asarray(alone[0]), np.asarray(codes))
    with pytest.raises(LoweringError, match="Scales of 128 columns are found where"):
        scaled_matmul(a, b[:, :43], scales(1), scales(1), epilogue=lambda acc: ops.quantized(acc))


@pytest.mark.parametrize("out", ["e4m3", "e5m2"])
@pytest.mark.parametrize("n", [48, 43])
def test_results_of_fp8_without_a_function(out: str, n: int) -> None:
    m, k = 24, 160
    a, b, scale_a, scale_b = drawn(m, k), drawn(n, k).T, scales(1), scales(1)
    found, wide = (scaled_matmul(a, b, scale_a, scale_b, out_dtype=one) for one in (out, "f32"))
    dtype = E4M3 if out == "e4m3" else E5M2
    np.testing.assert_array_equal(number(found, dtype), dtype.decode(dtype.encode(np.asarray(wide))))
    with pytest.raises(DTypeError, match="would round it"):
        scaled_matmul(a, b, scale_a, scale_b, bias=scales(n), out_dtype=out)
    with pytest.raises(DTypeError, match="would round it"):
        x = on_gpu(np.zeros((4, 4), np.uint16))
        matmul(x, x, bias=scales(4), epilogue=abs, out_dtype=out)
