"""Products of DTensors on two ranks, each beside the same product of whole tensors."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import tilewright

R, S = Replicate(), Shard


def mesh(ranks: int) -> Any:
    return init_device_mesh("cpu", (ranks,))


def close(ours: Any, theirs: Any) -> None:
    ours = ours.full_tensor() if isinstance(ours, DTensor) else ours
    assert ours.shape == theirs.shape, (ours.shape, theirs.shape)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def integers(shape: tuple[int, ...]) -> Any:
    """Small ones, whose sums are exact in any order."""
    return torch.randint(-3, 4, shape).float()


def both(shapes: dict[str, tuple[int, ...]], places: dict[str, Any], ranks: int, **options: Any) -> Any:
    """A product of whole tensors and of sharded ones, forward and backward. Returns the sharded result."""
    whole = {name: integers(shape).requires_grad_() for name, shape in shapes.items()}
    device_mesh = mesh(ranks)
    own = {
        name: distribute_tensor(x.detach(), device_mesh, [places.get(name, R)]).requires_grad_()
        for name, x in whole.items()
    }
    expected, result = tilewright.matmul(**whole, **options), tilewright.matmul(**own, **options)
    close(result, expected)
    expected.square().sum().backward()
    result.full_tensor().square().sum().backward()
    for name, x in whole.items():
        close(own[name].grad, x.grad)
    return result


def case_matrices(rank: int, ranks: int) -> None:
    expected = {(0, None): S(0), (None, 1): S(1), (1, 0): Partial(), (None, None): R}
    for of_a, of_b in itertools.product((None, 0, 1), repeat=2):
        places = {"a": R if of_a is None else S(of_a), "b": R if of_b is None else S(of_b)}
        result = both({"a": (6, 8), "b": (8, 10)}, places, ranks)
        if (of_a, of_b) in expected:
            assert result.placements[0] == expected[of_a, of_b], (places, result.placements)


def case_uneven_rows(rank: int, ranks: int) -> None:
    result = both({"a": (7, 8), "b": (8, 5)}, {"a": S(0)}, ranks)
    assert result.to_local().shape == ((4, 5), (3, 5))[rank]


def case_vectors(rank: int, ranks: int) -> None:
    for places in ({}, {"a": S(0)}, {"b": S(0)}, {"b": S(1)}, {"a": S(0), "b": S(0)}):
        both({"a": (8,), "b": (8, 6)}, places, ranks)
    for places in ({}, {"a": S(0)}, {"a": S(1), "b": S(0)}):
        both({"a": (6, 8), "b": (8,)}, places, ranks)
        both({"a": (6, 8), "b": (8,), "bias": (6,)}, places, ranks)
    both({"a": (8,), "b": (8,)}, {"a": S(0), "b": S(0)}, ranks)


def case_batches(rank: int, ranks: int) -> None:
    for at in range(4):
        result = both({"a": (2, 4, 6, 8), "b": (4, 8, 10)}, {"a": S(at)}, ranks)
        assert at == 3 or result.placements[0] == S(at)
    for at in range(3):
        both({"a": (2, 4, 6, 8), "b": (4, 8, 10)}, {"b": S(at)}, ranks)
        both({"a": (4, 6, 8), "b": (8, 10)}, {"a": S(at)}, ranks)
    both({"a": (1, 6, 8), "b": (4, 8, 10)}, {"b": S(0)}, ranks)
    both({"a": (1, 1, 8), "b": (8, 10)}, {"b": S(1)}, ranks)


def case_added(rank: int, ranks: int) -> None:
    for places in ({"a": S(0)}, {"b": S(1)}, {"a": S(1), "b": S(0)}, {"c": S(0)}, {"c": S(1), "bias": S(0)}):
        for bias in ((10,), (6, 1)):
            shapes = {"a": (6, 8), "b": (8, 10), "c": (6, 10), "bias": bias}
            both(shapes, places if bias == (10,) or "bias" not in places else {}, ranks, alpha=0.5, beta=2.0)
    both({"a": (6, 8), "b": (8, 10), "bias": (10,)}, {"a": S(1), "b": S(0)}, ranks)


def case_activations(rank: int, ranks: int) -> None:
    shapes = {"a": (6, 8), "b": (8, 10), "bias": (10,)}
    places = {"a": S(1), "b": S(0)}
    both(shapes, places, ranks)  # partial sums first: the rule for an activation must not be theirs
    for activation in ("relu", "gelu", "silu"):
        result = both(shapes, places, ranks, activation=activation)
        assert activation != "relu" or not result.placements[0].is_partial()


def case_partial(rank: int, ranks: int) -> None:
    a, b = torch.randn(6, 8), torch.randn(8, 10)
    parts = DTensor.from_local(a * (rank + 1), mesh(ranks), [Partial()])
    total = a * sum(range(1, ranks + 1))
    whole = distribute_tensor(b, mesh(ranks), [R])
    with torch.no_grad():
        result = tilewright.matmul(parts, whole)
        assert result.placements[0].is_partial()
        close(result, total @ b)
        close(tilewright.matmul(parts, whole, activation="relu"), (total @ b).relu())


def case_out(rank: int, ranks: int) -> None:
    a, b = torch.randn(6, 8), torch.randn(8, 10)
    own = [
        distribute_tensor(x, mesh(ranks), [place]) for x, place in ((a, S(1)), (b, S(0)), (torch.empty(6, 10), S(0)))
    ]
    with torch.no_grad():
        result = tilewright.matmul(own[0], own[1], out=own[2])
    assert result is own[2] and result.placements[0] == S(0)
    close(result, a @ b)


def case_groups(rank: int, ranks: int) -> None:
    device_mesh = mesh(ranks)
    ends = torch.tensor([3, 3, 8], dtype=torch.int32)
    for shapes in (((8, 4), (3, 4, 6)), ((3, 6, 4), (4, 8)), ((6, 8), (8, 4))):
        for of_a, of_b in itertools.product((None, 0, 1, 2), repeat=2):
            if (of_a or 0) >= len(shapes[0]) or (of_b or 0) >= len(shapes[1]):
                continue
            whole = [torch.randn(shape, requires_grad=True) for shape in shapes]
            places = [R if at is None else S(at) for at in (of_a, of_b)]
            own = [
                distribute_tensor(x.detach(), device_mesh, [place]).requires_grad_()
                for x, place in zip(whole, places, strict=True)
            ]
            expected = tilewright.grouped_matmul(*whole, offsets=ends)
            result = tilewright.grouped_matmul(*own, offsets=distribute_tensor(ends, device_mesh, [R]))
            close(result, expected)
            expected.square().sum().backward()
            result.full_tensor().square().sum().backward()
            for x, y in zip(own, whole, strict=True):
                close(x.grad, y.grad)


def laid(x: Any, place: Any, device_mesh: Any) -> Any:
    """A DTensor, without telling others: gloo sends no FP8."""
    rank, ranks = device_mesh.get_local_rank(), device_mesh.size()
    own = x.chunk(ranks, place.dim)[rank].contiguous() if isinstance(place, Shard) else x
    return DTensor.from_local(own, device_mesh, [place], run_check=False)


def fp8(*shape: int) -> Any:
    return torch.randint(-3, 4, shape).to(torch.float8_e4m3fn)


def powers(shape: tuple[int, ...]) -> Any:
    """Of two, so that sums are exact in any order."""
    return torch.randint(-1, 2, shape).float().exp2()


SCALES = {
    "whole": (((), R, R), ((), R, R)),
    "rows and columns": (((256, 1), S(0), R), ((1, 512), S(1), R)),
    "flat": (((256,), S(0), R), ((512,), S(0), R)),
    "blocks": (((256, 4), S(0), S(1)), ((4, 512), S(1), S(0))),
    "square blocks": (((2, 4), S(0), S(1)), ((4, 4), S(1), S(0))),
}
"""Of 256 x 512 x 512: the shape, and how it lies where its operand is sharded along its own dimension, and along k."""


def case_scaled(rank: int, ranks: int) -> None:
    """Rows, columns and k, with the scales that go with them: the bits of one rank."""
    device_mesh = mesh(ranks)
    a, b, bias = fp8(256, 512), fp8(512, 512), integers((512,))
    for of_a, of_b in SCALES.values():
        scales = [powers(shape) for shape, *_ in (of_a, of_b)]
        expected = tilewright.scaled_matmul(a, b, *scales, bias=bias, out_dtype="f32")
        ways = {
            S(0): (S(0), R, of_a[1], R, R),
            S(1): (R, S(1), R, of_b[1], S(0)),
            Partial(): (S(1), S(0), of_a[2], of_b[2], None),
        }
        for out, places in ways.items():
            given = [laid(x, place or R, device_mesh) for x, place in zip((a, b, *scales, bias), places, strict=True)]
            result = tilewright.scaled_matmul(*given[:4], bias=given[4], out_dtype="f32")
            assert result.placements == (out,), (of_a, out, result.placements)
            assert torch.equal(result.full_tensor(), expected), (of_a, out)


def case_blocks_with_a_scale_lie_on_one_rank(rank: int, ranks: int) -> None:
    from tilewright.frontend.pytorch.sharded import scaled_rules

    device_mesh = mesh(ranks)
    a, b, scales = fp8(192, 384), fp8(384, 512), [torch.rand(2, 3), torch.rand(3, 4)]
    laid_so = [laid(x, R, device_mesh)._spec for x in (a, b, *scales)]
    outputs = [outputs[0] for outputs, _ in scaled_rules(*laid_so)]
    assert outputs == [R, S(1)]  # 96 rows are no block, and 192 elements of k are not two


def case_scaled_groups(rank: int, ranks: int) -> None:
    device_mesh = mesh(ranks)
    a, b, ends = fp8(8, 256), fp8(3, 256, 512), torch.tensor([3, 3, 8], dtype=torch.int32)
    kinds = (
        (((), R, R), ((), R, R)),
        (((8,), R, R), ((3,), R, R)),
        (((8, 1), R, R), ((3, 512), S(1), R)),
        (((8, 2), R, S(1)), ((3, 2, 512), S(2), S(1))),
        (((8, 2), R, S(1)), ((3, 2, 4), S(2), S(1))),
    )
    for of_a, of_b in kinds:
        scales = [powers(shape) for shape, *_ in (of_a, of_b)]
        expected = tilewright.scaled_grouped_matmul(a, b, *scales, offsets=ends, out_dtype="f32")
        ways = {S(1): (R, S(2), of_a[1], of_b[1]), Partial(): (S(1), S(1), of_a[2], of_b[2])}
        for out, places in ways.items():
            given = [laid(x, place, device_mesh) for x, place in zip((a, b, *scales), places, strict=True)]
            result = tilewright.scaled_grouped_matmul(*given, offsets=laid(ends, R, device_mesh), out_dtype="f32")
            assert result.placements == (out,), (of_a, out, result.placements)
            assert torch.equal(result.full_tensor(), expected), (of_a, out)


class Linear(torch.nn.Linear):
    """A layer of ours."""

    def forward(self, x: Any) -> Any:
        return tilewright.linear(x, self.weight, self.bias)


class Block(torch.nn.Module):
    """A normalised block of two layers."""

    def __init__(self, layer: Any = Linear, width: int = 8) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.up, self.down = layer(width, 4 * width), layer(4 * width, width)

    def forward(self, x: Any) -> Any:
        return self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def trained(model: Any, x: Any) -> Any:
    """The result, and the gradients of the parameters."""
    result = model(x)
    result = result.full_tensor() if isinstance(result, DTensor) else result
    result.square().mean().backward()
    return result.detach(), {name.removeprefix("_orig_mod."): p.grad for name, p in model.named_parameters()}


def assert_trains_alike(model: Any, plain: Any, x: Any, own: Any = None) -> None:
    expected, wanted = trained(plain, x)
    result, gradients = trained(model, x if own is None else own)
    close(result, expected)
    for name, gradient in wanted.items():
        close(gradients[name], gradient)


def same_blocks(layer: Any = Linear) -> tuple[Any, Any]:
    model, plain = Block(layer), Block(torch.nn.Linear)
    plain.load_state_dict(model.state_dict())
    return model, plain


def case_column_and_row_parallel(rank: int, ranks: int) -> None:
    for shape in ((6, 8), (3, 5, 8)):
        model, plain = same_blocks()
        parallelize_module(model, mesh(ranks), {"up": ColwiseParallel(), "down": RowwiseParallel()})
        assert_trains_alike(model, plain, torch.randn(shape))


def case_sequence_parallel(rank: int, ranks: int) -> None:
    model, plain = same_blocks()
    plan = {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=S(1)),
        "down": RowwiseParallel(output_layouts=S(1), use_local_output=False),
    }
    parallelize_module(model, mesh(ranks), plan)
    parallelize_module(model, mesh(ranks), PrepareModuleInput(input_layouts=(S(1),), desired_input_layouts=(S(1),)))
    x = torch.randn(3, 6, 8)
    assert_trains_alike(model, plain, x, distribute_tensor(x, mesh(ranks), [S(1)]).to_local())


def case_compiled(rank: int, ranks: int) -> None:
    model, plain = same_blocks()
    parallelize_module(model, mesh(ranks), {"up": ColwiseParallel(), "down": RowwiseParallel()})
    x = torch.randn(6, 8)
    assert_trains_alike(torch.compile(model, backend="aot_eager", fullgraph=False), plain, x)


def case_fully_sharded(rank: int, ranks: int) -> None:
    model, plain = same_blocks()
    fully_shard(model.up, mesh=mesh(ranks))
    fully_shard(model, mesh=mesh(ranks))
    assert_trains_alike(model, plain, torch.randn(6, 8))  # the mean of equal gradients


def case_routed(rank: int, ranks: int) -> None:
    from cpu_torch import cpu_torch

    for prepare in (parallelized, fully_sharded):
        model, plain = same_blocks(torch.nn.Linear)
        prepare(model, mesh(ranks))
        with cpu_torch(), tilewright.route_torch() as routed:
            result, gradients = trained(model, x := torch.randn(6, 8))
            assert routed.calls == 6, str(routed)
        expected, wanted = trained(plain, x)
        close(result, expected)
        for name, gradient in wanted.items():
            close(gradients[name], gradient)


def parallelized(model: Any, device_mesh: Any) -> None:
    parallelize_module(model, device_mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


def fully_sharded(model: Any, device_mesh: Any) -> None:
    fully_shard(model, mesh=device_mesh)
