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
from tilewright.frontend import compute, grouped_matmul, linear, matmul, scaled_matmul  # noqa: E402


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


def spread(*shape: int) -> Any:
    """A matrix of every other row and column of a larger one: neither index is contiguous."""
    *batch, m, n = shape
    return torch.randn(*batch, 2 * m, 2 * n)[..., ::2, ::2]


def test_tensors_lie_as_they_like() -> None:
    a, b, bias, c = spread(7, 5), spread(5, 6), torch.randn(12)[::2], spread(7, 6)
    assert_product(matmul(a, b, c=c, bias=bias), a, b, c=c, bias=bias)
    assert_product(matmul(a.T.contiguous().T, b), a, b)
    torch.testing.assert_close(linear(a, b.T), a @ b)
    torch.testing.assert_close(matmul(a[:1].expand(7, 5), b), a[:1].expand(7, 5) @ b)
    torch.testing.assert_close(matmul(spread(3, 7, 5), b[:, 0]).shape, torch.Size([3, 7]))
    out = spread(7, 6)
    torch.testing.assert_close(matmul(a, b, out=out), a @ b)
    added = matmul(a, b, epilogue=lambda acc, r: acc + r, operands={"r": c})
    torch.testing.assert_close(added, a @ b + c)
    torch.testing.assert_close(torch.compile(matmul, backend="aot_eager")(a, b), a @ b)


def test_the_gradient_of_a_sum_is_right() -> None:
    """It is one number, expanded to the shape of the result."""
    x, weight = torch.randn(7, 5, requires_grad=True), torch.randn(6, 5, requires_grad=True)
    ours = torch.autograd.grad(linear(x, weight).sum(), (x, weight))
    theirs = torch.autograd.grad(torch.nn.functional.linear(x, weight).sum(), (x, weight))
    offsets = torch.tensor([3, 7], dtype=torch.int32)
    stack = torch.randn(2, 5, 6, requires_grad=True)
    ours += torch.autograd.grad(grouped_matmul(x, stack, offsets=offsets).sum(), (x, stack))
    joined = torch.cat((x[:3] @ stack[0], x[3:] @ stack[1]))
    theirs += torch.autograd.grad(joined.sum(), (x, stack))
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-4)


def test_lists_have_gradients_and_can_be_compiled_and_mapped() -> None:
    x, y, bias = (torch.randn(shape, requires_grad=True) for shape in ((7, 5), (5, 6), (6,)))

    def products(x: Any, y: Any, bias: Any) -> Any:
        first, second = grouped_matmul([x, x[:3]], [y, y], bias=[bias, bias], activation="silu")
        return first.square().sum() + second.sum()

    silu = torch.nn.functional.silu
    expected = silu(x @ y + bias).square().sum() + silu(x[:3] @ y + bias).sum()
    theirs = torch.autograd.grad(expected, (x, y, bias))
    for multiply in (products, torch.compile(products, backend="aot_eager", fullgraph=True)):
        for own, other in zip(torch.autograd.grad(multiply(x, y, bias), (x, y, bias)), theirs, strict=True):
            torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-4)
    stack = torch.randn(2, 7, 5)
    (mapped,) = torch.vmap(lambda one: grouped_matmul([one], [y.detach()]))(stack)
    torch.testing.assert_close(mapped, stack @ y.detach(), rtol=1e-4, atol=1e-4)


def test_operands_of_fp8_lie_as_they_like() -> None:
    a, b = (spread(*shape).to(torch.float8_e4m3fn) for shape in ((32, 48), (48, 16)))
    a, b = a.repeat_interleave(2, 1)[:, ::2], b.repeat_interleave(2, 0)[::2]
    one = torch.ones(1)
    found = scaled_matmul(a, b, one, one)
    torch.testing.assert_close(found, (a.float() @ b.float()).bfloat16())
    compiled = torch.compile(lambda x, y: scaled_matmul(x, y, one, one), backend="aot_eager")
    assert torch.equal(compiled(a, b), found)


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
