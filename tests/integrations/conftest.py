"""The GPU that is none, for tests of PyTorch; torch itself is imported only where it is installed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from cpu_gpu import State


@pytest.fixture
def gpu() -> Iterator[State]:
    """Tensors of the CPU are taken for tensors of GPU 0; what was launched is in `gpu.launches`."""
    torch = pytest.importorskip("torch")
    from cpu_torch import cpu_torch

    torch.manual_seed(0)
    torch.compiler.reset()
    with cpu_torch() as state:
        yield state
