"""PyTorch on a GPU that is none: tensors of the CPU are taken for tensors of GPU 0, whose kernels run on the CPU."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
from cpu_gpu import CpuKernel, State, cpu_gpu  # noqa: E402

from tilewright.frontend import compute  # noqa: E402
from tilewright.frontend.libraries import TorchArrays, View, library_of  # noqa: E402
from tilewright.integrations import torch_kernels, torch_mode  # noqa: E402

_VIEW = TorchArrays.view
_RUN = CpuKernel.run
_STREAM = threading.Lock()


def _view(library: TorchArrays, array: Any) -> View:
    return replace(_VIEW(library, array), device=0)


def _run(kernel: CpuKernel, *given: Any) -> None:
    with _STREAM:  # kernels of one stream run one after the other, whichever threads start them
        _RUN(kernel, *given)


@contextmanager
def cpu_torch() -> Iterator[State]:
    """Within the block, tensors of the CPU are multiplied as those of a GPU are."""
    library = library_of(torch.empty(0))
    with cpu_gpu() as state, pytest.MonkeyPatch.context() as patch:
        patch.setattr(TorchArrays, "view", _view)
        patch.setattr(CpuKernel, "run", _run)
        patch.setattr(TorchArrays, "capturing", lambda library: state.capturing)
        patch.setattr(library, "launches_alone", True)
        patch.setattr(TorchArrays, "elsewhere", lambda library, device: False)
        patch.setattr(library, "stream", lambda device: 0)
        patch.setattr(torch_mode, "DEVICE", "cpu")
        patch.setattr(torch_kernels, "KEY", "CPU")
        try:
            yield state
        finally:
            compute.MEMO.clear()
