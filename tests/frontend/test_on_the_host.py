"""NumPy arrays: NumPy multiplies where there is no GPU, and says so once."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from tilewright import notices
from tilewright.errors import ProblemError
from tilewright.frontend import grouped_matmul, linear, matmul
from tilewright.problem.functions import Activation
from tilewright.runtime.driver import gpu_problem

pytestmark = pytest.mark.skipif(gpu_problem() is None, reason="there is a GPU")
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "_SAID", set())
    warnings.simplefilter("ignore")


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape, np.float32)


def test_it_says_once_that_there_is_no_gpu() -> None:
    a = normal(3, 3)
    with pytest.warns(UserWarning, match=r"computes with NumPy\. No NVIDIA driver|computes with NumPy\. The NVIDIA"):
        matmul(a, a)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        matmul(a, a)


def test_results_are_those_of_numpy() -> None:
    for left, right in (
        ((3, 4), (4, 5)),
        ((4,), (4, 5)),
        ((3, 4), (4,)),
        ((4,), (4,)),
        ((2, 3, 4), (4, 5)),
        ((3, 0), (0, 2)),
    ):
        a, b = normal(*left), normal(*right)
        ours, theirs = matmul(a, b), np.matmul(a, b)
        assert type(ours) is type(theirs) and ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


def test_epilogues_are_computed_too() -> None:
    a, b, bias, c = normal(3, 4), normal(4, 5), normal(5), normal(3, 5)
    expected = Activation.GELU.of(2.0 * (a.astype(float) @ b) - 0.5 * c + bias)
    np.testing.assert_allclose(
        matmul(a, b, alpha=2, c=c, beta=-0.5, bias=bias, activation="gelu"), expected, rtol=1e-5, atol=1e-5
    )
    np.testing.assert_allclose(linear(a, b.T, bias), a @ b + bias, rtol=1e-6)
    out = np.zeros((3, 5), np.float32)
    assert matmul(a, b, out=out) is out
    np.testing.assert_array_equal(out, a @ b)
    wide = matmul(a.astype(np.float16), b.astype(np.float16), out_dtype="f32")
    assert wide.dtype == np.float32
    (first, second) = grouped_matmul([a, normal(2, 4)], [b, b])
    assert first.shape == (3, 5) and second.shape == (2, 5)


def test_mistakes_are_told_as_on_a_gpu() -> None:
    a = normal(3, 4)
    with pytest.raises(ValueError, match="size 3 is different from 4"):
        matmul(a, a)
    with pytest.raises(TypeError, match="float64"):
        matmul(a.astype(float), a.T.astype(float))
    with pytest.raises(ValueError, match=r"`out` has shape \(2, 2\)"):
        matmul(a, a.T, out=np.zeros((2, 2), np.float32))
    with pytest.raises(TypeError, match=r"`out` holds f16(.|\n)*Hint: pass an out of f32"):
        matmul(a, a.T, out=np.zeros((3, 3), np.float16))
    with pytest.raises(TypeError, match="`out` holds float64, and results are f32, f16 or bf16"):
        matmul(a, a.T, out=np.zeros((3, 3)))
    masked, out = np.ma.masked_less(a, 0), np.ma.zeros((3, 3), np.float32)
    for given in ({"a": masked}, {"b": masked.T}, {"c": np.ma.masked_less(a @ a.T, 0)}, {"out": out}):
        with pytest.raises(ProblemError, match="A masked array is given, and products know no masks"):
            matmul(**{"a": a, "b": a.T, **given})
    constant = np.zeros((3, 3), np.float32)
    constant.flags.writeable = False
    with pytest.raises(ProblemError, match="`out` is read-only"):
        matmul(a, a.T, out=constant)
    with pytest.raises(ValueError, match="c of shape"):
        matmul(a, a.T, c=np.zeros((2, 2), np.float32))
    with pytest.raises(ProblemError, match="bias is a list"):
        matmul(a, a.T, bias=[1, 2, 3])
    with pytest.raises(ValueError, match="A bias of shape"):
        matmul(a, a.T, bias=np.zeros(2, np.float32))


def test_every_library_says_where_its_arrays_lie() -> None:
    """Also that of our own arrays, in which those of NumPy travel: nothing else on a machine without a GPU calls it."""
    from types import SimpleNamespace

    from tilewright.frontend.libraries.ours import DeviceArrays

    array = SimpleNamespace(pointer=4096, shape=(3, 2), dtype=np.dtype("float32"), gpu=SimpleNamespace(index=0))
    assert DeviceArrays().address(array) == DeviceArrays().view(array).pointer == 4096
