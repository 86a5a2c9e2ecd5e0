"""`combine_rows` as an operator of PyTorch, and groups of gathered rows: gradients, compiled code, the CPU."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import tilewright as tw  # noqa: E402
from tilewright.errors import ProblemError  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:tilewright")

ROWS = torch.tensor([[3, 7], [0, -1], [9, 2], [5, 5], [4, 20]], dtype=torch.int32)


def by_torch(x: Any, rows: Any, weights: Any = None) -> Any:
    named = rows.reshape(len(rows), -1).long()
    known = (named >= 0) & (named < len(x))
    factors = known.to(x.dtype) if weights is None else torch.where(known, weights.reshape(named.shape), 0)
    return (factors.unsqueeze(-1) * x[named.where(known, 0)]).sum(1)


def drawn() -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(1)
    x, weights = torch.randn(10, 24, generator=generator), torch.rand(ROWS.shape, generator=generator)
    return x.requires_grad_(), weights.requires_grad_()


@pytest.mark.parametrize("where", ["GPU", "host"])
@pytest.mark.parametrize("kind", ["weighted", "plain", "gathered"])
def test_results_and_gradients(kind: str, where: str, request: pytest.FixtureRequest) -> None:
    gpu = request.getfixturevalue("gpu") if where == "GPU" else None
    x, weights = drawn()
    rows = ROWS[:, 0].contiguous() if kind == "gathered" else ROWS
    given = (x, rows, weights) if kind == "weighted" else (x, rows)
    ours, theirs = tw.combine_rows(*given), by_torch(*given)
    assert gpu is None or len(gpu.launches) == 1
    torch.testing.assert_close(ours, theirs)
    wanted = [x, weights] if kind == "weighted" else [x]
    found = torch.autograd.grad(ours.square().sum(), wanted)
    for own, other in zip(found, torch.autograd.grad(theirs.square().sum(), wanted), strict=True):
        torch.testing.assert_close(own, other)


def test_codes_are_gathered() -> None:
    codes = torch.randn(10, 24).to(torch.float8_e4m3fn)
    found = tw.combine_rows(codes, ROWS[:, 0].contiguous())
    assert torch.equal(found.float(), codes.float()[ROWS[:, 0].long()])


def test_compiled_code_and_shapes(gpu: Any) -> None:
    x, weights = drawn()
    call = torch.compile(lambda x, w: tw.combine_rows(2 * x, ROWS, w), backend="aot_eager", fullgraph=True)
    ours, theirs = call(x, weights), by_torch(2 * x, ROWS, weights)
    torch.testing.assert_close(ours, theirs)
    for own, other in zip(
        torch.autograd.grad(ours.square().sum(), (x, weights)),
        torch.autograd.grad(theirs.square().sum(), (x, weights)),
        strict=True,
    ):
        torch.testing.assert_close(own, other)
    meta = tw.combine_rows(x.detach().to("meta"), ROWS.to("meta"), weights.detach().to("meta"))
    assert (meta.shape, meta.dtype, meta.stride()) == (ours.shape, ours.dtype, ours.stride())


def test_groups_of_gathered_rows_and_their_gradients(gpu: Any) -> None:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(10, 24, generator=generator).requires_grad_()
    b = torch.randn(3, 24, 16, generator=generator).requires_grad_()
    rows = torch.tensor([3, 9, 3, 0, 1, 2, 9], dtype=torch.int32)
    ends = torch.tensor([2, 2, 7], dtype=torch.int32)
    ours = tw.grouped_matmul(x, b, offsets=ends, rows=rows)
    theirs = torch.cat([x[rows[:2].long()] @ b[0], x[rows[2:].long()] @ b[2]])
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    found = torch.autograd.grad(ours.square().sum(), (x, b))
    for own, other in zip(found, torch.autograd.grad(theirs.square().sum(), (x, b)), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-3, atol=1e-3)


def test_rows_of_another_device_or_kind_are_refused() -> None:
    x, weights = (one.detach() for one in drawn())
    with pytest.raises(ProblemError, match="rows lie on meta"):
        tw.combine_rows(x, ROWS.to("meta"), weights)
    with pytest.raises(ProblemError, match="rows is a list, beside tensors"):
        tw.combine_rows(x, [1, 2])
