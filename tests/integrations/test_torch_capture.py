"""CUDA graph capture, where the stream only says that it records: nothing is compiled then, and what is known runs."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
from exact import assert_product  # noqa: E402

from tilewright import route_torch  # noqa: E402
from tilewright.errors import LaunchError  # noqa: E402
from tilewright.frontend import linear, matmul  # noqa: E402

pytestmark = pytest.mark.usefixtures("gpu")

CALLS = {
    "matmul": lambda a, b: matmul(a, b),
    "out": lambda a, b: matmul(a, b, out=torch.empty(7, 6)),
    "gradients": lambda a, b: matmul(a.clone().requires_grad_(), b, activation="relu"),
    "added": lambda a, b: linear(a, b.T, b[0]),
    "operator": lambda a, b: torch.ops.tilewright.matmul(a, b),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_cold_call_is_refused_and_a_warm_one_recorded(name: str, gpu: Any) -> None:
    import tilewright.frontend.pytorch.operator  # noqa: F401

    a, b = torch.randn(7, 5), torch.randn(5, 6)
    gpu.capturing = True
    with pytest.raises(LaunchError, match="recording a CUDA graph, and no kernel for 7x6x5") as told:
        CALLS[name](a, b)
    assert told.value.hint == "make the same call once before the capture."
    assert not gpu.compiled and not gpu.launches
    gpu.capturing = False
    expected = CALLS[name](a, b)
    gpu.capturing = True
    assert torch.equal(CALLS[name](a, b), expected)
    assert len(gpu.launches) == 2


def test_a_routed_model_is_recorded_after_one_warm_step(gpu: Any) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.ReLU(), torch.nn.Linear(8, 6))
    x = torch.randn(7, 5)

    def step() -> list[Any]:
        with route_torch():
            return list(torch.autograd.grad(model(x).square().sum(), list(model.parameters())))

    gpu.capturing = True
    with pytest.warns(UserWarning, match="leaves a product to PyTorch: The stream is recording a CUDA graph"):
        step()
    assert not gpu.compiled and not gpu.launches
    gpu.capturing = False
    expected = step()
    gpu.capturing = True
    for own, other in zip(step(), expected, strict=True):
        assert torch.equal(own, other)


@pytest.mark.filterwarnings("ignore")  # of torch.compile itself
def test_a_cold_compiled_call_is_refused_too(gpu: Any) -> None:
    a, b = torch.randn(7, 5), torch.randn(5, 6)
    call = torch.compile(lambda x, y: matmul(x, y), fullgraph=True, backend="aot_eager")
    gpu.capturing = True
    with pytest.raises(LaunchError, match="make the same call once before the capture"):
        call(a, b)
    gpu.capturing = False
    assert_product(call(a, b), a, b)
    gpu.capturing = True
    assert_product(call(a, b), a, b)


def test_a_workspace_in_a_capture_is_memory_of_pytorch(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its allocator keeps what a graph uses; memory of ours would be given away."""
    from tilewright.frontend.libraries import TorchArrays

    sizes = []
    plain = TorchArrays.scratch
    monkeypatch.setattr(TorchArrays, "scratch", lambda own, size, like: (sizes.append(size), plain(own, size, like))[1])
    a, b = torch.randn(20, 3000), torch.randn(3000, 40)
    expected = matmul(a, b)
    gpu.capturing = True
    assert torch.equal(matmul(a, b), expected)
    assert len(sizes) == 2 and sizes[0] > 0
