"""FP8 codes and scales of a matrix, as `scaled_matmul` takes them: what computes a call of `quantize`."""

from __future__ import annotations

from typing import Any, Literal, get_args

from tilewright.dtypes import E4M3, E5M2, F32, FP8_FORMATS, DType
from tilewright.errors import ProblemError
from tilewright.frontend.compute import device_of
from tilewright.frontend.known_calls import KNOWN, KnownCall
from tilewright.frontend.libraries import DTypeError, View
from tilewright.frontend.remembered import key_of
from tilewright.frontend.requests import power_of_two
from tilewright.frontend.shapes import ShapeError, has_plain_rows
from tilewright.planning.dispatch import dispatcher
from tilewright.planning.plan import Place
from tilewright.problem.quantization import BLOCK, Groups, Quantization
from tilewright.units import ceil_div

Scales = Literal["row", "tensor", "1x128"]

_GROUPS: dict[str, Groups] = {"row": "line", "tensor": "all", "1x128": "block"}
_NOT_READ = (0,) * (Place.SCALE_A - Place.BIAS)
"""In the places between codes and scales."""

_FORMATS: dict[str, DType] = {"e4m3": E4M3, "float8_e4m3fn": E4M3, "e5m2": E5M2, "float8_e5m2": E5M2}


def checked_words(scales: Any, dtype: Any) -> tuple[Groups, DType]:
    """What shares a scale, and the format of the codes. Raises ProblemError and DTypeError for others."""
    if not isinstance(scales, str) or scales not in _GROUPS:
        raise ProblemError(
            f"scales={scales!r} is not known.", hint=f"scales are {', '.join(map(repr, get_args(Scales)))}."
        )
    name = dtype.name if isinstance(dtype, DType) else str(dtype).rpartition(".")[2]
    if name not in _FORMATS:
        raise DTypeError(f"quantize makes no codes of {dtype}.", hint="use 'e4m3' or 'e5m2'.")
    return _GROUPS[scales], _FORMATS[name]


def shapes_of(shape: tuple[int, ...], groups: Groups) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shapes of codes and scales, those of blocks as they lie in memory. Raises ShapeError."""
    if len(shape) != 2:
        raise ShapeError(f"quantize: x has shape {shape}, and a matrix has two dimensions.", hint="reshape it.")
    m, k = shape
    if groups == "all" and 0 in shape:
        raise ShapeError(f"quantize: x of shape {shape} has no numbers to find a scale of.")
    return shape, {"line": (m, 1), "all": (1,)}.get(groups, (ceil_div(k, BLOCK), m))


def compute_quantized(library: Any, x: Any, groups: Groups, out: DType) -> tuple[Any, Any]:
    """Codes and scales of an array. Raises as `quantize`, HostMemory for arrays on no GPU, and LaunchError where a
    kernel would have to be compiled in a capture."""
    key = key_of(library, (x,), "quantize", groups, out)
    known = KNOWN.get(key)
    if known is None:
        view: View = library.view(x)
        shapes = shapes_of(view.shape, groups)
        if view.dtype in FP8_FORMATS:
            raise DTypeError(f"quantize: x holds {view.dtype}.", hint="x is of f32, f16 or bf16.")
        device_of(library, view)
        if not has_plain_rows(view):
            return compute_quantized(library, library.tight(x), groups, out)
        known = _settled(library, view, shapes, groups, out, x)
        KNOWN.keep(key, known)
    codes, scales = known.run(library, x, _NOT_READ)
    return codes, scales.T if groups == "block" else scales


def _settled(library: Any, view: View, shapes: Any, groups: Groups, out: DType, like: Any) -> KnownCall:
    m, k = view.shape
    assert view.device is not None
    leading = view.strides[0] if m > 1 and k else k
    make, make_scales = library.maker(shapes[0], out, like), library.maker(shapes[1], F32, like)
    in_blocks = groups == "block"
    if not m or (in_blocks and not k):
        return KnownCall(view.device, make, None, (make_scales,))
    problem = Quantization(m, k, leading, k, view.dtype, out, groups, 1, m if in_blocks else 1)
    planner = dispatcher(view.device)
    aligned = power_of_two(view.pointer | leading * view.dtype.bytes)
    plan = planner.quantizing(problem, aligned, capturing=library.capturing)
    return KnownCall(view.device, make, plan, (make_scales,))
