"""Kernels that start under the one before: chains in which each launch reads what earlier ones wrote, at full speed."""

from __future__ import annotations

from typing import Any

import pytest

from tilewright.frontend import linear, matmul
from tilewright.runtime.driver import gpu_problem

torch: Any = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

SIZES = (64, 256, 264, 500, 511, 512, 1000, 1023, 1024, 2048)
"""One tile and many, padded copies, one round of tiles and several."""

LINKS = 60


@pytest.fixture(autouse=True)
def gpu() -> None:
    assert gpu_problem() is None
    torch.manual_seed(0)


def chain(size: int, dtype: Any, *, wait: bool, rows: int | None = None) -> list[Any]:
    """Products of products: every call reads the result of the last, and reuses its workspace. wait: for each call."""
    torch.manual_seed(size)
    state = torch.randn(rows or size, size, device="cuda", dtype=dtype)
    weights = [torch.randn(size, size, device="cuda", dtype=dtype) / size**0.5 for _ in range(3)]
    bias = torch.randn(size, device="cuda", dtype=dtype)
    found = []
    for link in range(LINKS):
        state = linear(state, weights[link % 3], bias) if link % 4 == 3 else matmul(state, weights[link % 3])
        if link % 7 == 6:  # a kernel of another's, which is launched the plain way
            state = state / 2 + 0.125
        bias += 0.25  # written between two calls that read it
        found.append(state)
        if wait:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    return found


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("size", SIZES)
def test_a_chain_has_the_bits_that_it_has_with_a_wait_after_each_link(size: int, name: str) -> None:
    dtype = getattr(torch, name)
    for rows in (size, 1, 16):
        slow, fast = (chain(size, dtype, wait=wait, rows=rows) for wait in (True, False))
        wrong = [link for link, (a, b) in enumerate(zip(slow, fast, strict=True)) if not torch.equal(a, b)]
        assert not wrong, (rows, wrong[:5])


@pytest.mark.parametrize("shape", [(512, 512, 8192), (64, 1024, 8192), (255, 257, 4095), (1023, 1025, 1023)])
def test_parts_and_copies_follow_each_other_in_a_graph(shape: tuple[int, int, int]) -> None:
    """Copies, products and sums of parts of many calls, all in one workspace, replayed without a gap."""
    m, n, k = shape
    pairs = [
        (torch.randn(m, k, device="cuda", dtype=torch.bfloat16), torch.randn(k, n, device="cuda", dtype=torch.bfloat16))
        for _ in range(8)
    ]
    expected = []
    for a, b in pairs:
        expected.append(matmul(a, b))
        torch.cuda.synchronize()
    outs = [torch.empty_like(one) for one in expected]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(4):
            for (a, b), out in zip(pairs, outs, strict=True):
                matmul(a, b, out=out)
    for _ in range(5):
        for out in outs:
            out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(out, one) for out, one in zip(outs, expected, strict=True))
