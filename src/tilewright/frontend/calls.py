"""`matmul` and `linear`: arrays of any library in, an array of the same library out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from tilewright.dtypes import BF16, F16, F32, TF32, DType
from tilewright.errors import LaunchError, ProblemError, UnknownName
from tilewright.frontend.choices import Alignment, Precision
from tilewright.frontend.dispatch import Request, dispatcher
from tilewright.frontend.libraries import (
    DTypeError,
    HostArrays,
    TorchArrays,
    View,
    WorkspaceError,
    library_of,
    no_gpu,
    say_once,
)
from tilewright.frontend.plans import Plan
from tilewright.frontend.shapes import NeedsCopy, Product, ShapeError, product_of
from tilewright.problem.epilogue import Activation, Epilogue
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
    activation: Activation | None = None


PLAIN = Options()


def matmul(
    a: Any,
    b: Any,
    *,
    out: Any = None,
    c: Any = None,
    alpha: float = 1.0,
    beta: float | None = None,
    bias: Any = None,
    activation: str | None = None,
    out_dtype: Any = None,
    precision: Precision = "default",
    deterministic: bool | Literal["bitwise"] | None = None,
    batch_invariant: bool = False,
) -> Any:
    """`activation(alpha * a @ b + beta * c + bias)`, with the shapes of NumPy's matmul, in one kernel where it can be;
    arrays of PyTorch, CuPy, JAX or NumPy.

    out: where the result goes. c: added, of the result's shape (or one that broadcasts to it); beta is 1 where it is not
    given. bias: one number for each column, of shape (n,), or for each row, of shape (m, 1). activation: "relu",
    "gelu", "gelu_tanh" or "silu". out_dtype: "f32" or the
    operands' format. precision: "tf32" lets f32 operands be rounded to tf32, for tensor cores. deterministic: every
    kernel here gives the same bits in every run; "bitwise" also keeps to one order of summation whatever is tuned.
    batch_invariant: a row of the result has the same bits however many rows there are.

    Work runs on the current stream of the arrays' library. Raises what NumPy raises for shapes (ShapeError is a
    ValueError), DTypeError for number formats, ProblemError for arrays on different devices.
    """
    fast = _FAST.get(type(a))
    if fast is not None and out is None and c is None and bias is None and out_dtype is None and activation is None:
        if alpha == 1.0 and precision == "default" and not batch_invariant and deterministic is None:
            result = fast(a, b)
            if result is not None:
                return result
    keep_order = batch_invariant or deterministic == "bitwise"
    factor = 0.0 if c is None else 1.0 if beta is None else float(beta)
    options = Options(float(alpha), factor, _asked(out_dtype), precision, keep_order, _function(activation))
    return multiply(a, b, out, c if factor else None, bias, options)


def linear(x: Any, weight: Any, bias: Any = None, *, activation: str | None = None) -> Any:
    """`activation(x @ weight.T + bias)`; without the activation as torch.nn.functional.linear."""
    turned = weight.T if len(weight.shape) == 2 else weight
    return matmul(x, turned, bias=bias, activation=activation)


def multiply(a: Any, b: Any, out: Any, c: Any, bias: Any, options: Options) -> Any:
    """A call, whatever it asks."""
    library = library_of(a)
    if library_of(b) is not library:
        raise ProblemError(
            f"Cannot multiply an array of {library.name} by one of {library_of(b).name}.",
            hint="convert one to the other's library: both take DLPack.",
        )
    if isinstance(library, TorchArrays):
        from tilewright.frontend.torch_calls import handed_over

        handed = handed_over(library, a, b, out, c, bias, options)
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
        return _on_the_host(library, a, b, out, c, bias, options)
    return _on_a_gpu(library, a, b, first, second, out, c, bias, options)


def _on_a_gpu(
    library: Any, a: Any, b: Any, first: View, second: View, out: Any, c: Any, bias: Any, options: Options
) -> Any:
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
    device = first.device
    assert device is not None
    result = _result(library, a, product, out_dtype, out, device)
    told = library.view(result)
    if 0 in told.shape:
        return result
    added, kept = _added(library, product, told, result, c, bias)

    def start(without_workspace: bool) -> Call:
        call = planned(product, first, second, told, added, options, library.capturing, without_workspace)
        run(library, call, (first.pointer, second.pointer, told.pointer, added), device, result)
        return call

    try:
        call = start(False)
    except WorkspaceError as full:
        say_once(f"{full.headline} A slower kernel that needs none runs instead.")
        call = start(True)
    library.finished((a, b, result, kept), device)
    if isinstance(library, TorchArrays) and not copied and options == PLAIN and out is None and not added:
        from tilewright.frontend.torch_calls import remember

        remember(library, a, b, result, call)
    return result


@dataclass(frozen=True, slots=True)
class Added:
    """What an epilogue adds: addresses, 0 where there is none. bias_along: "n" or "m". residual: line to line."""

    bias: int = 0
    bias_along: Literal["m", "n"] | None = None
    residual: int = 0
    residual_leading: int = 0

    def __bool__(self) -> bool:
        return bool(self.bias or self.residual)


def _added(library: Any, product: Product, out: View, result: Any, c: Any, bias: Any) -> tuple[Added, Any]:
    """The arrays that are added, as the kernels take them, and what must be kept until they have started.

    A c that does not lie as the result does is written into the result first, and added from there.
    """
    keep: list[Any] = []
    at_bias, along = 0, None
    if bias is not None:
        bias = _matched(library, bias, out)
        view = library.view(bias)
        columns = product.shape[-1] if product.shape and product.n == product.shape[-1] else product.n
        if view.shape in ((columns,), (1, columns)):
            along = "n"
        elif len(view.shape) >= 2 and view.shape[-2:] == (product.m, 1) and not product.batch:
            along = "m"
        else:
            raise ShapeError(
                f"A bias of shape {view.shape} fits neither the columns nor the rows of a result of {product.shape}.",
                hint=f"give one of shape ({product.n},) or ({product.m}, 1).",
            )
        length = product.n if along == "n" else product.m
        step = next((s for extent, s in zip(view.shape, view.strides, strict=True) if extent != 1), 1)
        if length > 1 and step != 1:
            bias = library.tight(bias)
            view = library.view(bias)
        at_bias = view.pointer
        keep.append(bias)
    if c is None:
        return Added(at_bias, along), keep  # type: ignore[arg-type]
    c = _matched(library, c, out)
    view = library.view(c)
    keep.append(c)
    lies_alike = view.shape == out.shape and view.strides == out.strides
    if lies_alike and len(out.shape) >= 2:
        rows, columns = _result_strides(product, out)
        return Added(at_bias, along, view.pointer, max(rows, columns)), keep  # type: ignore[arg-type]
    library.assign(result, c)
    return Added(at_bias, along, out.pointer, max(_result_strides(product, out))), keep  # type: ignore[arg-type]


def _matched(library: Any, array: Any, out: View) -> Any:
    """An array that is added, in the result's format and on its device."""
    if library_of(array) is not library:
        raise ProblemError(f"What is added is an array of {library_of(array).name}, and the product of {library.name}.")
    view = library.view(array)
    if view.device != out.device:
        raise ProblemError(
            f"Cannot add arrays on different devices: {_device(view)} and {_device(out)}.", hint="move one of them."
        )
    return array if view.dtype is out.dtype else library.convert(array, out.dtype)


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
    added: Added,
    options: Options,
    capturing: Any,
    without_workspace: bool = False,
) -> Call:
    """The launches of a product."""
    rows, columns = out.strides[-2:] if len(product.shape) >= 2 and product.batch else _result_strides(product, out)
    swapped = rows == 1 and columns != 1 and product.n > 1
    leading = columns if swapped else rows
    product_tf32 = TF32 if options.precision == "tf32" and a.dtype is F32 else None
    sides = (product.b, product.a) if swapped else (product.a, product.b)
    along = added.bias_along
    if along is not None and swapped:
        along = "m" if along == "n" else "n"
    epilogue = Epilogue(along, bool(added.residual), options.activation)
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
        epilogue=epilogue,
        ld_residual=max(added.residual_leading, product.m if swapped else product.n, 1) if added.residual else 0,
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
    whole = out.pointer | gemm.ldc * out_step | added.residual | gemm.ld_residual * out_step
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


def run(library: Any, call: Call, addresses: tuple[int, int, int, Added], device: int, like: Any) -> None:
    """Start the launches of a call. addresses: of A, B, the result and what is added."""
    plan = call.plan
    a, b, out, added = addresses
    scratch, keep = library.scratch(plan.scratch_bytes, like) if plan.scratch_bytes else (0, None)
    stream = library.stream(device)
    for x, y, z in call.offsets:
        first, second = (b + y, a + x) if call.swapped else (a + x, b + y)
        residual = added.residual + z if added.residual else 0
        plan.run(stream, (first, second, out + z, added.bias, residual, scratch))
    del keep


NOTHING = Added()


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


def _on_the_host(library: Any, a: Any, b: Any, out: Any, c: Any, bias: Any, options: Options) -> Any:
    """Arrays in host memory: NumPy's go to a GPU and back, where there is one."""
    if not isinstance(library, HostArrays):
        raise ProblemError(
            f"The arrays of {library.name} lie in host memory, not on a GPU.", hint="move them to the GPU first."
        )
    problem = no_gpu()
    if problem is not None:
        say_once(f"tilewright.matmul computes with NumPy. {problem}")
        return _by_numpy(a, b, out, c, bias, options)
    gpu = open_gpu()
    dtype = library.view(a).dtype
    kept: list[DeviceArray] = []

    def uploaded(host: Any, kind: Any) -> View:
        array = DeviceArray.of(gpu, _bits(np.ascontiguousarray(host)))
        kept.append(array)
        return View(array.pointer, host.shape, _c_strides(host.shape), kind, gpu.index)

    first, second = uploaded(a, dtype), uploaded(b, dtype)
    arrays = library_of(kept[0])
    product = product_of(first, second)
    out_dtype = options.out_dtype or dtype
    told = uploaded(np.zeros(product.shape, out_dtype.numpy), out_dtype)
    result = kept[-1]
    added = NOTHING
    if bias is not None:
        along: Literal["m", "n"] = "m" if np.ndim(bias) >= 2 and np.shape(bias)[-1] == 1 != product.n else "n"
        shape = (product.m, 1) if along == "m" else (product.n,)
        added = Added(uploaded(_encoded(np.broadcast_to(bias, shape), out_dtype), out_dtype).pointer, along)
    if c is not None:
        given = uploaded(_encoded(np.broadcast_to(c, product.shape), out_dtype), out_dtype)
        added = replace(added, residual=given.pointer, residual_leading=product.n)
    try:
        if result.nbytes:
            call = planned(product, first, second, told, added, options, lambda: False)
            run(arrays, call, (first.pointer, second.pointer, told.pointer, added), gpu.index, result)
            arrays.finished((), gpu.index)
        host = result.download()
    finally:
        for array in kept:
            array.close()
    host = host.view(a.dtype) if out_dtype is BF16 else host
    if out is None:
        return host
    if out.shape != host.shape:
        raise ShapeError(f"`out` has shape {out.shape}, and the result {host.shape}.")
    out[...] = host
    return out


def _encoded(host: Any, dtype: DType) -> Any:
    """An array that is added, in the storage of a format."""
    return dtype.encode(np.asarray(host).astype(np.float32))


def _by_numpy(a: Any, b: Any, out: Any, c: Any, bias: Any, options: Options) -> Any:
    """The same in NumPy, summed in float32."""
    wide = options.alpha * np.matmul(a.astype(np.float32), b.astype(np.float32))
    if c is not None and options.beta != 0:
        wide = wide + options.beta * np.asarray(c).astype(np.float32)
    if bias is not None:
        wide = wide + np.asarray(bias).astype(np.float32)
    if options.activation is not None:
        wide = options.activation.of(wide)
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


def _function(name: str | None) -> Activation | None:
    if name is None or isinstance(name, Activation):
        return name
    known = {one.value: one for one in Activation}
    if name not in known:
        raise UnknownName("activation", name, known)
    return known[name]


def _asked(out_dtype: Any) -> DType | None:
    """A format by our name, or by another library's object for it."""
    if out_dtype is None or isinstance(out_dtype, DType):
        return out_dtype
    name = out_dtype if isinstance(out_dtype, str) else getattr(out_dtype, "__name__", "") or str(out_dtype)
    found = _NAMES.get(name.rpartition(".")[2])
    if found is None:
        raise DTypeError(f"Cannot multiply into {out_dtype}.", hint="results are f32, f16 or bf16.")
    return found
