"""Whole calls of `quantize` on a simulated GPU, and products of what they give."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cpu_gpu import STATE, FakeGpu, cpu_gpu, on_gpu
from simulated import SimulatedKernels

from tilewright.device.catalog import device
from tilewright.dtypes import E4M3, E5M2, Array, DType
from tilewright.errors import LaunchError, ProblemError
from tilewright.frontend import quantize, scaled_matmul
from tilewright.frontend.libraries import DTypeError
from tilewright.frontend.shapes import ShapeError
from tilewright.planning import dispatch


@pytest.fixture(autouse=True)
def simulated_gpu() -> Iterator[None]:
    with cpu_gpu(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "Kernels", lambda gpu: SimulatedKernels(FakeGpu(), device("H200")))
        yield


def drawn(*shape: int) -> Any:
    return on_gpu(np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32))


def spread(scales: Any, shape: tuple[int, ...]) -> Array:
    """The scale of each element."""
    found = np.asarray(scales, np.float64)
    if found.ndim == 2 and found.shape[1] > 1:
        return np.repeat(found, 128, axis=1)[:, : shape[1]]
    return np.broadcast_to(found, shape)


@pytest.mark.parametrize(("name", "dtype"), [("e4m3", E4M3), ("float8_e5m2", E5M2)])
@pytest.mark.parametrize("scales", ["row", "tensor", "1x128"])
def test_codes_times_scales_are_near_to_what_they_were(scales: Any, name: str, dtype: DType) -> None:
    for x in (drawn(9, 272), drawn(272, 9).T, drawn(5, 3)[:, :1], drawn(6, 300)[::2]):
        codes, found = quantize(x, scales=scales, dtype=name)
        shapes = {"row": (x.shape[0], 1), "tensor": (1,), "1x128": (x.shape[0], -(-x.shape[1] // 128))}
        assert codes.shape == x.shape and found.shape == shapes[scales]
        whole = spread(found, x.shape)
        near = dtype.decode(np.asarray(codes).view(np.uint8)).astype(np.float64) * whole
        assert (np.abs(near - x) <= dtype.unit_roundoff * 1.01 * np.abs(x) + whole * 2.0**-9).all()
    assert quantize(x, scales=scales, dtype=name)[0].tobytes() == codes.tobytes()


def test_scales_of_blocks_lie_as_pytorch_takes_them() -> None:
    _, scales = quantize(drawn(9, 272), scales="1x128")
    assert scales.strides == (4, 36)


@pytest.mark.parametrize("scales", ["row", "tensor", "1x128"])
def test_a_product_of_what_it_gives(scales: Any) -> None:
    x, weight = drawn(24, 272), drawn(40, 272)
    a, scale_a = quantize(x, scales=scales)
    b, scale_b = quantize(weight, scales=scales)
    c = scaled_matmul(a, b.T, scale_a, scale_b.T, out_dtype="f32")
    exact = np.asarray(x, np.float64) @ np.asarray(weight, np.float64).T
    assert np.linalg.norm(c - exact) / np.linalg.norm(exact) < 0.06


def test_empty_matrices() -> None:
    codes, scales = quantize(drawn(0, 16))
    assert codes.shape == (0, 16) and scales.shape == (0, 1)
    codes, scales = quantize(drawn(3, 0))
    assert codes.shape == (3, 0) and (scales == 2.0**-126).all()
    assert quantize(drawn(3, 0), scales="1x128")[1].shape == (3, 0)


def test_what_cannot_be_quantised_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"x has shape \(2, 3, 4\)"):
        quantize(drawn(2, 3, 4))
    with pytest.raises(ShapeError, match="no numbers to find a scale of"):
        quantize(drawn(0, 4), scales="tensor")
    with pytest.raises(DTypeError, match="x holds e4m3"):
        quantize(on_gpu(np.zeros((2, 2), np.uint8)))
    with pytest.raises(ProblemError, match=r"scales=\[1\] is not known"):
        quantize(drawn(2, 4), scales=[1])  # type: ignore[arg-type]
    with pytest.raises(ProblemError, match="scales='column' is not known"):
        quantize(drawn(2, 2), scales="column")  # type: ignore[arg-type]
    with pytest.raises(DTypeError, match="no codes of bf16"):
        quantize(drawn(2, 2), dtype="bf16")
    with pytest.raises(ProblemError, match="lie in host memory"):
        quantize(np.ones((2, 2), np.float32))
    STATE.capturing = True
    with pytest.raises(LaunchError, match="recording a CUDA graph"):
        quantize(drawn(4, 4))
