"""Tensors in host memory: PyTorch multiplies them, and a warning says so once."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
from exact import assert_product  # noqa: E402

from tilewright import notices  # noqa: E402
from tilewright.errors import ProblemError  # noqa: E402
from tilewright.frontend import compute, linear, matmul  # noqa: E402


@pytest.fixture(autouse=True)
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(notices, "_SAID", set())
    compute.MEMO.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def test_it_says_once_that_the_tensors_lie_in_host_memory() -> None:
    a = torch.randn(3, 3)
    with pytest.warns(UserWarning, match="computes with PyTorch: the tensors lie in host memory"):
        matmul(a, a)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        matmul(a, a)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_results_are_right(dtype: Any) -> None:
    a, b, bias, c = (torch.randn(shape).to(dtype) for shape in ((7, 5), (5, 6), (6,), (7, 6)))
    assert_product(matmul(a, b), a, b)
    asked = {"c": c, "bias": bias, "alpha": 0.5, "beta": -2.0, "activation": "gelu"}
    assert_product(matmul(a, b, **asked), a, b, **asked)
    assert matmul(a, b, out_dtype="f32").dtype == torch.float32
    out = torch.empty(7, 6, dtype=dtype)
    assert matmul(a, b, out=out) is out
    assert_product(out, a, b)


@pytest.mark.parametrize("activation", [None, "relu", "silu"])
def test_gradients_are_right(activation: str | None) -> None:
    x, weight, bias = (torch.randn(shape, requires_grad=True) for shape in ((7, 5), (6, 5), (6,)))
    result = linear(x, weight, bias, activation=activation)
    ours = torch.autograd.grad(result.square().sum(), (x, weight, bias))
    expected = torch.nn.functional.linear(x, weight, bias)
    if activation is not None:
        expected = getattr(torch.nn.functional, activation)(expected)
    theirs = torch.autograd.grad(expected.square().sum(), (x, weight, bias))
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-4)


def test_mistakes_are_told_as_on_a_gpu() -> None:
    a = torch.randn(3, 4)
    with pytest.raises(ValueError, match="size 3 is different from 4"):
        matmul(a, a)
    with pytest.raises(TypeError, match="Cannot multiply f32 by f16"):
        matmul(a, a.T.half())
    with pytest.raises(TypeError, match=r"`out` holds torch\.float64"):
        matmul(a, a.T, out=torch.empty(3, 3).double())


def test_nested_tensors_are_refused_in_words() -> None:
    ragged = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])
    for a, b in ((ragged, torch.ones(3, 2)), (torch.ones(2, 3), ragged)):
        with pytest.raises(ProblemError, match="A nested tensor has no strides"):
            matmul(a, b)
