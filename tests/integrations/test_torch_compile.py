"""Compiled functions and modules that multiply: one graph, the same results and gradients, clear errors."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
from exact import assert_product, exact  # noqa: E402
from torch import library  # noqa: E402

import tilewright  # noqa: E402
from tilewright.frontend import linear, matmul  # noqa: E402

# What torch.compile imports and does warns of itself, differently in each version.
pytestmark = [pytest.mark.usefixtures("gpu"), pytest.mark.filterwarnings("ignore")]

BACKENDS = ["eager", "aot_eager", "inductor"]


def compiled(call: Callable[..., Any], backend: str = "aot_eager", **options: Any) -> Any:
    """In one graph: what breaks it raises."""
    if backend == "inductor" and shutil.which("g++") is None:
        pytest.skip("inductor needs a C++ compiler for tensors of the CPU")
    return torch.compile(call, fullgraph=True, backend=backend, **options)


def drawn(*shape: int) -> Any:
    return torch.randn(shape, requires_grad=True)


def assert_same(ours: Any, theirs: Any) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "options",
    [
        {}, {"alpha": 0.5}, {"c": (7, 6), "beta": 0.5}, {"c": (6,)}, {"c": (7, 6), "beta": 0}, {"bias": (6,)},
        {"bias": (7, 1), "activation": "gelu"}, {"activation": "relu"}, {"batch_invariant": True},
        {"deterministic": "bitwise"},
    ],
    ids=str,
)  # fmt: skip
def test_a_function_and_its_gradients(backend: str, options: dict[str, Any]) -> None:
    given = {name: drawn(*x) if isinstance(x, tuple) else x for name, x in options.items()}
    a, b = drawn(7, 5), drawn(5, 6)
    result = compiled(lambda x, y: matmul(2 * x, y, **given), backend)(a, b)
    known = {name: x for name, x in given.items() if name not in ("batch_invariant", "deterministic")}
    assert_product(result, 2 * a, b, **known)
    wanted = [a, b, *(x for name, x in given.items() if isinstance(x, torch.Tensor) and options.get("beta") != 0)]
    ours = torch.autograd.grad(result.square().sum(), wanted)
    theirs = torch.autograd.grad(exact(2 * a, b, **known).square().sum(), wanted)
    for own, other in zip(ours, theirs, strict=True):
        assert_same(own, other)


@pytest.mark.parametrize("name", ["out_dtype", "precision"])
def test_formats(name: str) -> None:
    a, b = torch.randn(7, 5).bfloat16(), torch.randn(5, 6).bfloat16()
    if name == "out_dtype":
        for asked in ("f32", torch.float32):
            result = compiled(lambda x, y, asked=asked: matmul(x, y, out_dtype=asked))(a, b)
            assert result.dtype == torch.float32
            assert_product(result, a, b)
    else:
        call = compiled(lambda x, y: matmul(x, y, precision="tf32"))
        assert_product(call(a, b), a, b)


class Block(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Parameter(torch.randn(12, 8)), torch.nn.Parameter(torch.randn(8, 12))
        self.bias = torch.nn.Parameter(torch.randn(12))

    def forward(self, x: Any) -> Any:
        return x + linear(linear(x, self.first, self.bias, activation="gelu"), self.second)

    def by_torch(self, x: Any) -> Any:
        functional = torch.nn.functional
        return x + functional.linear(functional.gelu(functional.linear(x, self.first, self.bias)), self.second)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_module(backend: str) -> None:
    block, x = Block(), drawn(3, 5, 8)
    result = compiled(block, backend)(x)
    assert_same(result, block.by_torch(x))
    ours = torch.autograd.grad(result.square().sum(), [x, *block.parameters()])
    theirs = torch.autograd.grad(block.by_torch(x).square().sum(), [x, *block.parameters()])
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-3, atol=1e-3)


def test_there_is_no_break_in_the_graph() -> None:
    told = torch._dynamo.explain(lambda x, w, y: tilewright.matmul(linear(x, w), y).sum())(
        torch.randn(7, 5), torch.randn(6, 5), torch.randn(6, 4)
    )
    assert told.graph_break_count == 0 and told.graph_count == 1


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_new_shapes_compile_nothing_new(backend: str) -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend(backend)
    call = torch.compile(lambda x, y: matmul(x, y, bias=y[0]), fullgraph=True, backend=counter, dynamic=True)
    compiled = []
    for m, k, n in ((7, 5, 6), (9, 4, 11), (30, 16, 3)):
        a, b = torch.randn(m, k), torch.randn(k, n)
        assert_product(call(a, b), a, b, bias=b[0])
        compiled.append(counter.frame_count)
    assert len(set(compiled)) == 1


def test_factors_that_change() -> None:
    a, b, c = torch.randn(7, 5), torch.randn(5, 6), torch.randn(7, 6)
    call = compiled(lambda x, y, z, alpha, beta: matmul(x, y, c=z, alpha=alpha, beta=beta))
    for alpha, beta in ((1.0, 0.5), (0.25, 2.0), (3, 0), (-1.5, 1)):
        assert_product(call(a, b, c, alpha, beta), a, b, c=c, alpha=alpha, beta=beta)


@pytest.mark.parametrize("backend", BACKENDS)
def test_out_is_written(backend: str) -> None:
    a, b, out = torch.randn(7, 5), torch.randn(5, 6), torch.zeros(7, 6)

    def call(x: Any, y: Any, z: Any) -> Any:
        matmul(x, y, out=z)
        return z + 1

    result = compiled(call, backend)(a, b, out)
    assert_product(out, a, b)
    assert_same(result, out + 1)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"activation": "tanh"}, "no activation 'tanh'"),
        ({"precision": "bf16"}, "precision='bf16' is not known"),
        ({"out_dtype": "int8"}, "Cannot multiply into int8"),
        ({"beta": 2.0}, "beta=2.0 has nothing to multiply"),
        ({"deterministic": "sometimes"}, "deterministic='sometimes' is not known"),
    ],
)
def test_mistakes_are_told_while_compiling(asked: dict[str, Any], said: str) -> None:
    a, b = torch.randn(7, 5), torch.randn(5, 6)
    with pytest.raises(Exception, match=said):
        compiled(lambda x, y: matmul(x, y, **asked))(a, b)


@pytest.mark.parametrize(
    ("shape", "dtype", "said"),
    [((4, 6), torch.float32, "size 4 is different from 5"), ((5, 6), torch.bfloat16, "Cannot multiply f32 by bf16")],
)
def test_wrong_operands_are_told_while_compiling(shape: Any, dtype: Any, said: str) -> None:
    with pytest.raises(Exception, match=said):
        compiled(matmul)(torch.randn(7, 5), torch.randn(shape).to(dtype))


def test_out_with_gradients_is_refused_while_compiling() -> None:
    with pytest.raises(Exception, match="`out` has no gradients"):
        compiled(lambda x, y, z: matmul(x, y, out=z))(drawn(7, 5), torch.randn(5, 6), torch.empty(7, 6))


def test_a_compiled_function_that_is_mapped() -> None:
    a, b = torch.randn(4, 7, 5), torch.randn(5, 6)
    call = compiled(lambda x, y: torch.func.vmap(matmul, (0, None))(x, y))
    if not hasattr(library, "register_vmap"):
        pytest.skip("operators have rules for vmap since PyTorch 2.5")
    assert_same(call(a, b), a @ b)


def test_an_exported_program_multiplies() -> None:
    program = torch.export.export(Block(), (torch.randn(3, 8),))
    names = [str(node.target) for node in program.graph.nodes]
    assert sum("tilewright.matmul" in name for name in names) == 2
    module, x = program.module(), torch.randn(3, 8)
    assert_same(module(x), Block.by_torch(module, x))


def test_a_checkpointed_block_is_computed_again() -> None:
    from torch.utils.checkpoint import checkpoint

    block, x = Block(), drawn(5, 8)
    ours = torch.autograd.grad(checkpoint(block, x, use_reentrant=False).square().sum(), [x, *block.parameters()])
    theirs = torch.autograd.grad(block(x).square().sum(), [x, *block.parameters()])
    for own, other in zip(ours, theirs, strict=True):
        assert torch.equal(own, other)
