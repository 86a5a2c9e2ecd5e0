"""What numbers are: the arithmetic of the simulated machine, which can be exchanged.

`FloatArithmetic` is bit for bit what the GPU computes (NaN payloads aside) outside tensor cores: every operation is
rounded once, to nearest with ties to even, and subnormal numbers are kept. Tensor cores sum by the rule that is
published for those of compute capability 9.0 (`isa.summation`). `ModularArithmetic` replaces floats by the integers
modulo a prime: addition is then exact, so that two orders of summation give equal results, and a wrong one does not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from tilewright.dtypes import F32, F64, Array, DType
from tilewright.errors import SimulationError
from tilewright.ir.expr import Op
from tilewright.isa.instruction import MatrixInstruction
from tilewright.problem.functions import Function

Value = Any
"""Values of lanes (an array whose last axis is lanes), or one number that all lanes share."""


class Arithmetic(Protocol):
    """Numbers of float dtypes in registers and memory. Integers are the same in every arithmetic."""

    @property
    def multiplies(self) -> bool:
        """Whether multiply-adds are carried out; where not, they count, and their sums stay as they are."""

    def register_type(self, dtype: DType) -> np.dtype[Any]:
        """The NumPy type of a register of `dtype`."""

    def memory_type(self, dtype: DType) -> np.dtype[Any]:
        """The NumPy type of an element of `dtype` in shared or global memory."""

    def import_storage(self, stored: Array, dtype: DType) -> Array:
        """An operand's flat storage as global memory holds it; a copy."""

    def decode(self, stored: Array, dtype: DType) -> Array:
        """Elements of memory as register values."""

    def encode(self, values: Array, dtype: DType) -> Array:
        """Register values as elements of memory."""

    def mapped(self, values: Array, dtype: DType) -> Array:
        """Elements as TMA writes them under a tensor map of `dtype`."""

    def constant(self, value: float, dtype: DType) -> Value:
        """A literal or a scalar argument of the kernel."""

    def poison(self, dtype: DType) -> Value:
        """What a register or a word of memory holds before it is written."""

    def binary(self, op: Op, a: Value, b: Value, dtype: DType) -> Value:
        """`a op b`, rounded once to `dtype`."""

    def fma(self, a: Value, b: Value, c: Value, dtype: DType, out: Array) -> None:
        """`a * b + c`, rounded once to `dtype`, written to `out` (which may be `c`)."""

    def cast(self, value: Value, dtype: DType) -> Value:
        """`value` converted to `dtype`."""

    def apply(self, function: Function, value: Value) -> Value:
        """A function of f32; hardware is a few units in the last place from it."""

    def multiply_tiles(self, instruction: MatrixInstruction, a: Array, b: Array, c: Array) -> Array:
        """What an instruction makes of register values: matrices (..., m, k), (..., k, n) and (..., m, n)."""


_CHUNK_ELEMENTS = 16384  # scratch of 128 KiB stays in L2; measured: 1.0 ns an FMA, 1.6 ns at 65536
UNWRITTEN_INTEGER = -(2**30)
"""What an integer register holds before it is written."""

_LOW_28 = np.int64((1 << 28) - 1)
_LOW_29 = np.int64((1 << 29) - 1)
_HALF_F32_ULP = np.int64(1 << 28)
_F32_SMALLEST_NORMAL = 2.0**-126

_FLOAT_UFUNC: dict[Op, Any] = {
    Op.ADD: np.add,
    Op.SUB: np.subtract,
    Op.MUL: np.multiply,
    Op.DIV: np.divide,
    Op.MIN: np.fmin,
    Op.MAX: np.fmax,
}


@dataclass(slots=True)
class FloatArithmetic:
    """IEEE arithmetic as an NVIDIA GPU does it without fast-math options.

    Registers of f16 and bf16 are held as float32 numbers that the narrow format represents. exact_sums: tensor cores
    cut sums by that rule; False: sums are rounded to f32, which takes less time.
    """

    exact_sums: bool = True
    multiplies: bool = True

    _sum: Array = field(default_factory=lambda: np.empty(_CHUNK_ELEMENTS, np.float64), repr=False)
    _low: Array = field(default_factory=lambda: np.empty(_CHUNK_ELEMENTS, np.int64), repr=False)

    def register_type(self, dtype: DType) -> np.dtype[Any]:
        return dtype.register

    def memory_type(self, dtype: DType) -> np.dtype[Any]:
        return dtype.numpy

    def import_storage(self, stored: Array, dtype: DType) -> Array:
        return np.array(stored, dtype=dtype.numpy)

    def decode(self, stored: Array, dtype: DType) -> Array:
        return dtype.decode(stored)

    def encode(self, values: Array, dtype: DType) -> Array:
        return values if dtype is F32 else dtype.encode(values)

    def mapped(self, values: Array, dtype: DType) -> Array:
        return dtype.as_mapped(values)

    def constant(self, value: float, dtype: DType) -> Value:
        return self.cast(self.register_type(dtype).type(value), dtype)

    def poison(self, dtype: DType) -> Value:
        return np.nan if dtype.is_float else UNWRITTEN_INTEGER

    def binary(self, op: Op, a: Value, b: Value, dtype: DType) -> Value:
        # float32 then f16 or bf16 rounds right: 24 bits are more than twice 11 plus 2 (Figueroa 1995).
        return self.cast(_FLOAT_UFUNC[op](a, b, dtype=self.register_type(dtype)), dtype)

    def fma(self, a: Value, b: Value, c: Value, dtype: DType, out: Array) -> None:
        if dtype is F64:
            raise SimulationError("The simulator has no f64 multiply-add.", hint="accumulate in f32.")
        # The product of two numbers of 24 bits is exact in float64; only the sum is rounded twice.
        a64, b64 = np.asarray(a, np.float64), np.asarray(b, np.float64)
        if out.size <= _CHUNK_ELEMENTS:
            self._fma_chunk(a64, b64, c, dtype, out)
            return
        # Whole leading rows at a time; one row of lanes that is too long is cut along the lanes.
        a64, b64, c = (np.broadcast_to(x, out.shape) for x in (a64, b64, c))
        if out.ndim > 1 and out.size // len(out) > _CHUNK_ELEMENTS:
            for row in range(len(out)):
                self.fma(a64[row], b64[row], c[row], dtype, out[row])
            return
        step = max(1, _CHUNK_ELEMENTS // (out.size // len(out)))
        for start in range(0, len(out), step):
            rows = slice(start, start + step)
            self._fma_chunk(a64[rows], b64[rows], c[rows], dtype, out[rows])

    def _fma_chunk(self, a64: Array, b64: Array, c: Value, dtype: DType, out: Array) -> None:
        total = self._sum[: out.size].reshape(out.shape)
        np.multiply(a64, b64, out=total)
        if dtype is not F32:
            exact = round_to_odd(total, np.asarray(c, np.float64))
            out[...] = self.cast(exact, dtype)
            return
        np.add(total, c, out=total)
        low = self._low[: out.size].reshape(out.shape)
        np.bitwise_and(total.view(np.int64), _LOW_28, out=low)
        if low.min() == 0:  # perhaps half-way between two float32: then the first rounding may have decided
            self._repair(a64, b64, c, total, low)
        np.copyto(out, total, casting="same_kind")

    @staticmethod
    def _repair(a64: Array, b64: Array, c: Value, total: Array, low: Array) -> None:
        """Redo the sums that seem to lie exactly half-way between two float32 numbers. low: their last 28 bits."""
        halfway = (total.view(np.int64) & _LOW_29) == _HALF_F32_ULP
        small = np.abs(total) < _F32_SMALLEST_NORMAL
        if small.any():  # a subnormal float32 has its half-way bit higher up; a sum of zero is exact
            halfway |= small & (low == 0) & (total != 0)
        if halfway.any():
            a, b, addend = (np.broadcast_to(x, total.shape)[halfway] for x in (a64, b64, c))
            total[halfway] = round_to_odd(a * b, addend.astype(np.float64))

    def cast(self, value: Value, dtype: DType) -> Value:
        register = self.register_type(dtype)
        if dtype.is_numpy and dtype.numpy == register:
            return np.asarray(value).astype(register)[()]
        # What NumPy does not round itself is rounded from float32; round-to-odd sums survive that.
        exact = value if dtype.is_numpy else _odd_float32(value)
        return np.asarray(dtype.decode(dtype.encode(exact))).astype(register, copy=False)[()]

    def apply(self, function: Function, value: Value) -> Value:
        return np.asarray(function.of(value)).astype(np.float32)[()]

    def multiply_tiles(self, instruction: MatrixInstruction, a: Array, b: Array, c: Array) -> Array:
        if not self.multiplies:
            return c
        first, second = instruction.formats
        multiply = instruction.meaning if self.exact_sums else instruction.rounded
        return multiply(first.as_multiplied(a), second.as_multiplied(b), c)


def counting() -> FloatArithmetic:
    """For runs whose counts are wanted, not their results; with detectors, races would seem to be of equal values."""
    return FloatArithmetic(multiplies=False)


def round_to_odd(a: Array, b: Array) -> Array:
    """`a + b` in float64, where an inexact sum gets an odd last bit: rounding it again to any shorter format is right.

    Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd" (2008).
    """
    total = a + b
    part = total - a
    error = (a - (total - part)) + (b - part)  # exact (Knuth's TwoSum)
    bits = total.view(np.int64)
    even_inexact = ((bits & 1) == 0) & (error != 0) & np.isfinite(error)
    outward = np.signbit(error) == np.signbit(total)
    return np.where(even_inexact, bits + np.where(outward, 1, -1), bits).view(np.float64)


def _odd_float32(value: Value) -> Value:
    """float64 to float32 by rounding to odd, so that a further rounding to bf16 is right; float32 is left alone."""
    array = np.asarray(value)
    if array.dtype != np.float64:
        return value
    nearest = array.astype(np.float32)
    back = nearest.astype(np.float64)
    bits = nearest.view(np.int32)
    even_inexact = ((bits & 1) == 0) & (back != array) & np.isfinite(back)
    outward = np.abs(array) > np.abs(back)
    return np.where(even_inexact, bits + np.where(outward, 1, -1).astype(np.int32), bits).view(np.float32)


@dataclass(frozen=True, slots=True)
class ModularArithmetic:
    """The integers modulo a prime below 2^31, in place of every float. Operands must hold whole numbers.

    NaN, the filling of gaps, becomes a residue of its own, so that reading it shows in the result.
    """

    prime: int = 2_147_483_647
    multiplies: bool = True

    def register_type(self, dtype: DType) -> np.dtype[Any]:
        return np.dtype(np.int64) if dtype.is_float else dtype.numpy

    def memory_type(self, dtype: DType) -> np.dtype[Any]:
        return self.register_type(dtype)

    def import_storage(self, stored: Array, dtype: DType) -> Array:
        if stored.dtype.kind in "iu" and stored.dtype != dtype.numpy:
            return np.asarray(stored, np.int64) % self.prime
        numbers = np.asarray(dtype.decode(stored), np.float64)
        whole = np.where(np.isnan(numbers), self.poison(dtype), np.rint(numbers))
        return whole.astype(np.int64) % self.prime

    def decode(self, stored: Array, dtype: DType) -> Array:
        return stored

    def encode(self, values: Array, dtype: DType) -> Array:
        return values

    def mapped(self, values: Array, dtype: DType) -> Array:
        return values

    def constant(self, value: float, dtype: DType) -> Value:
        if not dtype.is_float:
            return dtype.numpy.type(value)
        if value != int(value):
            raise SimulationError(
                f"{value} is not an integer.", hint="give alpha and beta whole numbers for exact integer arithmetic."
            )
        return np.int64(int(value) % self.prime)

    def poison(self, dtype: DType) -> Value:
        return self.prime // 3 if dtype.is_float else UNWRITTEN_INTEGER

    def binary(self, op: Op, a: Value, b: Value, dtype: DType) -> Value:
        if op not in (Op.ADD, Op.SUB, Op.MUL):
            raise SimulationError(f"Integers modulo {self.prime} have no operator {op.text!r}.")
        return _FLOAT_UFUNC[op](a, b, dtype=np.int64) % self.prime

    def fma(self, a: Value, b: Value, c: Value, dtype: DType, out: Array) -> None:
        np.remainder(np.multiply(a, b, dtype=np.int64) + c, self.prime, out=out)

    def cast(self, value: Value, dtype: DType) -> Value:
        return np.asarray(value).astype(self.register_type(dtype))[()]

    def apply(self, function: Function, value: Value) -> Value:
        raise SimulationError(f"Integers modulo {self.prime} have no function {function.value!r}.")

    def multiply_tiles(self, instruction: MatrixInstruction, a: Array, b: Array, c: Array) -> Array:
        # In float64, where BLAS is at hand: 16 of 31 bits at a time, so that a sum of 64 products stays below 2^53.
        assert instruction.k <= 64
        right, low = b.astype(np.float64), (a & 0xFFFF).astype(np.float64)
        high = np.matmul((a >> 16).astype(np.float64), right).astype(np.int64) % self.prime
        total: Array = (high * 0x10000 + np.matmul(low, right).astype(np.int64) + c) % self.prime
        return total
