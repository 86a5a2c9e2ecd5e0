"""PyTorch on a GPU that is none: tensors of the CPU are taken for tensors of GPU 0, whose kernels run on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from cpu_gpu import State, cpu_gpu

from tilewright.frontend import remembered
from tilewright.frontend.libraries import TorchArrays, View, library_of
from tilewright.frontend.pytorch import operator
from tilewright.frontend.torch_calls import known_call
from tilewright.integrations import torch_mode

_VIEW = TorchArrays.view


def _view(library: TorchArrays, array: Any) -> View:
    return replace(_VIEW(library, array), device=0)


@contextmanager
def cpu_torch() -> Iterator[State]:
    """Within the block, tensors of the CPU are multiplied as those of a GPU are."""
    library = library_of(torch.empty(0))
    with cpu_gpu() as state, pytest.MonkeyPatch.context() as patch:
        patch.setattr(TorchArrays, "view", _view)
        patch.setattr(TorchArrays, "capturing", lambda library: state.capturing)
        patch.setattr(library, "stream", lambda device: 0)
        patch.setattr(operator, "_KNOWN", known_call(library))
        patch.setattr(torch_mode, "DEVICE", "cpu")
        remembered.FAST.clear()
        remembered.MEMO.clear()
        try:
            yield state
        finally:
            remembered.FAST.clear()
            remembered.MEMO.clear()
