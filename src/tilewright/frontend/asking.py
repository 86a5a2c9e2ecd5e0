"""`plan`: what a call would run, asked of the same dispatcher that runs it, for arrays or for shapes alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import groupby
from typing import Any

from tilewright.device.catalog import device as known_device
from tilewright.device.spec import DeviceSpec
from tilewright.dtypes import BF16, F16, F32, DType
from tilewright.errors import LaunchError, ProblemError
from tilewright.frontend.call_plan import CallPlan, ProductPlan
from tilewright.frontend.calls import with_function
from tilewright.frontend.complex_numbers import COMPLEX64, is_complex, real_shapes, refuse_unasked
from tilewright.frontend.compute import Parts, settle
from tilewright.frontend.formats import format_of
from tilewright.frontend.layouts import CannotWrite
from tilewright.frontend.libraries import DTypeError, HostArrays, View, library_of
from tilewright.frontend.operands import argument_of
from tilewright.frontend.options import EMULATED, Guarding, Options, Precision, options_asked, unguarded
from tilewright.frontend.prepared import Prepared
from tilewright.frontend.requests import Piece, Views, checked, requests_of
from tilewright.frontend.shapes import NeedsCopy, Product, ShapeError
from tilewright.planning.account import account_of, dispatcher_on_paper, next_best
from tilewright.planning.dispatch import Dispatcher, dispatcher
from tilewright.problem.emulation import ALGORITHMS, f32_units
from tilewright.problem.gemm import ORDERS
from tilewright.runtime.driver import gpu_problem
from tilewright.runtime.memory import c_strides

_APART = 1 << 44
"""Bytes from one array without an address to the next."""


def plan(
    a: Any,
    b: Any,
    *,
    device: str | DeviceSpec | None = None,
    dtype: Any = None,
    orders: str = "NN",
    best: int = 0,
    out: Any = None,
    c: Any = None,
    alpha: float = 1.0,
    beta: float | None = None,
    bias: Any = None,
    activation: str | None = None,
    epilogue: Callable[..., Any] | None = None,
    operands: Mapping[str, Any] | None = None,
    out_dtype: Any = None,
    precision: Precision = "default",
    guard: Guarding = "on",
    deterministic: Any = None,
    batch_invariant: bool = False,
) -> CallPlan:
    """What `matmul` would run for the same arguments; nothing is computed.

    a, b, and every other array: an array as `matmul` takes it, or its shape, a tuple of numbers. device: a GPU by its
    name in the catalogue ("H200", "RTX 4090"), which need not be here; else the GPU of the arrays, or GPU 0. dtype: of
    shapes: "f32", "f16" or "bf16"; f32 if it is not given. orders: of shapes: T for an operand that lies column-major,
    as a transposed view does. best: so many other plans are told as well. All others as of `matmul`.

    On the GPU of the arrays kernels are compiled as for the call itself, which finds them, and what was measured by
    `autotune` counts. Of complex64, also as dtype, it is the plan of the real product that computes it. Raises as
    `matmul`, and LaunchError where there is no GPU and none is named.

    >>> found = plan((64, 4096), (4096, 512), dtype="bf16", device="H200")
    >>> found.shape, [launch.role for launch in found.launches][-1] in ("product", "reduction")
    ((64, 512), True)
    """
    precision = unguarded(precision, guard)
    complex_numbers = dtype == COMPLEX64 or is_complex(a) or is_complex(b)
    if orders not in ORDERS:
        raise ProblemError(f"orders={orders!r} is not known.", hint=f"orders are {', '.join(ORDERS)}.")
    if type(best) is not int or best < 0:
        raise ProblemError(f"best={best!r} is not a number of plans.", hint="0 or more.")
    if complex_numbers:
        named = {"a": a, "b": b, "out": out, "c": c, "bias": bias}
        given: dict[str, Any] = {"device": device, "best": best, "alpha": alpha, "beta": beta, "precision": precision}
        given |= {"deterministic": deterministic, "batch_invariant": batch_invariant}
        unasked = {"activation": activation, "epilogue": epilogue, "operands": operands, "out_dtype": out_dtype}
        return _of_complex(named, given, unasked, orders)
    asked = alpha, beta, out_dtype, precision, deterministic, batch_invariant, activation, c is not None
    arrays: tuple[Any, ...] = ()
    if epilogue is not None or operands is not None:
        options, arrays = with_function(epilogue, operands, asked, b, out)
    else:
        options = options_asked(*asked)
    if options.beta == 0:
        c = None
    weight = b if isinstance(b, Prepared) else None
    if weight is not None:
        options, b = weight.precise(options), weight.weight
    named = {"a": a, "b": b, "out": out, "c": c, "bias": bias}
    views = _views(named, arrays, _format(dtype, (a, b, out, c, bias, *arrays)), orders)
    if device is not None:
        planner = dispatcher_on_paper(known_device(device))
        return _planned(planner, views, options, best)
    where = None if _is_shape(a) else library_of(a).view(a).device
    if where is None or any(_is_shape(array) for array in (*named.values(), *arrays)):
        return _planned(_first_gpu(), views, options, best)
    library, planner = library_of(a), dispatcher(where)
    if weight is not None:
        call, ran = weight.settle(a, out, c, bias, options, arrays)
    else:
        find = settle(library, a, b, out, c, bias, options, arrays)
        call, ran = find(), lambda: find().ran(library)
    return replace(_planned(planner, views, options, best, call.parts), _ran=ran)


def _of_complex(named: Mapping[str, Any], options: dict[str, Any], unasked: Mapping[str, Any], orders: str) -> CallPlan:
    """The plan of a product of complex64: that of real shapes."""
    refuse_unasked(**unasked)
    shapes = {}
    for name, array in named.items():
        if array is None:
            continue
        if not _is_shape(array) and not is_complex(array):
            raise DTypeError(f"{name} holds {array.dtype}, and other arrays of the call complex64.", hint="convert it.")
        shapes[name] = _shape(name, array if _is_shape(array) else tuple(array.shape))
    a, b, shape = real_shapes(shapes["a"], shapes["b"])
    added: dict[str, Any] = {name: (*one[:-1], 2 * one[-1]) for name, one in shapes.items() if name in ("out", "bias")}
    if "c" in shapes:
        added["c"] = (*shape, 2) if len(shapes["b"]) == 1 else (*shape[:-1], 2 * shape[-1])
    found = plan(a, b, **added, **options)
    copied = ("a", "b") if orders[0] == "T" else ("b",)
    return replace(found, shape=shape, copied=(*copied, *found.copied), note=_BY_REAL_NUMBERS)


_BY_REAL_NUMBERS = "complex64 as one product of f32: A as it lies, B in blocks of 2 x 2, [re im; -im re]"


def _first_gpu() -> Dispatcher:
    """The dispatcher of GPU 0. Raises LaunchError where there is none."""
    problem = gpu_problem()
    if problem is not None:
        raise LaunchError(f"There is no GPU to plan for. {problem}", hint="name one: device='H200'.")
    return dispatcher(0)


def _is_shape(array: Any) -> bool:
    return isinstance(array, (tuple, list))


def _format(dtype: Any, arrays: tuple[Any, ...]) -> DType:
    """The format of what is given as a shape. Raises ProblemError where nothing is, and DTypeError."""
    if dtype is None:
        return F32
    if not any(_is_shape(array) for array in arrays):
        raise ProblemError(f"dtype={dtype!r} is of shapes, and arrays have a format.", hint="leave out dtype.")
    found = format_of(dtype)
    if found not in (F32, F16, BF16):
        raise DTypeError(
            f"Cannot multiply operands of {dtype}.",
            note="precision='tf32' rounds operands of f32." if str(dtype) == "tf32" else "",
            hint="dtypes are f32, f16, bf16 and complex64; plans of FP8, whose operands have scales, are not told.",
        )
    assert found is not None
    return found


def _views(named: Mapping[str, Any], operands: tuple[Any, ...], dtype: DType, orders: str) -> Views:
    """Where arrays lie: those without an address on a GPU at multiples of 16 bytes, in C order those of NumPy, which
    are copied there."""
    letters = dict(zip("ab", orders, strict=True))
    known: dict[int, View] = {}

    def view(name: str, array: Any) -> View:
        pointer = (1 + len(known)) * _APART
        if _is_shape(array):
            shape = _shape(name, array)
            return View(pointer, shape, _strides(shape, letters.get(name, "N")), dtype, 0)
        library = library_of(array)
        found: View = library.view(array)
        if found.device is not None:
            return replace(found, device=0)
        tight = isinstance(library, HostArrays)
        strides = c_strides(found.shape) if tight else found.strides
        return replace(found, pointer=pointer, strides=strides, device=0)

    def once(name: str, array: Any) -> View | None:
        if array is None and name not in letters:
            return None
        if id(array) not in known:
            known[id(array)] = view(name, array)
        return known[id(array)]

    first = {name: once(name, array) for name, array in named.items()}
    others = tuple(view(f"operand {number}", array) for number, array in enumerate(operands))
    return Views(**first, operands=others)  # type: ignore[arg-type]


def _shape(name: str, sizes: Any) -> tuple[int, ...]:
    if not all(isinstance(size, int) and not isinstance(size, bool) and size >= 0 for size in sizes):
        raise ShapeError(f"{name}={sizes!r} is not a shape.", hint="a shape is a tuple of numbers from 0 on.")
    return tuple(sizes)


def _strides(shape: tuple[int, ...], letter: str) -> tuple[int, ...]:
    if letter == "N" or len(shape) < 2:
        return c_strides(shape)
    *batch, rows, columns = shape
    *outer, _, _ = c_strides(shape)
    return (*outer, 1, rows) if columns or batch else (1, rows)


class _OnViews:
    """What a library does with arrays that no kernel reads as they lie, of views."""

    @staticmethod
    def tight(view: View) -> View:
        return replace(view, strides=c_strides(view.shape))

    @staticmethod
    def spread(view: View, shape: tuple[int, ...]) -> View:
        return replace(view, shape=shape, strides=c_strides(shape))

    @staticmethod
    def convert(view: View, dtype: DType) -> View:
        return replace(view, dtype=dtype, strides=c_strides(view.shape))


def _settled(views: Views, options: Options) -> tuple[Product, DType, tuple[Piece, ...], tuple[str, ...]]:
    """The product, its format, its requests, and the arguments that are copied before."""
    copied: list[str] = []
    while True:
        try:
            product, out = checked(views, options)
            return product, out, requests_of(views, product, out, options), tuple(copied)
        except NeedsCopy as needed:
            copied.append(needed.name)
            views = _with(views, needed)
        except CannotWrite:
            copied.append("out")
            views = replace(views, out=None)


def _with(views: Views, needed: NeedsCopy) -> Views:
    """The views with what is read in the place of an argument."""
    if needed.name in ("a", "b", "c", "bias"):
        return replace(views, **{needed.name: needed.copied(_OnViews, getattr(views, needed.name))})
    number = [argument_of(at) for at in range(len(views.operands))].index(needed.name)
    others = list(views.operands)
    others[number] = needed.copied(_OnViews, others[number])
    return replace(views, operands=tuple(others))


def _planned(planner: Dispatcher, views: Views, options: Options, best: int, parts: Parts | None = None) -> CallPlan:
    """parts: of a call that is settled."""
    product, out, pieces, copied = _settled(views, options)
    found: list[ProductPlan] = []
    planned = parts or tuple((piece, planner.plan(piece.request)) for piece in pieces)
    for (request, swapped), alike in groupby(planned, lambda part: (part[0].request, part[0].swapped)):
        (first, made), *others = alike  # parts of a very large result are as large as each other
        found.append(
            ProductPlan(
                *(request.gemm.m, request.gemm.n, request.gemm.k),
                batch=1 if request.stack is None else request.stack.count,
                repeats=sum(len(piece.starts) for piece in (first, *(other for other, _ in others))),
                swapped=swapped,
                runs=account_of(planner, request, made),
                next_best=next_best(planner, request, made, best),
            )
        )
    dtype = views.a.dtype
    bound = bound_of(options, dtype, product.k)
    return CallPlan(planner.spec.name, product.shape, dtype, out, options.precision, copied, tuple(found), bound)


def bound_of(options: Options, dtype: DType, k: int) -> float | None:
    """W of the bound that a precision has for operands of f32, in units of u |A||B|; None for others."""
    if dtype is not F32 or options.tf32 or not k:
        return None
    if options.precision in ALGORITHMS:
        return ALGORITHMS[options.precision].units(k)
    assert options.precision in ("default", EMULATED)
    return f32_units(k)
