"""`matmul` of complex64: whole calls on kernels that run on the CPU, and by pieces on the simulator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cpu_gpu import FakeGpu, cpu_gpu
from simulated import SimulatedKernels

import tilewright as tw
from tilewright.device.catalog import device
from tilewright.errors import ProblemError
from tilewright.frontend import calls, compute, libraries, on_host
from tilewright.frontend.libraries import DTypeError
from tilewright.frontend.shapes import ShapeError
from tilewright.planning import dispatch
from tilewright.problem.emulation import BF16X6

U = 2.0**-24


def drawn(*shape: int, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed + sum(shape))
    return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(np.complex64)


def share_of_bound(a: Any, b: Any, c: Any, units: float) -> float:
    """The largest error of a component, as a share of units * u * (sums of magnitudes of products)."""
    wide = a.astype(np.complex128), b.astype(np.complex128)
    error = c - wide[0] @ wide[1]
    (ar, ai), (br, bi) = ((abs(x.real), abs(x.imag)) for x in wide)
    bounds = ar @ br + ai @ bi, ar @ bi + ai @ br
    return max(float((abs(e) / (units * U * s)).max()) for e, s in zip((error.real, error.imag), bounds, strict=True))


@pytest.fixture(autouse=True)
def numpy_multiplies_on_the_cpu_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """NumPy's arrays lie on the GPU that is the CPU."""
    from cpu_gpu import CpuArrays

    with cpu_gpu():
        library = CpuArrays()
        monkeypatch.setattr(library, "sign", lambda x: (x.dtype, x.shape, x.strides, 0, x.ctypes.data & 15))
        monkeypatch.setattr(library, "maker", lambda shape, dtype, like: lambda: np.full(shape, np.nan, np.float32))
        monkeypatch.setattr(library, "tight", np.ascontiguousarray)
        monkeypatch.setitem(libraries._KNOWN, np.ndarray, library)
        calls.MULTIPLY.pop(np.ndarray, None)
        yield
        calls.MULTIPLY.pop(np.ndarray, None)
        compute.MEMO.clear()


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((5, 7), (7, 3)),
        ((2, 5, 7), (7, 3)),
        ((5, 7), (2, 7, 3)),
        ((7,), (7, 3)),
        ((5, 7), (7,)),
        ((7,), (7,)),
        ((5, 0), (0, 3)),
    ],
)
def test_shapes_are_those_of_numpy_and_each_component_has_the_bound(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    x, y = drawn(*a), drawn(*b, seed=1)
    c = tw.matmul(x, y)
    assert c.shape == np.matmul(x, y).shape and c.dtype == np.complex64
    if len(a) > 1 and len(b) > 1 and x.size:
        assert share_of_bound(x, y, c, 2 * a[-1]) <= 1
    np.testing.assert_allclose(c, np.matmul(x, y), atol=1e-5)


def test_transposed_operands_out_c_bias_and_factors() -> None:
    a, b, c, bias = drawn(7, 5).T, drawn(3, 7).T, drawn(5, 3), drawn(3)
    expected = 0.5 * (a @ b) + 2 * c + bias
    out = np.zeros((5, 3), np.complex64)
    assert tw.matmul(a, b, out=out, c=c, alpha=0.5, beta=2.0, bias=bias) is out
    np.testing.assert_allclose(out, expected, atol=1e-5)
    columns = np.zeros((3, 5), np.complex64).T
    assert tw.matmul(a, b, out=columns, c=drawn(5, 1)) is columns
    np.testing.assert_allclose(columns, a @ b + drawn(5, 1), atol=1e-5)
    before = out.copy()
    tw.matmul(a, b, out=out, c=out)
    np.testing.assert_allclose(out, a @ b + before, atol=1e-5)
    np.testing.assert_allclose(tw.linear(a, b.T, bias), a @ b + bias, atol=1e-5)


def test_by_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "Kernels", lambda gpu: SimulatedKernels(FakeGpu(), device("H200")))
    dispatch._DISPATCHERS.clear()
    a, b = drawn(12, 40), drawn(40, 9)
    c = tw.matmul(a, b, precision="bf16x6")
    assert share_of_bound(a, b, c, BF16X6.units(80)) <= 1


def test_what_runs_is_told_in_words() -> None:
    found = tw.plan((5, 7), (7, 3), dtype="complex64", bias=(3,), c=(5, 3), device="RTX 4090")
    assert found.shape == (5, 3) and "complex64 as one product of f32" in str(found) and "b" in found.copied
    (product,) = found.products
    assert (product.m, product.n, product.k) == (5, 6, 14) and found.bound == 14
    same = tw.plan(drawn(5, 7), drawn(7, 3), device="RTX 4090")
    assert (same.words, same.shape) == (found.words, (5, 3))
    assert tw.plan((7,), (7,), dtype="complex64", device="RTX 4090").shape == ()
    with pytest.raises(ProblemError, match="apply them to the result"):
        tw.plan((5, 7), (7, 3), dtype="complex64", activation="relu", device="RTX 4090")
    with pytest.raises(ShapeError, match="size 6 is different from 7"):
        tw.plan((5, 7), (6, 3), dtype="complex64", device="RTX 4090")


@pytest.mark.parametrize(
    ("asked", "kind", "said"),
    [
        ({"b": drawn(7, 3).real.copy()}, DTypeError, "b holds float32"),
        ({"c": np.ones((5, 3), np.float32)}, DTypeError, "c holds float32"),
        ({"out": np.ones((5, 3), np.float32)}, DTypeError, "out holds float32"),
        ({"out": drawn(5, 4)}, ShapeError, r"`out` has shape \(5, 4\)"),
        ({"b": drawn(6, 3)}, ShapeError, "size 6 is different from 7"),
        ({"c": drawn(4)}, ShapeError, "does not broadcast"),
        ({"bias": drawn(5, 1)}, ShapeError, "add it as c"),
        ({"activation": "relu"}, ProblemError, "apply them to the result"),
        ({"epilogue": lambda x: x}, ProblemError, "apply them to the result"),
        ({"out_dtype": "f32"}, DTypeError, "Cannot multiply complex64 into f32"),
        ({"alpha": 1j}, ProblemError, "alpha=1j is not a number"),
    ],
)
def test_what_cannot_be_asked(asked: dict[str, Any], kind: type[Exception], said: str) -> None:
    given = {"b": drawn(7, 3), **asked}
    with pytest.raises(kind, match=said):
        tw.matmul(drawn(5, 7), given.pop("b"), **given)


def test_calls_that_take_no_complex_numbers_say_which_do() -> None:
    with pytest.raises(DTypeError, match="multiplied by matmul and linear, and by no other call"):
        tw.grouped_matmul([drawn(5, 7)], [drawn(7, 3)])


def test_numpy_computes_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_host, "gpu_problem", lambda: "None is here.")
    monkeypatch.setitem(libraries._KNOWN, np.ndarray, libraries.HostArrays())
    calls.MULTIPLY.pop(np.ndarray, None)
    monkeypatch.setattr(on_host, "say_once", lambda text: None)
    a, b = drawn(5, 7), drawn(7, 3)
    np.testing.assert_allclose(tw.matmul(a, b), a @ b, atol=1e-5)
