"""f32 products by pieces in PyTorch: gradients, torch.compile and routing, each launch on a simulated H200."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
from cpu_gpu import FakeGpu  # noqa: E402
from simulated import SimulatedKernels  # noqa: E402

from tilewright import prepare, route_torch  # noqa: E402
from tilewright.device.catalog import device  # noqa: E402
from tilewright.frontend import matmul  # noqa: E402
from tilewright.planning import dispatch  # noqa: E402
from tilewright.problem.emulation import ALGORITHMS  # noqa: E402

U = 2.0**-24
HOWS = pytest.mark.parametrize("precision", ["bf16x6", "f16x3"])
pytestmark = pytest.mark.filterwarnings("ignore")  # of torch.compile itself


@pytest.fixture(autouse=True)
def simulated_gpu(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(dispatch, "Kernels", lambda _: SimulatedKernels(FakeGpu(), device("H200")))
    yield


def assert_close(precision: str, found: Any, a: Any, b: Any) -> None:
    """A product, within the bound of an algorithm."""
    how, wide, other = ALGORITHMS[precision], a.detach().double(), b.detach().double()
    bound = how.units(a.shape[1]) * U * (wide.abs() @ other.abs())
    assert bool(((found.detach().double() - wide @ other).abs() <= bound).all())


@HOWS
def test_gradients_are_products_of_the_same_algorithm(precision: Any) -> None:
    a, b, seed = torch.randn(12, 40).requires_grad_(), torch.randn(40, 16).requires_grad_(), torch.randn(12, 16)
    c = matmul(a, b, precision=precision)
    c.backward(seed)
    assert_close(precision, c, a, b)
    assert_close(precision, a.grad, seed, b.t())
    assert_close(precision, b.grad, a.t(), seed)


@HOWS
def test_torch_compile_sees_one_operator(precision: Any) -> None:
    def step(x: Any, w: Any, bias: Any) -> Any:
        return matmul(x, w.t(), bias=bias, precision=precision) * 2

    x, w, bias = torch.randn(12, 40), torch.randn(16, 40), torch.randn(16)
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, w, bias), step(x, w, bias))


@HOWS
def test_routed_models_and_prepared_weights(precision: Any) -> None:
    a, b = torch.randn(12, 40), torch.randn(40, 16)
    with route_torch(precision=precision):
        routed = torch.mm(a, b)
    assert_close(precision, routed, a, b)
    kept = prepare(b, precision=precision)
    assert torch.equal(matmul(a, kept), matmul(a, b, precision=precision))
    b.mul_(2)  # PyTorch counts that it was written
    assert torch.equal(matmul(a, kept), matmul(a, b, precision=precision))
    a.requires_grad_()
    matmul(a, kept).sum().backward()
    assert_close(precision, a.grad, torch.ones(12, 16), b.t())
