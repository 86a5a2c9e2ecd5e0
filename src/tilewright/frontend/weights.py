"""`quantize_weight`: a constant operand in codes of 4 or 8 bits, which `matmul` and `linear` multiply as it lies."""

from __future__ import annotations

import math
from typing import Any

from tilewright.dtypes import BF16, F16, F32, DType
from tilewright.errors import ProblemError
from tilewright.frontend.compute import device_of, refuse_other_library, writable_view
from tilewright.frontend.known_calls import KnownCall
from tilewright.frontend.libraries import DTypeError, TorchArrays, View, library_of
from tilewright.frontend.options import Options, result_format
from tilewright.frontend.remembered import Remembered, key_of
from tilewright.frontend.shapes import ShapeError
from tilewright.planning.dispatch import dispatcher
from tilewright.planning.plan import Place
from tilewright.problem.coded_product import CodedProduct, CodedWeight
from tilewright.problem.epilogue import Epilogue
from tilewright.problem.gemm import LARGEST_SIZE
from tilewright.problem.weight_codes import E4M3_CODES, INT4, Codes
from tilewright.problem.weight_coding import WeightCoding
from tilewright.runtime.memory import c_strides
from tilewright.units import format_bytes

_CODES: dict[int, Codes] = {4: INT4, 8: E4M3_CODES}

_ALIGNED = 16
"""Bytes of which addresses, and rows of activations, are multiples where kernels read and write them."""


def quantize_weight(weight: Any, *, bits: Any = 4, group: Any = 128) -> QuantizedWeight:
    """A constant operand b of `matmul(a, b)` in few bits, for a skinny a: codes and scales, which stay on the GPU.

    weight: (k, n), f32, f16 or bf16, on a GPU, in any order; `layer.weight.T` of a linear layer. bits: 4, signed
    integers from -7 to 7, or 8, e4m3. group: 32, 64 or 128 neighbours of k, a divisor of k, that share a scale in bf16;
    or "column", all of k, whose scale is f32 (k a multiple of 32). A scale is the largest magnitude of its group over 7
    or 448; codes are rounded to nearest, ties to even. A group with NaN or infinity makes its column of results NaN.

    A product takes a of bf16 or f16 and any number of rows, sums in f32, and rounds nothing but codes and result: its
    error is that of `a @ (codes * scales)` in f32. It reads 4.125 bits of a weight for groups of 128. There are no
    gradients. Raises ShapeError, DTypeError and ProblemError for what cannot be quantised so.
    """
    library = library_of(weight)
    codes = _CODES.get(bits) if isinstance(bits, int) else None
    if codes is None:
        raise ProblemError(f"bits={bits!r} is not known.", hint="weights have 4 bits (int4) or 8 (e4m3).")
    if not isinstance(group, (str, int)) or group not in (32, 64, 128, "column"):
        raise ProblemError(f"group={group!r} is not known.", hint="groups are 32, 64, 128 or 'column'.")
    view: View = library.view(weight)
    if view.dtype not in (F32, F16, BF16):
        raise DTypeError(f"quantize_weight: the weight holds {view.dtype}.", hint="give one of f32, f16 or bf16.")
    if len(view.shape) != 2:
        raise ShapeError(
            f"quantize_weight: a weight of shape {view.shape} is not a matrix.", hint="give one of (k, n)."
        )
    k, n = view.shape
    kind = CodedWeight(n, k, codes, 0 if isinstance(group, str) else group)
    device_of(library, view)
    return QuantizedWeight(library, weight, view, kind)


_NOT_READ = (0,) * (Place.SCALE_B - Place.RESIDUAL)
"""In the places between the bias and the scales."""


class QuantizedWeight:
    """What `quantize_weight` returns: `b` of `matmul(a, b)`; its `.T` is the weight of `linear`. shape: of the operand.
    nbytes: of codes and scales."""

    def __init__(self, library: Any, weight: Any, view: View, kind: CodedWeight) -> None:
        self._library, self._kind, self._is_transposed = library, kind, False
        assert view.device is not None
        self._device = view.device
        self._scales_at = kind.words * F32.bytes
        make = library.maker((-(-kind.bytes // F32.bytes),), F32, weight)
        self._memory = make()
        self._calls: Remembered[KnownCall] = Remembered()
        steps = view.strides
        if any(step < 0 for step in steps):
            weight = library.tight(weight)
            steps = c_strides(view.shape)
        problem = WeightCoding(kind, view.dtype, *steps)
        plan = dispatcher(self._device).coding(problem, capturing=library.capturing)
        KnownCall(self._device, make, plan).run(library, weight, self._behind(None), out=self._memory)

    @property
    def shape(self) -> tuple[int, int]:
        k, n = self._kind.k, self._kind.n
        return (n, k) if self._is_transposed else (k, n)

    @property
    def nbytes(self) -> int:
        return self._kind.bytes

    @property
    def T(self) -> QuantizedWeight:
        """The same memory as the other operand: (out_features, in_features), as `linear` takes a weight."""
        other = object.__new__(QuantizedWeight)
        other.__dict__.update(self.__dict__)
        other._is_transposed = not self._is_transposed
        return other

    def __repr__(self) -> str:
        kind = self._kind
        group = f"groups of {kind.group}" if kind.group else "a scale for each column"
        return f"QuantizedWeight({self.shape}, {kind.codes}, {group}, {format_bytes(self.nbytes)})"

    def _behind(self, bias: Any) -> tuple[int, ...]:
        """The addresses behind `Place.OUT`."""
        address = self._library.address
        return 0 if bias is None else address(bias), *_NOT_READ, address(self._memory) + self._scales_at

    def multiply_by(
        self, a: Any, b: Any, out: Any, c: Any, bias: Any, options: Options, operands: tuple[Any, ...] = ()
    ) -> Any:
        """`a` times the weight, as a way of a call whose b is this one."""
        library = self._library
        refuse_other_library(library, "a", a)
        if c is not None or operands or options.traced is not None or options.precision != "default":
            raise ProblemError(
                "A product with a quantised weight takes alpha, a bias, an activation and out_dtype.",
                hint="compute c, a function of the epilogue or another precision apart.",
            )
        if self._is_transposed:
            raise ShapeError(
                "matmul: the quantised weight is transposed.", hint="pass its .T; linear takes it as it is."
            )
        if isinstance(library, TorchArrays) and not _is_plain(a, *(x for x in (out, bias) if x is not None)):
            raise ProblemError(
                "A product with a quantised weight is seen by no autograd, torch.compile or torch.func.",
                hint="call it under torch.no_grad(), with tensors that want no gradients.",
            )
        return self._multiplied(a, out, bias, options)

    def _multiplied(self, a: Any, out: Any, bias: Any, options: Options) -> Any:
        library = self._library
        key = key_of(library, (a, bias), options)
        known = self._calls.get(key)
        if known is None:
            view = library.view(a)
            if not _is_read_as_it_lies(view):
                return self._multiplied(library.spread(a, view.shape), out, bias, options)
            if bias is not None:
                dtype = result_format(options, view.dtype)
                held = self._checked_bias(bias, dtype)
                if held.dtype is not dtype:
                    return self._multiplied(a, out, library.convert(bias, dtype), options)
                if (held.shape[0] > 1 and held.strides[0] != 1) or held.pointer % _ALIGNED:
                    return self._multiplied(a, out, library.spread(bias, held.shape), options)
            known = self._settled(view, bias is not None, options, a)
            self._calls.keep(key, known)
        if out is not None:
            return self._into(out, a, bias, options, known)
        return known.run(library, a, self._behind(bias), self._memory)

    def _into(self, out: Any, a: Any, bias: Any, options: Options, known: KnownCall) -> Any:
        """The result in `out`, through an array of its own unless it lies in C order, at a multiple of 16 bytes, and
        apart from what is read."""
        library, view = self._library, self._library.view(a)
        refuse_other_library(library, "out", out)
        target, dtype = writable_view(library, out), result_format(options, view.dtype)
        shape = (*view.shape[:-1], self._kind.n)
        if target.shape != shape or target.dtype is not dtype:
            raise ShapeError(f"`out` is {target.dtype} of shape {target.shape}, and the result {dtype} of {shape}.")
        read = [view] if bias is None else [view, library.view(bias)]
        lies = target.strides == c_strides(shape) and target.pointer % _ALIGNED == 0
        in_place = lies and not any(target.overlaps(one) for one in read)
        result = known.run(library, a, self._behind(bias), self._memory, out if in_place else None)
        if not in_place:
            library.assign(out, result)
        return out

    def _checked_bias(self, bias: Any, dtype: DType) -> View:
        refuse_other_library(self._library, "bias", bias)
        view: View = self._library.view(bias)
        if view.shape != (self._kind.n,):
            raise ShapeError(f"A bias of shape {view.shape} is not one of ({self._kind.n},).")
        if view.dtype.bits > dtype.bits:
            raise DTypeError(f"A bias of {view.dtype} is wider than the result, {dtype}.", hint="convert it.")
        if view.device != self._device:
            raise ProblemError(f"bias lies on {view.place}, and the weight on GPU {self._device}.", hint="move one.")
        return view

    def _settled(self, a: View, has_bias: bool, options: Options, like: Any) -> KnownCall:
        """The plan of a call. Raises what the call may raise."""
        kind = self._kind
        if a.dtype not in (BF16, F16):
            raise DTypeError(
                f"A quantised weight is multiplied by bf16 or f16, and a holds {a.dtype}.", hint="convert a."
            )
        if not a.shape or a.shape[-1] != kind.k:
            raise ShapeError(f"matmul: a of shape {a.shape} does not go with a quantised weight of shape {self.shape}.")
        if a.device != self._device:
            raise ProblemError(f"a lies on {a.place}, and the weight on GPU {self._device}.", hint="move one.")
        out = result_format(options, a.dtype)
        m = math.prod(a.shape[:-1])
        make = self._library.maker((*a.shape[:-1], kind.n), out, like)
        if not m:
            return KnownCall(self._device, make, None)
        if m > LARGEST_SIZE:
            raise ProblemError(f"{m} rows are more than kernels take.")
        lda = a.strides[0] if len(a.shape) == 2 and m > 1 else kind.k
        epilogue = Epilogue(
            bias="n" if has_bias else None, activation=options.activation, scale=() if kind.group else ("n",)
        )
        problem = CodedProduct(m, kind, a.dtype, out, lda, kind.n, options.alpha, epilogue=epilogue)
        plan = dispatcher(self._device).coded(problem, capturing=self._library.capturing)
        return KnownCall(self._device, make, plan)

    def words_of(self, a: Any, options: Options) -> str:
        """What runs for a call that was made before, for people; empty where it is not known."""
        known = self._calls.get(key_of(self._library, (a, None), options))
        return "" if known is None else known.words


def _is_read_as_it_lies(a: View) -> bool:
    """Whether rows are contiguous, apart, and begin at multiples of 16 bytes; also of what is refused later."""
    if not a.shape or 0 in a.shape or a.dtype.bytes != 2:
        return True
    if len(a.shape) != 2:
        rows = a.strides == c_strides(a.shape)
        return rows and a.pointer % _ALIGNED == 0
    (m, k), (down, right) = a.shape, a.strides
    apart = m == 1 or (down >= k and down * a.dtype.bytes % _ALIGNED == 0)
    return (right == 1 or k == 1) and apart and a.pointer % _ALIGNED == 0


def _is_plain(*arrays: Any) -> bool:
    from tilewright.frontend.pytorch.plain import is_plain

    return is_plain(*arrays)
