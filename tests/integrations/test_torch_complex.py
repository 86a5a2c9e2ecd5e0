"""complex64 in PyTorch: gradients, conjugates, `out`, and compiled code are those of torch.matmul."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from tilewright.frontend import matmul  # noqa: E402
from tilewright.frontend.libraries import DTypeError  # noqa: E402

pytestmark = pytest.mark.usefixtures("gpu")


def drawn(*shape: int) -> Any:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, dtype=torch.complex64, generator=generator)


def assert_alike(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_views_conjugates_and_what_is_added() -> None:
    a, b, c = drawn(5, 7), drawn(7, 3), drawn(5, 3)
    assert_alike(matmul(a.conj(), b), a.conj() @ b)
    assert_alike(matmul(b.mH, a.mH), b.mH @ a.mH)
    assert_alike(matmul(a, b, c=c, alpha=0.5, beta=2.0, bias=c[0]), 0.5 * (a @ b) + 2 * c + c[0])
    for out in (torch.empty(5, 3, dtype=torch.complex64), torch.empty(3, 5, dtype=torch.complex64).T):
        assert matmul(a, b, out=out) is out
        assert_alike(out, a @ b)
    with pytest.raises(DTypeError, match="b holds"):
        matmul(a, b.real)


def test_gradients() -> None:
    ours, theirs = ([drawn(5, 7).requires_grad_(), drawn(7, 3).requires_grad_()] for _ in range(2))
    (matmul(*ours).abs() ** 2).sum().backward()
    (torch.matmul(*theirs).abs() ** 2).sum().backward()
    for mine, expected in zip(ours, theirs, strict=True):
        assert_alike(mine.grad, expected.grad)


def test_compiled_code() -> None:
    a, b = drawn(5, 7), drawn(7, 3)
    compiled = torch.compile(lambda x, y: matmul(x, y) * 2, backend="aot_eager", fullgraph=True)
    assert_alike(compiled(a, b), 2 * (a @ b))
