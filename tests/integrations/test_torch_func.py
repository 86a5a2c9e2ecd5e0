"""The operator under torch.func: vmap, grad, and both."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
from exact import exact  # noqa: E402

from tilewright.frontend import matmul  # noqa: E402

pytestmark = [pytest.mark.usefixtures("gpu"), pytest.mark.filterwarnings("ignore:`torch.jit.script")]  # of torch.func

M, N, K = 7, 6, 5


def assert_same(ours: Any, theirs: Any) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("left", "right", "dims"),
    [
        ((4, M, K), (4, K, N), (0, 0)),
        ((M, 4, K), (K, N), (1, None)),
        ((M, K), (K, N, 4), (None, 2)),
        ((4, K), (K, N), (0, None)),
        ((4, K), (4, K), (0, 0)),
        ((M, K), (4, K), (None, 0)),
        ((4, 3, M, K), (K, N), (0, None)),
        ((4, M, K), (3, K, N), (0, None)),
        ((3, M, K), (4, K, N), (None, 0)),
        ((4, 2, 1, M, K), (4, 3, K, N), (0, 0)),
        ((4, K), (4, 3, K, N), (0, 0)),
    ],
)
def test_each_of_many_products(left: Any, right: Any, dims: Any) -> None:
    a, b = torch.randn(left), torch.randn(right)
    assert_same(torch.func.vmap(matmul, dims)(a, b), torch.func.vmap(torch.matmul, dims)(a, b))


@pytest.mark.parametrize("mapped", ["a", "b", "c", "bias", "a c", "b bias", "a b c bias"])
def test_what_is_added_may_be_mapped_too(mapped: str) -> None:
    shapes = {"a": (M, K), "b": (K, N), "c": (N,), "bias": (M, 1)}
    tensors = [torch.randn(*((4,) if name in mapped.split() else ()), *shape) for name, shape in shapes.items()]
    dims = tuple(0 if name in mapped.split() else None for name in shapes)

    def ours(a: Any, b: Any, c: Any, bias: Any) -> Any:
        return matmul(a, b, c=c, bias=bias, alpha=0.5, beta=2.0, activation="silu")

    def theirs(a: Any, b: Any, c: Any, bias: Any) -> Any:
        return exact(a, b, c=c, bias=bias, alpha=0.5, beta=2.0, activation="silu")

    assert_same(torch.func.vmap(ours, dims)(*tensors), torch.func.vmap(theirs, dims)(*tensors))


@pytest.mark.parametrize(("left", "right"), [((K,), (K, N)), ((M, K), (K,)), ((3, M, K), (K,)), ((K,), (3, K, N))])
def test_vectors_with_a_mapped_residual_and_bias(left: Any, right: Any) -> None:
    a, b = torch.randn(4, *left), torch.randn(right)
    shape = torch.matmul(a[0], b).shape
    c, bias = torch.randn(4, *shape), torch.randn(4, shape[-1])
    call = torch.func.vmap(lambda a, b, c, bias: matmul(a, b, c=c, bias=bias), (0, None, 0, 0))
    wanted = torch.func.vmap(lambda a, b, c, bias: exact(a, b, c=c, bias=bias), (0, None, 0, 0))
    assert_same(call(a, b, c, bias), wanted(a, b, c, bias))


def test_vmap_within_vmap() -> None:
    a, b = torch.randn(4, 3, M, K), torch.randn(4, 2, K, N)
    ours, theirs = (
        torch.func.vmap(torch.func.vmap(call, (0, None)), (0, None))(a, b[0, 0]) for call in (matmul, torch.matmul)
    )
    assert_same(ours, theirs)


def test_one_product_within_vmap_costs_one_launch(gpu: Any) -> None:
    torch.func.vmap(matmul)(torch.randn(40, M, K), torch.randn(40, K, N))
    assert len(gpu.launches) == 1


@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
def test_grad_of_a_function(activation: str | None) -> None:
    """Of all that is added, too."""
    given = torch.randn(M, K), torch.randn(K, N), torch.randn(M, N), torch.randn(N)

    def loss(call: Any) -> Any:
        def of(a: Any, b: Any, c: Any, bias: Any) -> Any:
            return call(a, b, c=c, bias=bias, alpha=0.5, activation=activation).square().sum()

        return torch.func.grad(of, argnums=(0, 1, 2, 3))

    for own, other in zip(loss(matmul)(*given), loss(exact)(*given), strict=True):
        assert_same(own, other)


def test_gradients_for_each_sample() -> None:
    weight, samples = torch.randn(K, N), torch.randn(8, K)

    def each(call: Any) -> Any:
        return torch.func.vmap(torch.func.grad(lambda w, x: call(x, w).square().sum()), (None, 0))(weight, samples)

    assert_same(each(matmul), each(torch.matmul))


def test_a_jacobian() -> None:
    a, b = torch.randn(M, K), torch.randn(K, N)
    ours, theirs = (torch.func.jacrev(lambda x, call=call: call(x, b))(a) for call in (matmul, torch.matmul))
    assert_same(ours, theirs)
    ours, theirs = (torch.func.jacfwd(lambda x, call=call: call(x, b))(a) for call in (matmul, torch.matmul))
    assert_same(ours, theirs)


@pytest.mark.parametrize("activation", [None, "gelu"])
def test_a_hessian_is_a_tangent_of_a_gradient(activation: str | None) -> None:
    a, b = torch.randn(3, 2), torch.randn(2, 3)
    ours, theirs = (
        torch.func.hessian(lambda x, call=call: call(x, b, activation=activation).square().sum())(a)
        for call in (matmul, exact)
    )
    assert_same(ours, theirs)


def test_gradients_within_vmap_reach_tensors_outside() -> None:
    weight = torch.randn(K, N, requires_grad=True)
    samples = torch.randn(8, K)
    ours, theirs = (
        torch.autograd.grad(torch.func.vmap(call, (0, None))(samples, weight).square().sum(), weight)[0]
        for call in (matmul, torch.matmul)
    )
    assert_same(ours, theirs)
