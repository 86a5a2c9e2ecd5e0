"""Ground truth: operands that show mistakes, and the product in float64."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from tilewright.dtypes import Array
from tilewright.errors import ProblemError
from tilewright.problem.block_scales import NAMES as BLOCK_SCALES
from tilewright.problem.block_scales import BlockScaleName
from tilewright.problem.gemm import Gemm, OperandName, Order
from tilewright.problem.quantization import scales_of_blocks, spread_over_blocks
from tilewright.problem.values import AddedName, Exact, evaluate
from tilewright.units import format_bytes, integer_of

PADDING = np.nan
"""What the gap between the rows of a padded operand holds: an access into it must show in the result."""

LARGEST_STORAGE = sys.maxsize // 8
"""Elements of up to 8 bytes that NumPy can count the bytes of."""


@dataclass(frozen=True, slots=True)
class Operands:
    """The matrices of a problem as flat storage (1-D, storage dtype), gaps included.

    added: what a problem reads beside them, by its names: later pieces, operands of the epilogue.
    """

    gemm: Gemm
    a: Array
    b: Array
    c: Array
    added: Mapping[str, Array] = field(default_factory=dict)

    @property
    def problem(self) -> Gemm:
        """What every reader of a kernel asks of its operands."""
        return self.gemm

    def storage(self, name: str) -> Array:
        own = {"A": self.a, "B": self.b, "C": self.c}
        return own[name] if name in own else self.added[name]

    def matrix(self, name: OperandName | AddedName) -> Array:
        """The logical 2-D matrix as a view of the storage, decoded to a float type."""
        return self.gemm.operand(name).dtype.decode(view(self.gemm, name, self.storage(name)))


def view(gemm: Gemm, name: OperandName | AddedName, storage: Array) -> Array:
    """Flat storage of `name` seen as its logical (rows, columns) matrix; no copy."""
    operand = gemm.operand(name)
    rows, cols = (gemm.size(dim) for dim in operand.dims)
    step = storage.itemsize
    along, across = step, gemm.leading(name) * step
    strides = (0, 0) if operand.is_single else (across, along) if operand.order is Order.ROW else (along, across)
    if rows == 0 or cols == 0:
        return np.zeros((rows, cols), storage.dtype)
    return np.lib.stride_tricks.as_strided(storage, (rows, cols), strides)


def make_operands(gemm: Gemm, *, seed: int = 0) -> Operands:
    """Random normal operands; gaps hold NaN; C is normal when beta reads it and NaN when beta is 0.

    Raises ProblemError for what is no Gemm, a seed below 0, and matrices that no memory can hold.
    """
    if not isinstance(gemm, Gemm):
        raise ProblemError(f"Operands are made of a Gemm, not of {gemm!r}.", hint="make_operands(Gemm(m, n, k)).")
    check_integer("seed", seed, "seed")
    _check_addressable(gemm)
    _check_memory(gemm)
    rng = np.random.default_rng(seed)

    def fill(name: OperandName | AddedName | BlockScaleName, poison: bool = False) -> Array:
        operand, dtype = gemm.operand(name), gemm.operand(name).dtype
        if name == "block_scale_a" or name == "block_scale_b":
            return dtype.encode(rng.standard_normal(gemm.storage_elements(name), dtype=np.float32))
        if operand.is_vector and operand.fold is None:
            count = 1 if operand.is_single else gemm.size(operand.contiguous)
            return dtype.encode(rng.standard_normal(count, dtype=np.float32))
        storage = dtype.encode(np.full(gemm.storage_elements(name), PADDING, np.float32))
        if not poison:
            target = view(gemm, name, storage)
            target[...] = dtype.encode(rng.standard_normal(target.shape, dtype=np.float32))
        return storage

    unread = {"C", "residual"} - ({gemm.epilogue.addend} if gemm.beta != 0 else set())
    unread |= {one.name for one in gemm.epilogue.written}
    a, b, c, *others = (fill(one.name, one.name in unread) for one in gemm.matrices)
    return Operands(gemm, a, b, c, dict(zip((one.name for one in gemm.matrices[3:]), others, strict=True)))


def blank_operands(gemm: Gemm) -> Operands:
    """Zeros in all storages, for runs whose counts are wanted: they take no time, and memory only where it is written.

    Raises ProblemError for matrices that no memory can hold.
    """
    _check_addressable(gemm)
    _check_memory(gemm)
    a, b, c, *others = (np.zeros(gemm.storage_elements(one.name), one.dtype.numpy) for one in gemm.matrices)
    return Operands(gemm, a, b, c, dict(zip((one.name for one in gemm.matrices[3:]), others, strict=True)))


def check_integer(name: str, value: object, what: str, least: int = 0) -> None:
    """Raises ProblemError for anything but an integer of at least `least`."""
    whole = integer_of(value)
    if whole is None or whole < least:
        raise ProblemError(f"{name} = {value!r} is not a {what}.", hint=f"give an integer of at least {least}.")


def _check_addressable(gemm: Gemm) -> None:
    for operand in gemm.operands:
        elements = gemm.storage_elements(operand.name)
        if elements > LARGEST_STORAGE:
            raise ProblemError(
                f"{operand.name} takes {elements} elements, more than an address space holds.",
                hint="use smaller sizes and leading dimensions.",
            )


def _check_memory(gemm: Gemm) -> None:
    """Linux promises more memory than there is, and kills the process that uses it."""
    there, each = memory_bytes(), [gemm.storage_elements(one.name) * one.dtype.bytes for one in gemm.matrices]
    needed = sum(each) + 2 * max(each)  # two more of the largest, while it is drawn and rounded
    if there is not None and needed > there:
        raise ProblemError(
            f"Operands of {format_bytes(sum(each))} take {format_bytes(needed)} while they are made, and this machine "
            f"has {format_bytes(there)} of memory.",
            hint="use smaller sizes and leading dimensions.",
        )


def memory_bytes() -> int | None:
    """Of the machine, as far as it tells."""
    with contextlib.suppress(AttributeError, ValueError, OSError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def as_multiplied(operands: Operands, name: OperandName) -> Array:
    """The logical matrix of A or B rounded as the problem asks before it is multiplied, float64."""
    multiplied, values = operands.gemm.factor_format(name), operands.matrix(name)
    if multiplied is not operands.gemm.operand(name).dtype:
        values = multiplied.decode(multiplied.encode(values))
    rounded: Array = values.astype(np.float64)
    return rounded


def unsure(operands: Operands, name: OperandName) -> Array | float:
    """How far from `as_multiplied` an element of A or B may be rounded: ties go to one neighbour in registers and to
    another by TMA, and which of them a kernel takes is not the problem's to say. float64; 0 where there are none."""
    asked, multiplied = operands.gemm.operand(name).dtype, operands.gemm.factor_format(name)
    if multiplied is asked:
        return 0.0
    mapped = multiplied.decode(multiplied.as_mapped(operands.matrix(name))).astype(np.float64)
    apart = np.abs(np.nan_to_num(mapped - as_multiplied(operands, name), nan=0.0))
    return apart if apart.any() else 0.0


def reference(operands: Operands, result: str = "C") -> Array:
    """`alpha * A @ B + beta * C` and the epilogue in float64, shape (m, n), of the rounded operands; C is not read when
    beta is 0. result: C, or what is written beside it; a fold has shape (m, 1), (1, n), or (1, 1),
    scales of blocks (m, n / 128), rounded up."""
    with np.errstate(invalid="ignore", over="ignore"):
        factors = summed(operands, lambda name: as_multiplied(operands, name) * scale_of(operands, name))
        return finished(operands, *factors, result=result)


def scale_of(operands: Operands, name: OperandName) -> Array | float:
    """The scale of each element of A or B, float64; 1 where blocks have none."""
    gemm = operands.gemm
    if gemm.block_scales is None:
        return 1.0
    scales = BLOCK_SCALES[0 if name[0] == "A" else 1]
    spread = gemm.block_scales.spread(scales, operands.storage(scales), gemm.m, gemm.n, gemm.k)
    return spread.astype(np.float64)


def summed(operands: Operands, matrix: Callable[[OperandName], Array]) -> tuple[Array, ...]:
    """The sums of each accumulator; matrix: what is multiplied of an operand."""
    gemm = operands.gemm
    totals = [np.zeros((gemm.m, gemm.n)) for _ in range(gemm.accumulators)]
    for product in gemm.products:
        before = totals[product.into]
        if product.rescale:
            before = np.where(np.isnan(before), 0.0, before * product.rescale)
        totals[product.into] = before + matrix(product.a) @ matrix(product.b)
    return tuple(totals)


def finished(operands: Operands, *totals: Array, result: str = "C") -> Array:
    """What the epilogue makes of finished sums, in float64. result: see `reference`."""
    gemm = operands.gemm
    factors = dict(zip(gemm.epilogue.factors, gemm.numbers, strict=True))
    exact = Exact(totals, gemm.alpha, gemm.beta, lambda name: operands.matrix(name).astype(np.float64), factors)
    found = np.broadcast_to(evaluate(gemm.epilogue.value_of(result), exact), (gemm.m, gemm.n))
    fold = gemm.operand(result).fold
    scales = gemm.epilogue.scales
    if fold is not None and fold.codes is not None:
        return scales_of_blocks(found, fold.codes)
    if fold is None:
        if scales is not None and result == "C":
            found = found / spread_over_blocks(scales_of_blocks(found, gemm.out), gemm.n)
        largest = gemm.operand(result).dtype.largest
        return found if np.isinf(largest) else np.clip(found, -largest, largest)
    lines = fold.of(found, folded_axis(gemm, result))
    return fold.of(lines, 1 - folded_axis(gemm, result)) if fold.whole else lines


def folded_axis(gemm: Gemm, result: str) -> int:
    """The axis of an (m, n) array along which the values of a result are folded."""
    operand = gemm.operand(result)
    return operand.dims.index(operand.strided)
