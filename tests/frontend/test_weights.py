"""Whole calls of `quantize_weight`, and products with what it gives, on a simulated GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cpu_gpu import STATE, FakeGpu, cpu_gpu, on_gpu
from simulated import SimulatedKernels

from tilewright.device.catalog import device
from tilewright.dtypes import BF16, F16, Array
from tilewright.errors import LaunchError, ProblemError
from tilewright.frontend import linear, matmul, quantize_weight
from tilewright.frontend.libraries import DTypeError
from tilewright.frontend.shapes import ShapeError
from tilewright.kernels.coded_wgmma import CodedWgmmaConfig
from tilewright.planning import dispatch
from tilewright.planning.coded import chosen_config
from tilewright.problem.coded_product import CodedProduct
from tilewright.problem.epilogue import Epilogue


@pytest.fixture(autouse=True)
def simulated_gpu() -> Iterator[None]:
    with cpu_gpu(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "Kernels", lambda gpu: SimulatedKernels(FakeGpu(), device("H200")))
        yield


def drawn(*shape: int) -> Any:
    return on_gpu(np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32))


def halves(*shape: int) -> Any:
    return on_gpu(drawn(*shape).astype(np.float16))


def values_of(weight: Any) -> Array:
    """What the codes and scales of a weight stand for, float64."""
    kind, memory = weight._kind, np.asarray(weight._memory)
    words, scales = memory[: kind.words].view(np.int32), memory[kind.words :].view(kind.scale_dtype.numpy)
    spread = np.repeat(kind.read_scales(scales[: kind.scale_elements]), kind.k // kind.groups, axis=1)
    return (kind.unpack(words).astype(np.float64) * spread).T


def near(computed: Any, exact: Array, sizes: Array, unit: float) -> bool:
    """Within the rounding of the result, and sums of magnitudes `sizes` in f32."""
    return bool((np.abs(np.asarray(computed, np.float64) - exact) <= unit * np.abs(exact) + 1e-5 * sizes + 1e-6).all())


@pytest.mark.parametrize(
    ("bits", "group", "share"), [(4, 32, 0.075), (4, 128, 0.075), (8, 64, 0.04), (8, "column", 0.04)]
)
def test_codes_times_scales_are_near_to_the_weight(bits: int, group: Any, share: float) -> None:
    for source in (drawn(256, 20), drawn(20, 256).T, drawn(256, 40)[:, ::2]):
        weight = quantize_weight(source, bits=bits, group=group)
        groups = np.asarray(source).reshape(256 // (256 if group == "column" else group), -1, source.shape[1])
        largest = np.repeat(np.abs(groups).max(axis=1), groups.shape[1], axis=0)
        assert (np.abs(values_of(weight) - source) <= share * largest).all()
        assert weight.shape == source.shape and weight.T.shape == source.shape[::-1]
    assert f"({256}, {20})" in repr(weight)


@pytest.mark.parametrize(("bits", "group"), [(4, 128), (8, "column")])
def test_products_are_those_of_the_codes(bits: int, group: Any) -> None:
    weight = quantize_weight(drawn(256, 40), bits=bits, group=group)
    exact = values_of(weight)
    for shape in ((1, 256), (3, 5, 256), (70, 256), (256,)):
        a, bias = halves(*shape), halves(40)
        wide = np.asarray(a, np.float64)
        sizes = np.abs(wide) @ np.abs(exact)
        assert near(matmul(a, weight, out_dtype="f32"), wide @ exact, sizes, F16.unit_roundoff)
        found = linear(a, weight.T, bias, activation="relu")
        assert found.dtype == np.float16 and found.shape == (*shape[:-1], 40)
        assert near(found, np.maximum(wide @ exact + bias, 0), sizes + np.abs(bias), F16.unit_roundoff)


def test_activations_that_lie_otherwise_and_out() -> None:
    weight = quantize_weight(drawn(64, 24), group=32)
    exact, a = values_of(weight), halves(6, 64)
    padded = on_gpu(np.full((6, 72), np.nan, np.float16))[:, :64]
    odd = on_gpu(np.full((6, 65), np.nan, np.float16))[:, :64]
    turned = on_gpu(np.asarray(a).T).T
    for view in (padded, odd, turned):
        view[...] = a
        assert (matmul(view, weight) == matmul(a, weight)).all()
    out = on_gpu(np.zeros((6, 24), np.float16))
    assert matmul(a, weight, out=out) is out and (out == matmul(a, weight)).all()
    apart = on_gpu(np.zeros((6, 48), np.float16))[:, ::2]
    assert (matmul(a, weight, out=apart) == out).all() and (apart == out).all()
    twice = matmul(a, weight, alpha=2.0, bias=on_gpu(np.ones(48, np.float16))[::2])
    sizes = np.abs(np.asarray(a, np.float64)) @ np.abs(exact)
    assert near(twice, 2 * (np.asarray(a, np.float64) @ exact) + 1, 2 * sizes + 1, F16.unit_roundoff)
    assert matmul(on_gpu(np.zeros((0, 64), np.float16)), weight).shape == (0, 24)


@pytest.mark.parametrize("m", [1, 3, 24, 100])
def test_out_and_a_bias_that_begin_at_odd_elements(m: int) -> None:
    """Kernels that store several elements at once take neither as it lies."""
    weight = quantize_weight(drawn(64, 24), bits=8, group=32)
    a, bias = halves(m, 64), halves(24)
    problem = CodedProduct(m, weight._kind, F16, F16, epilogue=Epilogue(bias="n"))
    config = chosen_config(problem, device("H200"))
    assert isinstance(config, CodedWgmmaConfig) and config.vector > 1
    expected = matmul(a, weight, bias=bias)
    assert np.any(expected)
    for first in (1, 2, 4):
        held, shifted = (on_gpu(np.full(size + 8, 7, np.float16)) for size in (m * 24, 24))
        out, view = held[first : first + m * 24].reshape(m, 24), shifted[first : first + 24]
        view[...] = bias
        assert matmul(a, weight, bias=view, out=out) is out
        np.testing.assert_array_equal(out, expected)
        assert (held[:first] == 7).all() and (held[first + m * 24 :] == 7).all()


def test_bf16_and_groups_with_nan() -> None:
    source = drawn(64, 24)
    source[3, 5], source[40, 6] = np.nan, np.inf
    weight = quantize_weight(on_gpu(BF16.encode(np.asarray(source))), group=32)
    a = on_gpu(BF16.encode(np.asarray(drawn(2, 64))))
    found = BF16.decode(np.asarray(matmul(a, weight)))
    strange = np.isin(np.arange(24), (5, 6))
    assert np.isnan(found[:, strange]).all() and np.isfinite(found[:, ~strange]).all()


def test_what_cannot_be_asked_is_refused() -> None:
    weight, a = quantize_weight(drawn(64, 24), group=32), halves(3, 64)
    for wrong, words in (
        ({"bits": 3}, "bits=3"),
        ({"bits": [4]}, "bits="),
        ({"group": [32]}, "group="),
        ({"group": 100}, "group=100"),
        ({"group": True}, "group=True"),
    ):
        with pytest.raises(ProblemError, match=words):
            quantize_weight(drawn(64, 24), **wrong)
    with pytest.raises(ProblemError, match="k = 64 of a weight is not a multiple of 128"):
        quantize_weight(drawn(64, 24))
    with pytest.raises(ShapeError, match="is not a matrix"):
        quantize_weight(drawn(64))
    with pytest.raises(ProblemError, match="lie in host memory"):
        quantize_weight(np.ones((64, 8), np.float32), group=32)
    with pytest.raises(DTypeError, match="a holds f32"):
        matmul(drawn(3, 64), weight)
    with pytest.raises(ShapeError, match="does not go with a quantised weight"):
        matmul(halves(3, 32), weight)
    with pytest.raises(ShapeError, match="is transposed"):
        matmul(a, weight.T)
    with pytest.raises(ShapeError, match="A bias of shape"):
        matmul(a, weight, bias=halves(23))
    with pytest.raises(ShapeError, match="`out` is"):
        matmul(a, weight, out=halves(3, 23))
    with pytest.raises(ProblemError, match="takes alpha, a bias"):
        matmul(a, weight, c=halves(3, 24))
    STATE.capturing = True
    with pytest.raises(LaunchError, match="recording a CUDA graph"):
        matmul(halves(5, 64), weight)
