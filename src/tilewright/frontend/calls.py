"""`matmul` and `linear`: arrays of any library in, an array of the same library out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tilewright.dtypes import BF16, F16, F32, TF32, DType
from tilewright.errors import LaunchError, ProblemError
from tilewright.frontend.choices import Alignment, Precision
from tilewright.frontend.dispatch import Request, dispatcher
from tilewright.frontend.libraries import (
    AnyArrays,
    DTypeError,
    HostArrays,
    TorchArrays,
    View,
    library_of,
    no_gpu,
    say_once,
)
from tilewright.frontend.plans import Plan
from tilewright.frontend.shapes import NeedsCopy, Product, ShapeError, product_of
from tilewright.problem.gemm import Gemm, Order
from tilewright.runtime.driver import open_gpu
from tilewright.runtime.memory import DeviceArray

_FAST: dict[type, Any] = {}
"""For types whose calls are remembered whole: a function that gives the result, or None where it knows no plan."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a call asks for beside the product."""

    alpha: float = 1.0
    beta: float = 0.0
    out_dtype: DType | None = None
    precision: Precision = "default"
    keep_order: bool = False


PLAIN = Options()


def matmul(
    a: Any,
    b: Any,
    *,
    out: Any = None,
    c: Any = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out_dtype: Any = None,
    precision: Precision = "default",
    deterministic: bool | Literal["bitwise"] | None = None,
    batch_invariant: bool = False,
) -> Any:
    """`alpha * a @ b + beta * c`, with the shapes of NumPy's matmul; arrays of PyTorch, CuPy, JAX or NumPy.

    out: where the result goes. c: added, of the result's shape (or one that broadcasts to it). out_dtype: "f32" or the
    operands' format. precision: "tf32" lets f32 operands be rounded to tf32, for tensor cores. deterministic: every
    kernel here gives the same bits in every run; "bitwise" also keeps to one order of summation whatever is tuned.
    batch_invariant: a row of the result has the same bits however many rows there are.

    Work runs on the current stream of the arrays' library. Raises what NumPy raises for shapes (ShapeError is a
    ValueError), DTypeError for number formats, ProblemError for arrays on different devices.
    """
    fast = _FAST.get(type(a))
    if fast is not None and out is None and c is None and out_dtype is None and alpha == 1.0:
        if precision == "default" and not batch_invariant and deterministic is None:
            result = fast(a, b)
            if result is not None:
                return result
    keep_order = batch_invariant or deterministic == "bitwise"
    options = Options(float(alpha), 0.0 if c is None else float(beta), _asked(out_dtype), precision, keep_order)
    return multiply(a, b, out, c, options)


def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """`x @ weight.T + bias`, as torch.nn.functional.linear."""
    turned = weight.T if len(weight.shape) == 2 else weight
    return matmul(x, turned) if bias is None else matmul(x, turned, c=bias, beta=1.0)


def multiply(a: Any, b: Any, out: Any, c: Any, options: Options) -> Any:
    """A call, whatever it asks."""
    library = library_of(a)
    if library_of(b) is not library:
        raise ProblemError(
            f"Cannot multiply an array of {library.name} by one of {library_of(b).name}.",
            hint="convert one to the other's library: both take DLPack.",
        )
    if isinstance(library, TorchArrays):
        from tilewright.frontend.torch_calls import handed_over

        handed = handed_over(library, a, b, out, c, options)
        if handed is not None:
            return handed
    first, second = library.view(a), library.view(b)
    _check_formats(first, second, options)
    if first.device != second.device:
        raise ProblemError(
            f"Cannot multiply arrays on different devices: {_device(first)} and {_device(second)}.",
            hint="move one of them.",
        )
    if first.device is None:
        return _on_the_host(library, a, b, out, c, options)
    return _on_a_gpu(library, a, b, first, second, out, c, options)


def _on_a_gpu(library: Any, a: Any, b: Any, first: View, second: View, out: Any, c: Any, options: Options) -> Any:
    copied = False
    while True:
        try:
            product = product_of(first, second)
            break
        except NeedsCopy as needed:
            copied = True
            if needed.which == 0:
                a = library.tight(a)
                first = library.view(a)
            else:
                b = library.tight(b)
                second = library.view(b)
    out_dtype = options.out_dtype or first.dtype
    result = _result(library, a, product, out_dtype, out, first.device)
    told = library.view(result)
    if 0 in told.shape:
        return result
    if c is not None and options.beta != 0:
        library.assign(result, c)
    if first.shape and product.k == 0 and not (c is not None and options.beta):
        library.assign(result, 0)
        return result
    call = planned(product, first, second, told, options, capturing=library.capturing)
    device = first.device
    assert device is not None
    try:
        run(library, call, first.pointer, second.pointer, told.pointer, device, result)
    except LaunchError as full:
        if not call.plan.scratch_bytes or "workspace" not in str(full):
            raise
        say_once(f"{full.headline} A slower kernel that needs none runs instead.")
        call = planned(product, first, second, told, options, capturing=library.capturing, without_workspace=True)
        run(library, call, first.pointer, second.pointer, told.pointer, device, result)
    library.finished((a, b, result), device)
    if isinstance(library, TorchArrays) and not copied and options == PLAIN and out is None:
        from tilewright.frontend.torch_calls import remember

        remember(library, a, b, result, call)
    return result


@dataclass(frozen=True, slots=True)
class Call:
    """A plan, and the byte offsets of each product of a batch. swapped: A and B have changed places."""

    plan: Plan
    offsets: tuple[tuple[int, int, int], ...]
    swapped: bool


def planned(
    product: Product,
    a: View,
    b: View,
    out: View,
    options: Options,
    *,
    capturing: Any,
    without_workspace: bool = False,
) -> Call:
    """The launches of a product."""
    rows, columns = out.strides[-2:] if len(product.shape) >= 2 and product.batch else _result_strides(product, out)
    swapped = rows == 1 and columns != 1 and product.n > 1
    leading = columns if swapped else rows
    product_tf32 = TF32 if options.precision == "tf32" and a.dtype is F32 else None
    sides = (product.b, product.a) if swapped else (product.a, product.b)
    orders = [_turned(side.order) if swapped else side.order for side in sides]
    gemm = Gemm(
        product.n if swapped else product.m,
        product.m if swapped else product.n,
        product.k,
        a.dtype,
        out=out.dtype,
        a=orders[0],
        b=orders[1],
        alpha=options.alpha,
        beta=options.beta,
        lda=sides[0].leading,
        ldb=sides[1].leading,
        ldc=max(leading, product.m if swapped else product.n, 1),
        product=product_tf32,
    )
    step, out_step = a.dtype.bytes, out.dtype.bytes
    if product.batch:
        offsets = tuple((x * step, y * step, z * out_step) for x, y, z in product.offsets())
    else:
        offsets = ((0, 0, 0),)
    pointers = [(b, product.b), (a, product.a)] if swapped else [(a, product.a), (b, product.b)]
    bits = []
    for side, (view, matrix) in enumerate(pointers):
        value = view.pointer | matrix.leading * step
        for offset in offsets:
            value |= offset[1 - side if swapped else side]
        bits.append(value)
    whole = out.pointer | gemm.ldc * out_step
    for offset in offsets:
        whole |= offset[2]
    alignment = Alignment(*(_power_of_two(value) for value in (*bits, whole)))
    request = Request(gemm, alignment, options.keep_order, without_workspace)
    assert a.device is not None
    planner = dispatcher(a.device)
    plan = planner.known(request)
    if plan is None:
        if capturing():
            raise LaunchError(
                f"The stream is recording a CUDA graph, and no kernel for {gemm} is loaded yet.",
                note="compiling and loading cannot be recorded.",
                hint="make the same call once before the capture.",
            )
        plan = planner.plan(request)
    return Call(plan, offsets, swapped)


def run(library: Any, call: Call, a: int, b: int, out: int, device: int, like: Any) -> None:
    """Start the launches of a call. a, b, out: addresses."""
    plan = call.plan
    scratch, keep = library.scratch(plan.scratch_bytes, like) if plan.scratch_bytes else (0, None)
    stream = library.stream(device)
    for x, y, z in call.offsets:
        first, second = (b + y, a + x) if call.swapped else (a + x, b + y)
        plan.run(stream, (first, second, out + z, 0, 0, scratch))
    del keep


def _result_strides(product: Product, out: View) -> tuple[int, int]:
    """Strides of the result as one matrix, whatever dimensions the user sees."""
    if len(out.shape) >= 2 and product.m == out.shape[-2] and product.n == out.shape[-1]:
        return out.strides[-2], out.strides[-1]
    if len(out.shape) == 1 and product.n == 1:
        return out.strides[0], 1
    return product.n, 1


def _result(library: Any, a: Any, product: Product, dtype: DType, out: Any, device: int | None) -> Any:
    """Where the result goes: a new array, or the user's, which must fit."""
    if out is None:
        return library.empty(product.shape, dtype, a)
    if not library.writes_in_place:
        raise ProblemError(f"Arrays of {library.name} do not change, so `out` cannot be given.")
    view = library.view(out)
    if view.shape != product.shape or view.dtype is not dtype or view.device != device:
        raise ShapeError(
            f"`out` is {view.dtype} {view.shape} on {_device(view)}; the result is {dtype} {product.shape} on "
            f"{_device(View(0, (), (), dtype, device))}."
        )
    tight_batch = _is_tight(view) or not product.batch and len(view.shape) == 2 and 1 in view.strides
    if not tight_batch and 0 not in view.shape:
        raise ProblemError(
            f"`out` has strides {view.strides}, and a result is written with contiguous rows or columns.",
            hint="give an array in C order.",
        )
    return out


def _is_tight(view: View) -> bool:
    expected = 1
    for extent, stride in zip(reversed(view.shape), reversed(view.strides), strict=True):
        if extent != 1 and stride != expected:
            return False
        expected *= extent
    return True


def _check_formats(a: View, b: View, options: Options) -> None:
    if a.dtype is not b.dtype:
        raise DTypeError(f"Cannot multiply {a.dtype} by {b.dtype}.", hint="convert one to the other's dtype.")
    if options.precision not in ("default", "tf32"):
        raise ProblemError(f"There is no precision {options.precision!r}.", hint="use 'default' or 'tf32'.")
    if options.out_dtype not in (None, a.dtype, F32):
        raise DTypeError(f"Cannot multiply {a.dtype} into {options.out_dtype}.", hint=f"results are {a.dtype} or f32.")


def _on_the_host(library: Any, a: Any, b: Any, out: Any, c: Any, options: Options) -> Any:
    """Arrays in host memory: NumPy's go to a GPU and back, where there is one."""
    if not isinstance(library, HostArrays):
        raise ProblemError(
            f"The arrays of {library.name} lie in host memory, not on a GPU.", hint="move them to the GPU first."
        )
    problem = no_gpu()
    if problem is not None:
        say_once(f"tilewright.matmul computes with NumPy. {problem}")
        return _by_numpy(a, b, out, c, options)
    gpu = open_gpu()
    uploaded = [DeviceArray.of(gpu, _bits(np.ascontiguousarray(x))) for x in (a, b)]
    arrays = library_of(uploaded[0])
    assert isinstance(arrays, AnyArrays)
    dtype = library.view(a).dtype
    views = [View(u.pointer, x.shape, _c_strides(x.shape), dtype, gpu.index) for u, x in zip(uploaded, (a, b), strict=True)]
    product = product_of(*views)
    out_dtype = options.out_dtype or dtype
    start = np.zeros(product.shape, out_dtype.numpy)
    if c is not None and options.beta != 0:
        start[...] = out_dtype.encode(np.asarray(c, np.float32)) if out_dtype is BF16 else c
    result = DeviceArray.of(gpu, start)
    if start.size and (product.k or options.beta):
        told = View(result.pointer, product.shape, _c_strides(product.shape), out_dtype, gpu.index)
        call = planned(product, views[0], views[1], told, options, capturing=lambda: False)
        run(arrays, call, views[0].pointer, views[1].pointer, result.pointer, gpu.index, result)
        arrays.finished((), gpu.index)
    host = result.download()
    for array in (*uploaded, result):
        array.close()
    host = host.view(a.dtype) if out_dtype is BF16 else host
    if out is None:
        return host
    out[...] = host
    return out


def _by_numpy(a: Any, b: Any, out: Any, c: Any, options: Options) -> Any:
    """The same in NumPy, summed in float32."""
    wide = options.alpha * np.matmul(a.astype(np.float32), b.astype(np.float32))
    if c is not None and options.beta != 0:
        wide = wide + options.beta * np.asarray(c).astype(np.float32)
    kind = a.dtype if options.out_dtype in (None, HostArrays().view(a).dtype) else np.float32
    result = np.asarray(wide, np.float32).astype(kind)
    if out is None:
        return result
    if out.shape != result.shape:
        raise ShapeError(f"`out` has shape {out.shape}, and the result {result.shape}.")
    out[...] = result
    return out


def _bits(array: Any) -> Any:
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array


def _c_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.insert(0, step)
        step *= extent
    return tuple(strides)


def _power_of_two(value: int) -> int:
    """The largest power of two that divides an address, at most 16."""
    return min(value & -value, 16) if value else 16


def _turned(order: Order) -> Order:
    return Order.COL if order is Order.ROW else Order.ROW


def _device(view: View) -> str:
    return "the host" if view.device is None else f"GPU {view.device}"


_NAMES = {
    "f32": F32, "float32": F32, "f16": F16, "float16": F16, "half": F16, "bf16": BF16, "bfloat16": BF16,
}  # fmt: skip


def _asked(out_dtype: Any) -> DType | None:
    """A format by our name, or by another library's object for it."""
    if out_dtype is None or isinstance(out_dtype, DType):
        return out_dtype
    name = out_dtype if isinstance(out_dtype, str) else getattr(out_dtype, "__name__", "") or str(out_dtype)
    found = _NAMES.get(name.rpartition(".")[2])
    if found is None:
        raise DTypeError(f"Cannot multiply into {out_dtype}.", hint="results are f32, f16 or bf16.")
    return found
