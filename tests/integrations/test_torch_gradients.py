"""Gradients of the operator against those of float64, for everything a call may ask."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
from exact import STEEPEST, assert_close, assert_product, exact  # noqa: E402

from tilewright.frontend import linear, matmul  # noqa: E402

pytestmark = pytest.mark.usefixtures("gpu")

M, N, K = 7, 6, 5
SHAPES = [
    ((M, K), (K, N)), ((K,), (K, N)), ((M, K), (K,)), ((K,), (K,)), ((3, M, K), (3, K, N)), ((3, M, K), (K, N)),
    ((M, K), (3, K, N)), ((2, 1, M, K), (3, K, N)), ((K,), (3, K, N)), ((3, M, K), (K,)),
]  # fmt: skip
ACTIVATIONS = [None, "relu", "gelu", "gelu_tanh", "silu"]


def drawn(*shape: int, dtype: Any = torch.float32) -> Any:
    return torch.randn(shape).to(dtype).requires_grad_()


def check_gradients(a: Any, b: Any, *, c: Any = None, bias: Any = None, out_dtype: Any = None, **options: Any) -> None:
    """The call, its result and the gradients of every tensor."""
    added = {name: x for name, x in (("c", c), ("bias", bias)) if x is not None}
    computed = matmul(a, b, **added, **options, out_dtype=out_dtype)
    assert_product(computed, a, b, **added, **options)
    seed = torch.randn(computed.shape).to(computed.dtype)
    tensors = {"a": a, "b": b, **added}
    gradients = torch.autograd.grad(computed, list(tensors.values()), seed)

    wide = {name: x.detach().double().requires_grad_() for name, x in tensors.items()}
    expected = torch.autograd.grad(exact(**wide, **options), list(wide.values()), seed.double())
    sizes = {name: x.detach().abs().requires_grad_() for name, x in wide.items()}
    factors = {name: abs(x) for name, x in options.items() if name != "activation"}
    before = exact(**sizes, **factors)
    magnitudes = torch.autograd.grad(before, list(sizes.values()), seed.double().abs())
    # A slope is off by the error of what it is taken at; no slope of these changes faster than 1.13 for each unit.
    factor = STEEPEST * (1 + (float(before.detach().max()) if options.get("activation") else 0.0))
    for name, gradient, wanted, magnitude in zip(tensors, gradients, expected, magnitudes, strict=True):
        assert gradient.dtype == tensors[name].dtype
        assert_close(gradient, wanted, factor * magnitude, terms=3 * M * N, roundings=4)


@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_vectors_batches_and_broadcasting(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = drawn(*left), drawn(*right)
    check_gradients(a, b, alpha=0.5)
    check_gradients(a, b, c=drawn(*torch.matmul(a, b).shape), beta=-0.5)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_behind_all_that_is_added(activation: str | None) -> None:
    a, b, c = drawn(M, K), drawn(K, N), drawn(M, N)
    for bias in (drawn(N), drawn(M, 1)):
        check_gradients(a, b, c=c, bias=bias, alpha=2.0, beta=0.5, activation=activation)


@pytest.mark.parametrize("shape", [(M, N), (N,), (1, N), (M, 1), (1,), ()])
def test_a_residual_that_is_broadcast(shape: tuple[int, ...]) -> None:
    check_gradients(drawn(M, K), drawn(K, N), c=drawn(*shape), beta=0.5)


def test_a_bias_of_batches_and_vectors() -> None:
    check_gradients(drawn(3, M, K), drawn(K, N), bias=drawn(N))
    check_gradients(drawn(3, M, K), drawn(3, K, N), bias=drawn(M, 1))
    check_gradients(drawn(K), drawn(K, N), bias=drawn(N))
    check_gradients(drawn(M, K), drawn(K), bias=drawn(M))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_formats_and_wide_results(dtype: Any) -> None:
    a, b = drawn(M, K, dtype=dtype), drawn(K, N, dtype=dtype)
    check_gradients(a, b, bias=drawn(N, dtype=dtype))
    check_gradients(a, b, c=drawn(M, N, dtype=dtype), alpha=0.5, out_dtype="f32")


def test_transposed_views_and_only_the_gradients_that_are_wanted(gpu: Any) -> None:
    x, w = drawn(M, K), drawn(N, K)
    check_gradients(x, w.T)
    before = len(gpu.launches)
    (gradient,) = torch.autograd.grad(matmul(x.detach(), w.T).sum(), w)
    assert gradient.shape == w.shape
    assert len(gpu.launches) == before + 2  # forward, and one backward


def test_linear_is_as_that_of_torch() -> None:
    x, w, bias = drawn(3, M, K), drawn(N, K), drawn(N)
    ours = torch.autograd.grad(linear(x, w, bias, activation="relu").sum(), (x, w, bias))
    theirs = torch.autograd.grad(torch.nn.functional.linear(x, w, bias).relu().sum(), (x, w, bias))
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, other)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_of_gradients(activation: str | None) -> None:
    tensors = {"a": drawn(M, K), "b": drawn(K, N), "c": drawn(M, N), "bias": drawn(N)}
    options: dict[str, Any] = {"alpha": 0.5, "beta": 2.0, "activation": activation}

    def second(call: Any, given: dict[str, Any]) -> Any:
        inner = [given["a"], given["b"]]
        first = torch.autograd.grad(call(**given, **options).square().sum(), inner, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), list(given.values()))

    ours = second(matmul, tensors)
    theirs = second(exact, {name: x.detach().double().requires_grad_() for name, x in tensors.items()})
    for own, other in zip(ours, theirs, strict=True):
        scale = float(other.abs().max())
        assert float((own.double() - other).abs().max()) <= 1e-4 * scale


def test_no_gradients_where_none_are_wanted() -> None:
    a, b = drawn(M, K), drawn(K, N)
    with torch.no_grad():
        assert not matmul(a, b).requires_grad
    with torch.inference_mode():
        assert matmul(a, b).is_inference()
    assert matmul(a, b).requires_grad


def test_empty_products_have_gradients() -> None:
    for m, k, n in ((0, 4, 3), (3, 0, 4), (3, 4, 0)):
        a, b = drawn(m, k), drawn(k, n)
        matmul(a, b).sum().backward()
        assert a.grad.shape == a.shape and b.grad.shape == b.shape
        assert not a.grad.any() and not b.grad.any()
