"""`grouped_matmul` with offsets as an operator of PyTorch: shapes, gradients, compiled code, tensors of the CPU."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from tilewright.frontend import grouped_matmul  # noqa: E402

ENDS = [3, 3, 9, 12]


def by_torch(a: Any, b: Any) -> Any:
    """The same, group by group."""
    rows = [slice(start, end) for start, end in zip([0, *ENDS[:-1]], ENDS, strict=True)]
    if a.dim() == 3:
        return torch.cat([a[i] @ b[:, own] for i, own in enumerate(rows)], 1)
    if b.dim() == 3:
        return torch.cat([a[own] @ b[i] for i, own in enumerate(rows)])
    return torch.stack([a[:, own] @ b[own] for own in rows])


FORMS = {"rows": ((12, 5), (4, 5, 6)), "columns": ((4, 6, 5), (5, 12)), "sums": ((5, 12), (12, 6))}


def drawn(form: str, **options: Any) -> tuple[Any, Any, Any]:
    left, right = FORMS[form]
    return torch.randn(left, **options), torch.randn(right, **options), torch.tensor(ENDS, dtype=torch.int32)


def assert_same(ours: Any, theirs: Any) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", FORMS)
def test_results_and_gradients(form: str, gpu: Any) -> None:
    a, b, offsets = drawn(form, requires_grad=True)
    result = grouped_matmul(a, b, offsets=offsets)
    assert len(gpu.launches) == 1
    assert_same(result, by_torch(a, b))
    ours = torch.autograd.grad(result.square().sum(), (a, b), create_graph=True)
    theirs = torch.autograd.grad(by_torch(a, b).square().sum(), (a, b), create_graph=True)
    for own, other in zip(ours, theirs, strict=True):
        assert_same(own, other)
    again, expected = (torch.autograd.grad(sum(x.square().sum() for x in one), (a, b)) for one in (ours, theirs))
    for own, other in zip(again, expected, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("form", FORMS)
def test_shapes_without_elements(form: str, gpu: Any) -> None:
    a, b, offsets = drawn(form)
    result = grouped_matmul(a, b, offsets=offsets, out_dtype=torch.float32)
    told = grouped_matmul(a.to("meta"), b.to("meta"), offsets=offsets.to("meta"))
    assert (told.shape, told.dtype, told.stride()) == (result.shape, result.dtype, result.stride())
    with pytest.raises(ValueError, match="does not go with"):
        grouped_matmul(a.to("meta")[..., :4], b.to("meta"), offsets=offsets.to("meta"))


@pytest.mark.filterwarnings("ignore")  # of torch.compile itself
@pytest.mark.parametrize("form", FORMS)
def test_compiled_code(form: str, gpu: Any) -> None:
    a, b, offsets = drawn(form, requires_grad=True)
    call = torch.compile(
        lambda x, y: grouped_matmul(2 * x, y, offsets=offsets, alpha=0.5), backend="aot_eager", fullgraph=True
    )
    result = call(a, b)
    assert_same(result, by_torch(a, b))
    for own, other in zip(
        torch.autograd.grad(result.square().sum(), (a, b)),
        torch.autograd.grad(by_torch(a, b).square().sum(), (a, b)),
        strict=True,
    ):
        assert_same(own, other)


@pytest.mark.parametrize("form", FORMS)
def test_tensors_in_host_memory(form: str) -> None:
    a, b, offsets = drawn(form)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_same(grouped_matmul(a, b, offsets=offsets), by_torch(a, b))
