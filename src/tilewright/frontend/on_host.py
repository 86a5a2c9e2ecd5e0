"""A call whose arrays lie in host memory: NumPy's go to a GPU and back, where there is one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.dtypes import BF16, DType
from tilewright.errors import ProblemError
from tilewright.frontend.compute import compute, refuse_other_library, writable_view
from tilewright.frontend.libraries import HostArrays, View, library_of
from tilewright.frontend.libraries.views import DTypeError
from tilewright.frontend.operands import applied_to, further_of, in_place
from tilewright.frontend.options import Options
from tilewright.frontend.requests import Views, checked
from tilewright.frontend.shapes import Product
from tilewright.frontend.tracing import operand_name
from tilewright.notices import say_once
from tilewright.runtime.driver import gpu_problem, open_gpu
from tilewright.runtime.memory import DeviceArray, c_strides


def on_host(a: Any, b: Any, out: Any, c: Any, bias: Any, options: Options, operands: tuple[Any, ...] = ()) -> Any:
    """The product of two NumPy arrays of one format, as a NumPy array (a scalar where NumPy gives one), or a tuple of
    several.

    Raises DTypeError, ShapeError and ProblemError for what cannot be asked.
    """
    library = library_of(a)
    for name, array in (("b", b), ("out", out), ("c", c), ("bias", bias)):
        if array is not None or name == "b":
            refuse_other_library(library, name, array)
    for operand in operands:
        refuse_other_library(library, "an operand of the epilogue", operand)
    for array in (a, b, out, c, bias, *operands):
        if isinstance(array, np.ma.MaskedArray):
            raise ProblemError("A masked array is given, and products know no masks.", hint="pass array.filled(0).")
    first = library.view(a)
    # The strides do not matter here, and what is added may be of any format.
    added = [None if x is None else View(0, x.shape, c_strides(x.shape), first.dtype, None) for x in (c, bias)]
    views = Views(
        _tight(first),
        _tight(library.view(b)),
        None if out is None else _tight(_writable(library, out)),
        added[0],
        added[1],
        tuple(_tight(library.view(operand)) for operand in operands),
    )
    product, into = checked(views, options)
    formats = (into, *(one.view.dtype for one in further_of(options, product, first.dtype)))
    problem = gpu_problem()
    if problem is None:
        results = _on_a_gpu(a, b, None if c is None else np.broadcast_to(c, product.shape), bias, options, operands)
    else:
        say_once(f"tilewright.matmul computes with NumPy. {problem}")
        numbers = _by_numpy(a, b, c, bias, options, operands, views, product)
        results = tuple(dtype.encode(one) for dtype, one in zip(formats, numbers, strict=True))
    made = [_as_given(result, dtype, a) for result, dtype in zip(results, formats, strict=True)]
    if len(made) > 1:
        return tuple(made)
    if out is None:
        return made[0][()]
    out[...] = made[0]
    return out


def _as_given(stored: Any, dtype: DType, a: Any) -> Any:
    """A result as an array of NumPy. Raises DTypeError for bf16, where the operands have not brought it."""
    if dtype is not BF16:
        return stored
    if a.dtype.name != BF16.array_name:
        raise DTypeError("NumPy has no bf16 of its own.", hint="multiply operands of ml_dtypes.bfloat16.")
    return stored.view(a.dtype)


def _tight(view: View) -> View:
    return replace(view, pointer=0, strides=c_strides(view.shape))


def _writable(library: HostArrays, out: Any) -> View:
    """Where `out` lies. Raises ProblemError for one that cannot be written, DTypeError for its format."""
    if not out.flags.writeable:
        raise ProblemError("`out` is read-only.", hint="pass an array that can be written, or leave out `out`.")
    return writable_view(library, out)


def _on_a_gpu(a: Any, b: Any, c: Any, bias: Any, options: Options, operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """The results in their storage types. Arrays travel as they are stored, in C order."""
    gpu = open_gpu()
    dtype = HostArrays().view(a).dtype
    into = options.out_dtype or dtype
    hosts = [_stored(a, dtype), _stored(b, dtype)]
    hosts += [None if added is None else into.encode(np.asarray(added, np.float32)) for added in (c, bias)]
    hosts += [_stored(operand, HostArrays().view(operand).dtype) for operand in operands]
    sent = [None if host is None else DeviceArray.of(gpu, np.ascontiguousarray(host)) for host in hosts]
    results: tuple[Any, ...] = ()
    try:
        first, second, c, bias, *others = sent
        made = compute(library_of(first), first, second, None, c, bias, options, tuple(others))
        results = made if isinstance(made, tuple) else (made,)
        return tuple(result.download() for result in results)
    finally:
        for array in (*sent, *results):
            if array is not None:
                array.close()


def _stored(host: Any, dtype: DType) -> Any:
    return host.view(dtype.storage) if host.dtype.name == "bfloat16" else host


def _placed(options: Options, operands: tuple[Any, ...], views: Views, product: Product) -> Mapping[str, Any]:
    """The operands of the function by the names of the kernel, in f32, of shapes that broadcast to the result's."""
    return {
        operand_name(name): in_place(view.dtype.decode(_stored(operand, view.dtype)), product)
        for name, operand, view in zip(options.names, operands, views.operands, strict=False)
    }


def _by_numpy(
    a: Any, b: Any, c: Any, bias: Any, options: Options, operands: tuple[Any, ...], views: Views, product: Product
) -> tuple[Any, ...]:
    """The same in NumPy, summed in f32."""
    wide = np.float32(options.alpha) * np.matmul(a.astype(np.float32), b.astype(np.float32))
    if c is not None:
        wide = wide + np.float32(options.beta) * np.asarray(c, np.float32)
    if bias is not None:
        wide = wide + np.asarray(bias, np.float32)
    totals = [wide]
    if options.has_second:
        totals.append(np.matmul(a.astype(np.float32), operands[-1].astype(np.float32)))
    found = applied_to(totals, options, _placed(options, operands, views, product))
    return tuple(np.asarray(one, np.float32) for one in found)
