"""`scaled_matmul` of PyTorch's tensors: the operator that torch.compile sees, and tensors in host memory."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import tilewright as tw  # noqa: E402
from tilewright.errors import ProblemError  # noqa: E402
from tilewright.frontend.libraries import DTypeError  # noqa: E402
from tilewright.frontend.shapes import ShapeError  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:tilewright")

E4M3 = torch.float8_e4m3fn


def drawn(*shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(E4M3)


def operands(m: int = 32, n: int = 48, k: int = 64, *, rows: bool = True) -> tuple[Any, Any, Any, Any]:
    scale_a, scale_b = (torch.rand(m, 1), torch.rand(1, n)) if rows else (torch.rand(1), torch.rand(()))
    return drawn(m, k), drawn(n, k).T, scale_a, scale_b


@pytest.mark.parametrize("out_dtype", [None, torch.float32, torch.float16], ids=str)
def test_tensors_in_host_memory_are_multiplied_by_pytorch(out_dtype: Any) -> None:
    a, b, scale_a, scale_b = operands()
    bias = torch.randn(48)
    c = tw.scaled_matmul(a, b, scale_a, scale_b, bias=bias, out_dtype=out_dtype)
    assert c.dtype == (out_dtype or torch.bfloat16)
    exact = (a.double() @ b.double()) * scale_a * scale_b + bias
    torch.testing.assert_close(c.double(), exact, rtol=1e-2, atol=1e-2)
    out = torch.empty_like(c)
    assert tw.scaled_matmul(a, b, scale_a, scale_b, bias=bias, out_dtype=out_dtype, out=out) is out
    assert torch.equal(out, c)


@pytest.mark.parametrize("sides", [(1, 128), (1, 1), (128, 1)])
def test_scales_of_blocks_in_host_memory_and_compiled(sides: tuple[int, int]) -> None:
    a, b = drawn(130, 272), drawn(136, 272).T
    scale_a, scale_b = torch.rand(-(-130 // sides[0]), 3), torch.rand(-(-136 // sides[1]), 3).T
    c = tw.scaled_matmul(a, b, scale_a, scale_b, out_dtype=torch.float32)
    wide_a = a.double() * scale_a.repeat_interleave(sides[0], 0)[:130].repeat_interleave(128, 1)[:, :272]
    wide_b = b.double() * scale_b.repeat_interleave(sides[1], 1)[:, :136].repeat_interleave(128, 0)[:272]
    torch.testing.assert_close(c.double(), wide_a @ wide_b, rtol=1e-4, atol=1e-4)
    compiled = torch.compile(tw.scaled_matmul, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(a, b, scale_a, scale_b, out_dtype=torch.float32), c)


def test_one_scale_for_each_operand_is_what_pytorch_multiplies() -> None:
    a, b, scale_a, scale_b = operands(rows=False)
    expected = torch._scaled_mm(a, b, scale_a, scale_b.reshape(1), out_dtype=torch.bfloat16)
    torch.testing.assert_close(tw.scaled_matmul(a, b, scale_a, scale_b), expected)


@pytest.mark.parametrize("rows", [False, True])
def test_the_operator_is_compiled_without_a_break(rows: bool) -> None:
    def layer(a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any) -> Any:
        return tw.scaled_matmul(a, b, scale_a, scale_b, bias=bias, fast_accumulation=True).relu() + 1

    given = (*operands(rows=rows), torch.randn(48, dtype=torch.bfloat16))
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(*given), layer(*given))


def test_the_operator_keeps_what_it_promises() -> None:
    given = (*operands(), torch.randn(48, dtype=torch.bfloat16), torch.bfloat16, False)
    # PyTorch's check of the schema computes with FP8, which its CPU does not.
    checks = ("test_autograd_registration", "test_faketensor")
    torch.library.opcheck(torch.ops.tilewright.scaled_matmul, given, test_utils=checks)


def test_shapes_are_known_and_wrong_ones_refused_before_anything_runs() -> None:
    a, b, scale_a, scale_b = (x.to("meta") for x in operands())
    c = tw.scaled_matmul(a, b, scale_a, scale_b, out_dtype=torch.float32)
    assert c.shape == (32, 48) and c.dtype == torch.float32
    with pytest.raises(ShapeError, match="scale_a has shape"):
        tw.scaled_matmul(a, b, scale_b, scale_b)
    with pytest.raises(DTypeError, match="a holds bf16"):
        tw.scaled_matmul(a.to(torch.bfloat16), b, scale_a, scale_b)
    with pytest.raises(ProblemError, match="scale_a is a float"):
        tw.scaled_matmul(*operands()[:2], 1.0, scale_b)


def test_there_are_no_gradients() -> None:
    a, b, scale_a, scale_b = operands()
    scale_a.requires_grad_()
    with pytest.raises(ProblemError, match="has no gradients"):
        tw.scaled_matmul(a, b, scale_a, scale_b).sum().backward()


@pytest.mark.parametrize("scales", ["row", "tensor", "1x128"])
def test_codes_and_scales_by_pytorch_and_compiled(scales: Any) -> None:
    x = torch.randn(9, 272, generator=torch.Generator().manual_seed(0)).bfloat16()
    codes, found = tw.quantize(x, scales=scales)
    assert codes.dtype == E4M3 and found.dtype == torch.float32
    spread = found.repeat_interleave(128, 1)[:, :272] if scales == "1x128" else found
    torch.testing.assert_close(codes.float() * spread, x.float(), rtol=0.07, atol=0.01)
    compiled = torch.compile(lambda x: tw.quantize(x, scales=scales), backend="aot_eager", fullgraph=True)
    again, also = compiled(x)
    assert torch.equal(again.view(torch.uint8), codes.view(torch.uint8)) and torch.equal(also, found)
    assert also.stride() == found.stride()
    meta = tw.quantize(x.to("meta"), scales=scales)
    assert [one.shape for one in meta] == [codes.shape, found.shape] and meta[1].stride() == found.stride()


def test_codes_have_no_gradients() -> None:
    x = torch.randn(4, 8, requires_grad=True)
    _, scales = tw.quantize(x)
    with pytest.raises(ProblemError, match="quantize has no gradients"):
        scales.sum().backward()


ENDS = torch.tensor([5, 5, 20, 30], dtype=torch.int32)
GROUPS = [slice(0, 5), slice(5, 5), slice(5, 20), slice(20, 30)]


def groups() -> tuple[Any, ...]:
    return drawn(32, 64), drawn(4, 48, 64).mT, torch.rand(32), torch.rand(4, 48)


def test_groups_in_host_memory_are_multiplied_by_pytorch() -> None:
    a, b, scale_a, scale_b = groups()
    c = tw.scaled_grouped_matmul(a, b, scale_a, scale_b, offsets=ENDS, out_dtype=torch.float32)
    for number, rows in enumerate(GROUPS):
        exact = (a[rows].double() @ b[number].double()) * scale_a[rows, None] * scale_b[number]
        torch.testing.assert_close(c[rows].double(), exact, rtol=1e-4, atol=1e-4)
    turned = tw.scaled_grouped_matmul(b.mT, a.T, scale_b, scale_a, offsets=ENDS, out_dtype=torch.float32)
    assert torch.equal(turned, c.T)
    wide = torch.rand(32, 1), torch.rand(4, 1, 1)
    c = tw.scaled_grouped_matmul(a, b, *wide, offsets=torch.tensor([9, 3, 99, -1], dtype=torch.int32))
    exact = (a[:9].double() @ b[0].double()) * wide[0][:9] * wide[1][0]
    torch.testing.assert_close(c[:9].double(), exact, rtol=1e-2, atol=1e-2)
    assert not c[9:].any()


def test_groups_are_compiled_and_known_by_their_shapes() -> None:
    given = groups()
    compiled = torch.compile(
        lambda a, b, x, y: tw.scaled_grouped_matmul(a, b, x, y, offsets=ENDS), backend="aot_eager", fullgraph=True
    )
    c = tw.scaled_grouped_matmul(*given, offsets=ENDS)
    assert torch.equal(compiled(*given), c)
    meta = tw.scaled_grouped_matmul(*(x.to("meta") for x in given), offsets=ENDS.to("meta"))
    assert (meta.shape, meta.dtype, meta.stride()) == (c.shape, c.dtype, c.stride())
    with pytest.raises(ShapeError, match="scale_a has shape"):
        tw.scaled_grouped_matmul(*given[:2], torch.rand(31), given[3], offsets=ENDS)
    with pytest.raises(ProblemError, match="offsets is a list"):
        tw.scaled_grouped_matmul(*given, offsets=[5])
    with pytest.raises(ProblemError, match="offsets lie on meta"):
        tw.scaled_grouped_matmul(*given, offsets=ENDS.to("meta"))
    with pytest.raises(ProblemError, match="no gradients"):
        tw.scaled_grouped_matmul(*given[:2], given[2].requires_grad_(), given[3], offsets=ENDS).sum().backward()


def test_groups_with_counts_in_host_memory_and_compiled() -> None:
    a, b, scale_a, scale_b = drawn(4, 8, 64), drawn(4, 48, 64).mT, torch.rand(4, 8), torch.rand(4, 48)
    counts = torch.tensor([3, 0, 99, -1], dtype=torch.int32)

    def call(*given: Any) -> Any:
        return tw.scaled_grouped_matmul(*given, counts=counts, out_dtype=torch.float32)

    c = call(a, b, scale_a, scale_b)
    exact = (a.double() @ b.double()) * scale_a[..., None] * scale_b[:, None]
    for group, count in enumerate((3, 0, 8, 0)):
        torch.testing.assert_close(c[group, :count].double(), exact[group, :count], rtol=1e-4, atol=1e-4)
    assert torch.equal(torch.compile(call, backend="aot_eager", fullgraph=True)(a, b, scale_a, scale_b), c)
    wide = torch.randn(4, 8, 16), torch.randn(4, 16, 5)
    plain = tw.grouped_matmul(*wide, counts=counts)
    torch.testing.assert_close(plain[2], wide[0][2] @ wide[1][2])
    compiled = torch.compile(lambda x, y: tw.grouped_matmul(x, y, counts=counts), backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(*wide), plain)
    with pytest.raises(ProblemError, match="with counts has no gradients"):
        tw.grouped_matmul(wide[0].requires_grad_(), wide[1], counts=counts).sum().backward()
