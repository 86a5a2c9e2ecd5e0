"""Products of FP8 operands with their scales, in one kernel that reads the scales where they lie.

    C = f((A @ B) * scale_a * scale_b + bias)

Calls that look alike share a plan, as those of `matmul` do (`compute`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tilewright.dtypes import BF16, F32, FP8_FORMATS, DType
from tilewright.errors import LaunchError, ProblemError
from tilewright.frontend.compute import device_of, planned, refuse_other_library
from tilewright.frontend.known_calls import KNOWN, KnownCall
from tilewright.frontend.layouts import MOST_ROWS, CannotWrite
from tilewright.frontend.libraries import DTypeError, View
from tilewright.frontend.operands import argument_of, check_shape, further_of
from tilewright.frontend.options import PLAIN, Options, format_asked
from tilewright.frontend.remembered import MOST, key_of
from tilewright.frontend.requests import (
    Piece,
    Views,
    power_of_two,
    refuse_narrow_addends,
    refuse_odd_pairs,
    requests_of,
)
from tilewright.frontend.scales import BLOCK, Scaling, scaling_of
from tilewright.frontend.shapes import NeedsCopy, Product, ShapeError, product_of, tight
from tilewright.planning.assembly import Request
from tilewright.planning.dispatch import dispatcher
from tilewright.planning.plan import Place
from tilewright.problem.block_scales import BlockScales

PROMOTE_EVERY = 128
"""Elements of k after which sums are added to sums in f32, unless fast accumulation is asked for."""


@dataclass(frozen=True, slots=True, eq=False)
class ScaledOptions:
    """What is asked beside the arrays; `scaled_options` makes one value of each kind."""

    out_dtype: DType
    fast: bool
    call: Options = PLAIN
    """What a function of the epilogue asks."""

    @property
    def promote_every(self) -> int:
        return 0 if self.fast else PROMOTE_EVERY


_OPTIONS: dict[tuple[DType, bool, Options], ScaledOptions] = {}

_NOT_READ = (0,) * (Place.SCALE_A - Place.RESIDUAL)
"""In the places between the bias and the scales."""

_NO_FLAGS = (0,) * (Place.OPERAND - Place.GUARD_A)
"""In the places of flags, in front of the operands of an epilogue."""


def scaled_options(out_dtype: Any, fast_accumulation: Any, call: Options = PLAIN) -> ScaledOptions:
    """The options of a call. Raises ProblemError, or DTypeError for a result that no kernel stores."""
    if not isinstance(fast_accumulation, bool):
        raise ProblemError(f"fast_accumulation={fast_accumulation!r} is neither True nor False.")
    out = format_asked(out_dtype) or BF16
    if not out.is_result:
        raise DTypeError(
            f"scaled_matmul: a result of {out} is not stored.", hint="results are bf16, f16, f32, e4m3 or e5m2."
        )
    if len(_OPTIONS) >= MOST:
        _OPTIONS.clear()
    return _OPTIONS.setdefault((out, fast_accumulation, call), ScaledOptions(out, fast_accumulation, call))


@dataclass(frozen=True, slots=True)
class ScaledViews:
    """Where the arrays of a call lie."""

    a: View
    b: View
    scale_a: View
    scale_b: View
    bias: View | None = None
    out: View | None = None
    operands: tuple[View, ...] = ()

    @property
    def shape(self) -> tuple[int, int]:
        """That of the result."""
        return self.a.shape[0], self.b.shape[1]


def checked_scaled(views: ScaledViews, options: ScaledOptions) -> Scaling:
    """What the scales of a call scale. Raises DTypeError, ShapeError and ProblemError for what cannot be
    asked."""
    a, b = views.a, views.b
    for name, view in (("a", a), ("b", b)):
        if view.dtype not in FP8_FORMATS:
            raise DTypeError(
                f"scaled_matmul: {name} holds {view.dtype}, and operands with scales are of FP8.",
                hint="use float8_e4m3fn or float8_e5m2; matmul multiplies other formats.",
            )
        if len(view.shape) != 2:
            raise ShapeError(f"scaled_matmul: {name} has shape {view.shape}, and matrices have two dimensions.")
    if a.shape[1] != b.shape[0]:
        raise ShapeError(
            f"scaled_matmul: a of shape {a.shape} does not go with b of shape {b.shape}.",
            hint="the columns of a are as many as the rows of b.",
        )
    given = {"b": b, "scale_a": views.scale_a, "scale_b": views.scale_b, "bias": views.bias, "out": views.out}
    given |= dict(zip(options.call.names, views.operands, strict=True))
    for name, one in given.items():
        if one is not None and one.device != a.device:
            raise ProblemError(f"scaled_matmul: {name} lies on {one.place}, and a on {a.place}.", hint="move one.")
    m, n = views.shape
    if views.bias is not None and views.bias.shape != (n,):
        raise ShapeError(f"scaled_matmul: a bias of shape {views.bias.shape} is not one of ({n},).")
    if views.out is not None and (views.out.shape != (m, n) or views.out.dtype is not options.out_dtype):
        raise ShapeError(
            f"scaled_matmul: `out` is {views.out.dtype} of shape {views.out.shape}, and the result "
            f"{options.out_dtype} of shape {(m, n)}."
        )
    refuse_narrow_addends(options.out_dtype, {"bias": views.bias})
    product = product_of(a, b)
    for name, view in zip(options.call.names, views.operands, strict=True):
        check_shape(name, view, product)
    refuse_odd_pairs(product, options.call)
    return scaling_of(m, n, a.shape[1], views.scale_a, views.scale_b)


def request_of(views: ScaledViews, options: ScaledOptions) -> Request | None:
    """The request of a call: that of the product without scales, and these; None for an empty result. Raises as
    `checked_scaled`, and NeedsCopy for an operand, a bias or an `out` whose strides no kernel takes."""
    scaling = checked_scaled(views, options)
    product, out = product_of(views.a, views.b), options.out_dtype
    if product.m > MOST_ROWS:
        raise ProblemError(
            f"scaled_matmul: {product.m} rows are more than one grid has blocks for.",
            hint=f"multiply at most {MOST_ROWS} at a time.",
        )
    plain = Views(views.a, views.b, views.out, None, views.bias, views.operands)
    try:
        pieces = requests_of(plain, product, out, options.call)
    except CannotWrite:
        raise NeedsCopy("out", tight) from None
    if not pieces:
        return None
    if pieces[0].swapped:
        raise NeedsCopy("out", tight)
    request = pieces[0].request
    gemm = replace(
        request.gemm,
        epilogue=replace(request.gemm.epilogue, scale=scaling.whole),
        block_scales=_blocks(scaling, product, views) if product.k else None,
        b_dtype=views.b.dtype if views.b.dtype is not views.a.dtype else None,
    )
    beside_c = views.scale_b.pointer // F32.bytes * out.bytes if "n" in scaling.whole else 0
    alignment = replace(request.alignment, c=min(request.alignment.c, power_of_two(beside_c)))
    every = BLOCK if gemm.block_scales is not None else options.promote_every
    return replace(request, gemm=gemm, alignment=alignment, promote_every=every)


def _blocks(scaling: Scaling, product: Product, views: ScaledViews) -> BlockScales | None:
    """Scales of blocks, and whether TMA can load them."""
    if scaling.blocks is None:
        return None
    return scaling.blocks.lying(product.m, product.n, product.k, (views.scale_a.pointer, views.scale_b.pointer))


def refuse_device(device: int, dtype: DType, *, in_blocks: bool) -> None:
    """Raises LaunchError where tensor cores do not multiply operands of a format, or no kernel takes scales of
    blocks."""
    spec, hint = dispatcher(device).spec, "convert the operands to bf16 and call matmul."
    if not spec.tensor.flops_per_clk_per_sm(dtype.rate, F32.name):
        raise LaunchError(
            f"The tensor cores of {spec.name} multiply no FP8.", note="that takes compute capability 8.9.", hint=hint
        )
    if in_blocks and spec.compute_capability[0] != 9:
        raise LaunchError(
            f"scaled_matmul takes scales of blocks by wgmma, which {spec.name} does not have.",
            note="that takes compute capability 9.0.",
            hint="use scales of rows and columns.",
        )


Arrays = tuple[Any, ...]
"""a, b, scale_a, scale_b, bias and out of a call, None for what is not given; then the operands of its function."""

_NAMES = ("a", "b", "scale_a", "scale_b", "bias", "out")


def views_of_scaled(library: Any, arrays: Arrays) -> ScaledViews:
    """Where the arrays of a call lie. Raises ProblemError for one of another library, or that no kernel reads."""
    found = {}
    for name, array in zip(_NAMES, arrays, strict=False):
        if array is not None or name not in ("bias", "out"):
            refuse_other_library(library, name, array)
            found[name] = library.view(array)
    for operand in arrays[len(_NAMES) :]:
        refuse_other_library(library, "an operand of the epilogue", operand)
    return ScaledViews(**found, operands=tuple(library.view(operand) for operand in arrays[len(_NAMES) :]))


def compute_scaled(library: Any, arrays: Arrays, options: ScaledOptions) -> Any:
    """The result of a call.

    Raises DTypeError, ShapeError and ProblemError for what cannot be asked, HostMemory for arrays on no GPU, and
    LaunchError for a GPU without wgmma, or where a kernel would have to be compiled in a capture.
    """
    key = key_of(library, arrays, "scaled_matmul", options)
    known = KNOWN.get(key)
    if known is None:
        views = views_of_scaled(library, arrays)
        try:
            known = _settled(library, views, arrays[0], options)
        except NeedsCopy as needed:
            if needed.name == "out":
                return _assigned(library, arrays, options)
            names = (*_NAMES, *(argument_of(number) for number in range(len(arrays) - len(_NAMES))))
            at = names.index(needed.name)
            copied: Any = (*arrays[:at], needed.copied(library, arrays[at]), *arrays[at + 1 :])
            return compute_scaled(library, copied, options)
        KNOWN.keep(key, known)
    if arrays[5] is not None and _overwrites(views_of_scaled(library, arrays)):
        return _assigned(library, arrays, options)
    a, b, scale_a, scale_b, bias, out, *operands = arrays
    address = library.address
    behind = 0 if bias is None else address(bias), *_NOT_READ, address(scale_a), address(scale_b)
    if known.make_others or operands:
        behind = (*behind, *_NO_FLAGS, *map(address, operands))
    return known.run(library, a, behind, b, out)


def _overwrites(views: ScaledViews) -> bool:
    """Whether writing the result may change what is still to be read."""
    given = (views.a, views.b, views.scale_a, views.scale_b, views.bias, *views.operands)
    return views.out is not None and any(one is not None and views.out.overlaps(one) for one in given)


def _assigned(library: Any, arrays: Arrays, options: ScaledOptions) -> Any:
    """The result by way of an array of its own."""
    out = arrays[5]
    library.assign(out, compute_scaled(library, (*arrays[:5], None, *arrays[6:]), options))
    return out


def _settled(library: Any, views: ScaledViews, like: Any, options: ScaledOptions) -> KnownCall:
    request = request_of(views, options)
    device = device_of(library, views.a)
    refuse_device(device, views.a.dtype, in_blocks=request is not None and request.gemm.block_scales is not None)
    further = further_of(options.call, product_of(views.a, views.b), options.out_dtype)
    others = tuple(library.maker(one.view.shape, one.view.dtype, like) for one in further)
    make = library.maker(views.shape, options.out_dtype, like)
    if request is None:
        return KnownCall(device, make, None, others)
    piece = Piece(request, ((0,) * 5,), False)
    return KnownCall(device, make, planned(dispatcher(device), library, piece), others)


def words_of_scaled(library: Any, arrays: Arrays, options: ScaledOptions) -> str:
    """What runs for a call that was made before, for people; empty where it is not known."""
    known = KNOWN.get(key_of(library, arrays, "scaled_matmul", options))
    return "" if known is None else known.words
