"""A call whose arrays lie in host memory: NumPy's go to a GPU and back, where there is one."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.dtypes import BF16, DType
from tilewright.errors import ProblemError
from tilewright.frontend.added import bias_along
from tilewright.frontend.libraries import DTypeError, HostArrays, View, library_of
from tilewright.frontend.libraries.views import c_strides
from tilewright.frontend.on_gpu import on_gpu
from tilewright.frontend.options import Options, result_format
from tilewright.frontend.shapes import Product, ShapeError, product_of, spreads_to
from tilewright.notices import say_once
from tilewright.runtime.driver import gpu_problem, open_gpu
from tilewright.runtime.memory import DeviceArray


def on_host(a: Any, b: Any, out: Any, c: Any, bias: Any, options: Options) -> Any:
    """The product of two NumPy arrays of one format, as a NumPy array (a scalar where NumPy gives one)."""
    dtype = HostArrays().view(a).dtype
    into = result_format(options, dtype)
    product = product_of(*(View(0, host.shape, c_strides(host.shape), dtype, None) for host in (a, b)))
    _check(product, out, c, bias, into)
    problem = gpu_problem()
    if problem is None:
        result = _on_a_gpu(a, b, None if c is None else np.broadcast_to(c, product.shape), bias, options)
    else:
        say_once(f"tilewright.matmul computes with NumPy. {problem}")
        result = into.encode(_by_numpy(a, b, c, bias, options))
    if into is BF16:  # whose NumPy type is not NumPy's own
        result = result.view(a.dtype)
    if out is None:
        return result[()]
    out[...] = result
    return out


def _check(product: Product, out: Any, c: Any, bias: Any, into: DType) -> None:
    """Raises ShapeError, DTypeError or ProblemError for what does not go with the product."""
    for name, added in (("c", c), ("bias", bias)):
        if added is not None and not isinstance(added, np.ndarray):
            raise ProblemError(f"{name} is a {type(added).__name__}, and the product is an array of NumPy.")
    if out is not None and out.shape != product.shape:
        raise ShapeError(f"`out` has shape {out.shape}, and the result {product.shape}.")
    if out is not None and HostArrays().view(out).dtype is not into:
        raise DTypeError(
            f"`out` holds {out.dtype}, and the result is {into}.", hint="convert the operands, or pass another out."
        )
    if c is not None and not spreads_to(np.shape(c), product.shape):
        raise ShapeError(f"c of shape {np.shape(c)} does not broadcast to the result's shape {product.shape}.")
    if bias is not None:
        bias_along(np.shape(bias), product)


def _on_a_gpu(a: Any, b: Any, c: Any, bias: Any, options: Options) -> Any:
    """The result in its storage type. Arrays travel as they are stored, in C order."""
    gpu = open_gpu()
    dtype = HostArrays().view(a).dtype
    into = options.out_dtype or dtype
    hosts = [_stored(a, dtype), _stored(b, dtype)]
    hosts += [None if added is None else into.encode(np.asarray(added, np.float32)) for added in (c, bias)]
    sent = [None if host is None else DeviceArray.of(gpu, np.ascontiguousarray(host)) for host in hosts]
    result = None
    try:
        first, second, c, bias = sent
        result = on_gpu(library_of(first), first, second, None, c, bias, options)
        return result.download()
    finally:
        for array in (*sent, result):
            if array is not None:
                array.close()


def _stored(host: Any, dtype: DType) -> Any:
    return host.view(dtype.storage) if host.dtype.name == "bfloat16" else host


def _by_numpy(a: Any, b: Any, c: Any, bias: Any, options: Options) -> Any:
    """The same in NumPy, summed in f32."""
    wide = np.float32(options.alpha) * np.matmul(a.astype(np.float32), b.astype(np.float32))
    if c is not None:
        wide = wide + np.float32(options.beta) * np.asarray(c, np.float32)
    if bias is not None:
        wide = wide + np.asarray(bias, np.float32)
    return np.asarray(wide if options.activation is None else options.activation.of(wide), np.float32)
