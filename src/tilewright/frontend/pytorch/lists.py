"""Lists of products of tensors: one launch of plain ones on a GPU, else product after product."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.frontend.compute import HostMemory
from tilewright.frontend.lists import Arrays, multiply_list, refuse_batches
from tilewright.frontend.options import Options
from tilewright.frontend.pytorch.entry import multiply
from tilewright.frontend.pytorch.plain import LIBRARY, at_once


def multiply_tensors(triples: Sequence[Arrays], options: Options) -> list[Any]:
    """The results of all products. Tensors that want gradients, that PyTorch traces or that lie in host memory are
    multiplied as `matmul` multiplies them, one product after another. Raises as `matmul`."""
    refuse_batches(*(array for triple in triples for array in triple[:2]))
    tensors = [array for triple in triples for array in triple if array is not None]
    try:
        results: list[Any] | None = at_once(lambda: multiply_list(LIBRARY, triples, options), *tensors)
    except HostMemory:
        results = None
    if results is None:
        results = [multiply(a, b, None, None, bias, options) for a, b, bias in triples]
    return results
