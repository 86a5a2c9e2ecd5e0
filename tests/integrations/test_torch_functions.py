"""Functions of the epilogue with tensors of PyTorch: results, gradients, and what PyTorch does not see into."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")

from tilewright.errors import ProblemError  # noqa: E402
from tilewright.frontend import linear_gated, matmul, ops  # noqa: E402
from tilewright.problem.philox import uniform  # noqa: E402

pytestmark = [pytest.mark.usefixtures("gpu"), pytest.mark.filterwarnings("ignore")]

M, N, K = 7, 6, 5


def drawn(*shape: int, dtype: Any = torch.float32) -> Any:
    return torch.randn(shape).to(dtype).requires_grad_()


def linear_in_the_sum(acc: Any, gate: Any) -> Any:
    return acc * gate + 1.0


def smooth(acc: Any, gate: Any) -> Any:
    return ops.silu(acc) * ops.sigmoid(gate) + ops.tanh(acc * 0.5) / (2.0 + ops.exp(-gate))


def of_pieces(acc: Any, gate: Any) -> Any:
    return ops.where(gate > 0, ops.maximum(acc, gate), abs(acc) ** 2) + ops.gelu(gate) - ops.gelu_tanh(acc)


def others(acc: Any, gate: Any) -> Any:
    return (
        ops.sqrt(1.0 + acc * acc) + ops.log(2.0 + gate * gate) * ops.erf(acc) - ops.relu(-acc) + ops.minimum(acc, 0.5)
    )


def as_torch(function: Any, acc: Any, gate: Any) -> Any:
    nn = torch.nn.functional
    match function.__name__:
        case "linear_in_the_sum":
            return acc * gate + 1.0
        case "smooth":
            return nn.silu(acc) * torch.sigmoid(gate) + torch.tanh(acc * 0.5) / (2.0 + torch.exp(-gate))
        case "of_pieces":
            chosen = torch.where(gate > 0, torch.maximum(acc, gate), acc.abs() ** 2)
            return chosen + nn.gelu(gate) - nn.gelu(acc, approximate="tanh")
        case _:
            roots = torch.sqrt(1 + acc * acc) + torch.log(2.0 + gate * gate) * torch.erf(acc)
            return roots - nn.relu(-acc) + acc.clamp(max=0.5)


def assert_same(ours: Any, theirs: Any) -> None:
    torch.testing.assert_close(ours.double(), theirs.double(), rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("function", [linear_in_the_sum, smooth, of_pieces, others])
@pytest.mark.parametrize("shape", [(M, N), (N,), (M, 1), ()])
def test_gradients_are_those_of_float64(function: Any, shape: tuple[int, ...]) -> None:
    a, b, c, bias, gate = drawn(M, K), drawn(K, N), drawn(M, N), drawn(N), drawn(*shape)
    given = [a, b, c, bias, gate]
    found = matmul(a, b, c=c, alpha=0.5, beta=2.0, bias=bias, epilogue=function, operands={"gate": gate})
    wide = [x.detach().double().requires_grad_() for x in given]
    expected = as_torch(function, 0.5 * wide[0] @ wide[1] + 2.0 * wide[2] + wide[3], wide[4])
    assert_same(found, expected)
    seed = torch.randn(M, N)
    ours, theirs = torch.autograd.grad(found, given, seed), torch.autograd.grad(expected, wide, seed.double())
    for one, other, tensor in zip(ours, theirs, given, strict=True):
        assert one.shape == tensor.shape and one.dtype == tensor.dtype
        assert_same(one, other)


def test_batches_and_numbers() -> None:
    a, b, gate = drawn(3, M, K), drawn(K, N), drawn(3, M, N)
    found = matmul(a, b, epilogue=lambda acc, gate, rate: acc * acc * gate * rate, operands={"gate": gate, "rate": 0.5})
    expected = (a @ b) ** 2 * gate * 0.5
    assert_same(found, expected)
    for one, other in zip(
        torch.autograd.grad(found.sum(), [a, b, gate]), torch.autograd.grad(expected.sum(), [a, b, gate]), strict=True
    ):
        assert_same(one, other)


def test_gradients_of_gradients() -> None:
    a, b, gate = drawn(M, K), drawn(K, N), drawn(M, N)

    def penalty(found: Any) -> Any:
        first = torch.autograd.grad(found.sum(), [a, gate], create_graph=True)
        return torch.autograd.grad(sum((x * x).sum() for x in first), [a, b, gate])

    ours = penalty(matmul(a, b, epilogue=smooth, operands={"gate": gate}))
    theirs = penalty(as_torch(smooth, a @ b, gate))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-3, atol=2e-3)


def test_half_the_bits() -> None:
    a, b, gate = drawn(16, 8, dtype=torch.bfloat16), drawn(8, 16, dtype=torch.bfloat16), drawn(16, 16)
    found = matmul(a, b, epilogue=smooth, operands={"gate": gate})
    found.sum().backward()
    assert [x.grad.dtype for x in (a, b, gate)] == [torch.bfloat16, torch.bfloat16, torch.float32]


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "relu"])
@pytest.mark.parametrize("lead", [(M,), (2, 3), ()])
def test_gated_layers(activation: str, lead: tuple[int, ...]) -> None:
    x, gate, up = drawn(*lead, K), drawn(N, K), drawn(N, K)
    functional = torch.nn.functional
    known = {
        "silu": functional.silu,
        "gelu": functional.gelu,
        "gelu_tanh": lambda h: functional.gelu(h, approximate="tanh"),
        "relu": functional.relu,
    }
    found, expected = linear_gated(x, gate, up, activation=activation), known[activation](x @ gate.T) * (x @ up.T)
    assert_same(found, expected)
    seed = torch.randn(*lead, N)
    ours, theirs = (torch.autograd.grad(one, [x, gate, up], seed) for one in (found, expected))
    for one, other in zip(ours, theirs, strict=True):
        assert_same(one, other)


def several(acc: Any, gate: Any) -> Any:
    x = acc * ops.sigmoid(gate)
    return {"x": x, "squares": ops.row_sum_of_squares(x + gate), "other": acc - gate, "sum": ops.column_sum(acc * acc)}


@pytest.mark.parametrize("lead", [(M,), (2, 3)])
@pytest.mark.parametrize("used", [("x", "squares", "other", "sum"), ("squares",), ("x", "sum")])
def test_gradients_of_several_results(used: tuple[str, ...], lead: tuple[int, ...]) -> None:
    a, b, gate = drawn(*lead, K), drawn(K, N), drawn(*lead, N)
    found = matmul(a, b, epilogue=several, operands={"gate": gate})
    wide = [x.detach().double().requires_grad_() for x in (a, b, gate)]
    acc = wide[0] @ wide[1]
    x = acc * torch.sigmoid(wide[2])
    expected = {"x": x, "squares": (x + wide[2]).square().sum(-1, keepdim=True), "other": acc - wide[2]}
    expected["sum"] = acc.square().reshape(-1, N).sum(0)
    for name, one in expected.items():
        assert found[name].shape == one.shape
        assert_same(found[name], one)
    seeds = {name: torch.randn(expected[name].shape) for name in used}
    ours = torch.autograd.grad([found[name] for name in used], [a, b, gate], [seeds[name] for name in used])
    wider = [seeds[name].double() for name in used]
    theirs = torch.autograd.grad([expected[name] for name in used], wide, wider)
    for one, other in zip(ours, theirs, strict=True):
        assert_same(one, other)


def test_gradients_of_rotary_embedding() -> None:
    a, b, cos, sin = drawn(M, K), drawn(K, N), drawn(M, N), drawn(N)

    def bent(acc: Any, cos: Any, sin: Any) -> Any:
        return ops.rotary(ops.silu(acc) * cos, cos, sin)

    found = matmul(a, b, epilogue=bent, operands={"cos": cos, "sin": sin})
    wide = [x.detach().double().requires_grad_() for x in (a, b, cos, sin)]
    x = torch.nn.functional.silu(wide[0] @ wide[1]) * wide[2]
    turned = torch.stack((-x[:, 1::2], x[:, 0::2]), -1).flatten(-2)
    expected = x * wide[2] + turned * wide[3]
    assert_same(found, expected)
    seed = torch.randn(M, N)
    ours = torch.autograd.grad(found, [a, b, cos, sin], seed)
    theirs = torch.autograd.grad(expected, wide, seed.double())
    for one, other in zip(ours, theirs, strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("bent", [False, True])
def test_the_same_elements_are_dropped_backward(bent: bool) -> None:
    a, b, residual = drawn(2, 3, K), drawn(K, N), drawn(2, 3, N)

    def dropped(acc: Any, residual: Any, seed: Any) -> Any:
        return ops.dropout(acc * acc if bent else acc, 0.5, seed, 4) + residual

    found = matmul(a, b, epilogue=dropped, operands={"residual": residual, "seed": 11})
    kept = torch.from_numpy(uniform(11, 4, np.arange(6)[:, None], np.arange(N))).reshape(2, 3, N) >= 0.5
    acc = a @ b
    expected = torch.where(kept, 2.0 * (acc * acc if bent else acc), 0.0) + residual
    assert_same(found, expected)
    seed = torch.randn(2, 3, N)
    ours, theirs = (torch.autograd.grad(one, [a, b, residual], seed) for one in (found, expected))
    for one, other in zip(ours, theirs, strict=True):
        assert_same(one, other)


def test_the_largest_of_rows_has_no_gradient() -> None:
    a, b = drawn(M, K), drawn(K, N)
    found, largest = matmul(a, b, epilogue=lambda acc: (acc * acc, ops.row_max(acc)))
    assert found.requires_grad and not largest.requires_grad
    assert_same(torch.autograd.grad(found.sum(), a)[0], torch.autograd.grad((a @ b).square().sum(), a)[0])


def test_compiled_code_calls_it_between_graphs() -> None:
    x, gate, up = drawn(M, K), drawn(N, K), drawn(N, K)

    def call(x: Any) -> Any:
        return matmul(x + 1, up.T, epilogue=lambda acc: acc * acc).sin() + linear_gated(x, gate, up)

    found = torch.compile(call, backend="eager")(x)
    expected = ((x + 1) @ up.T).square().sin() + torch.nn.functional.silu(x @ gate.T) * (x @ up.T)
    assert_same(found, expected)
    assert_same(torch.autograd.grad(found.sum(), x)[0], torch.autograd.grad(expected.sum(), x)[0])


def test_what_pytorch_does_not_see_into() -> None:
    a, b = drawn(M, K), drawn(K, N)
    with pytest.raises(ProblemError, match="out"):
        matmul(a, b, out=torch.empty(M, N), epilogue=lambda acc: acc * acc)
    with pytest.raises(ProblemError, match="do not see"):
        torch.func.vmap(lambda x: matmul(x, b.detach(), epilogue=lambda acc: acc * acc))(torch.randn(2, M, K))
