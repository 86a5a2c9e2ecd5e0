"""`torch.ops.tilewright.quantize`: FP8 codes and scales as an operator of PyTorch. It has no gradients."""

from __future__ import annotations

from typing import Any

from tilewright import extras
from tilewright.dtypes import DType
from tilewright.frontend.pytorch.plain import LIBRARY, at_once, or_on_the_host
from tilewright.frontend.pytorch.registering import constant_in_graphs, registered, without_gradients
from tilewright.frontend.quantizing import checked_words, compute_quantized, shapes_of
from tilewright.problem.quantization import BLOCK, LEAST_SCALE, Groups

torch: Any = extras.require("torch", "Quantising tensors of PyTorch")


def quantized(x: Any, scales: Any, dtype: Any) -> tuple[Any, Any]:
    """A call with a tensor of PyTorch."""
    found: tuple[Any, Any] | None = at_once(lambda: _computed(x, *checked_words(scales, dtype)), x)
    if found is None:
        found = torch.ops.tilewright.quantize(x, *_words_asked(scales, dtype))
    return found


@constant_in_graphs
def _words_asked(scales: Any, dtype: Any) -> tuple[str, str]:
    """What is asked, as the operator takes it."""
    return scales, checked_words(scales, dtype)[1].name


def _on_the_host(x: Any, groups: Groups, out: DType) -> tuple[Any, Any]:
    """The same by PyTorch on the CPU."""
    wide, kind = x.float(), LIBRARY.to_torch[out]
    most = torch.finfo(kind).max
    finite = torch.where(wide.isfinite(), wide.abs(), 0)
    m, k = wide.shape
    if groups == "all":
        scales = finite.amax().reshape(1)
    elif groups == "line":
        scales = finite.amax(1, keepdim=True) if k else finite.new_zeros(m, 1)
    else:
        padded = torch.nn.functional.pad(finite, (0, -k % BLOCK))
        scales = padded.reshape(m, -1, BLOCK).amax(2) if padded.numel() else padded.new_zeros(m, padded.shape[1])
    scales = (scales * (1 / most)).clamp_min(LEAST_SCALE)
    spread = scales.repeat_interleave(BLOCK, 1)[:, :k] if groups == "block" else scales
    codes = (wide * (1 / spread)).clamp(-most, most).to(kind)
    return codes, scales.T.contiguous().T if groups == "block" else scales


_computed = or_on_the_host("quantize", compute_quantized, _on_the_host)


def _quantize(x: Any, scales: str = "row", dtype: str = "e4m3") -> tuple[Any, Any]:
    codes, found = _computed(x, *checked_words(scales, dtype))
    return codes, found


def _shaped(x: Any, scales: str = "row", dtype: str = "e4m3") -> tuple[Any, Any]:
    """Results without elements, or the error that the call would raise."""
    groups, out = checked_words(scales, dtype)
    codes, shape = shapes_of(tuple(x.shape), groups)
    found = x.new_empty(shape, dtype=torch.float32)
    return x.new_empty(codes, dtype=LIBRARY.to_torch[out]), found.T if groups == "block" else found


_OPERATOR = registered(
    "quantize(Tensor x, str scales='row', str dtype='e4m3') -> (Tensor, Tensor)",
    _quantize,
    _shaped,
    *without_gradients("quantize has no gradients, and its tensor", "quantise x.detach()."),
)
