"""What is copied before a product, and where C goes first: how the kernel of a choice finds its problem."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from tilewright.dtypes import F32, DType
from tilewright.isa.wgmma import transposes
from tilewright.layout.banks import LINE_BYTES
from tilewright.problem.epilogue import PLAIN
from tilewright.problem.gemm import Dim, Gemm, OperandName, Order
from tilewright.units import round_up
from tilewright.winners.choice import Choice

ENGINE_BYTES = 16
"""What addresses and leading dimensions must be multiples of, for the copy engine."""

PADDED: tuple[OperandName, ...] = ("A", "B")


@dataclass(frozen=True, slots=True)
class Alignment:
    """Bytes that the address and the rows of each matrix are multiples of, at most 16."""

    a: int
    b: int
    c: int

    def of(self, name: OperandName) -> int:
        return {"A": self.a, "B": self.b, "C": self.c}[name]

    @property
    def least(self) -> int:
        return min(self.a, self.b, self.c)


class Copies(NamedTuple):
    """What is copied before a product; see `Choice`."""

    pads: frozenset[OperandName] = frozenset()
    turned: frozenset[OperandName] = frozenset()
    filled: bool = False


def order_read(choice: Choice, gemm: Gemm, name: OperandName) -> Order:
    """How the kernel of a choice finds A or B: as it is stored where wgmma can transpose it."""
    if choice.rung.startswith("hopper/") and not transposes(gemm.multiplied):
        return Order.ROW if name == "A" else Order.COL
    own = gemm.operand(name).order
    return _OTHER[own] if name in choice.turned else own


_OTHER: Mapping[Order, Order] = {Order.ROW: Order.COL, Order.COL: Order.ROW}


def copied_first(rung: str, gemm: Gemm, alignment: Alignment) -> frozenset[OperandName]:
    """A and B, as far as a kernel cannot read them as they lie."""
    if not rung.startswith("hopper/"):
        return frozenset()
    return frozenset(
        name
        for name in PADDED
        if alignment.of(name) < ENGINE_BYTES or order_read(Choice(rung), gemm, name) is not gemm.operand(name).order
    )


def worth_turning(rung: str, gemm: Gemm) -> frozenset[OperandName]:
    """What a kernel reads faster the other way round: those of FFMA turn a B that lies by columns, element by element,
    in each of their blocks. An A that lies by rows they turn as well, and are hardly slower (NN and TN of
    `choices._SLOW_B`)."""
    turns = rung.startswith("worklog/") and gemm.dtype is F32 and gemm.b is Order.COL
    return frozenset(("B",)) if turns else frozenset()


def ways_to_copy(rung: str, gemm: Gemm, alignment: Alignment) -> tuple[Copies, ...]:
    """What a kernel needs copied; also what would make narrow loads wide, where it could do with them; with that what
    it would rather have turned; and both operands in whole tiles, where edges would need guards."""
    needed, narrow, turned = copied_first(rung, gemm, alignment), _narrow(alignment), worth_turning(rung, gemm)
    ways = [Copies(needed), Copies(needed | narrow), Copies(needed | narrow | turned, turned)]
    edges = any(gemm.size(dim) % some for dim, some in _WHOLE.items())
    if can_fill(rung, gemm) and (alignment.least < ENGINE_BYTES or edges):
        ways.append(Copies(frozenset(PADDED), fastest_turned(gemm), filled=True))
    return tuple(dict.fromkeys(ways))


_WHOLE: Mapping[Dim, int] = {"m": 128, "n": 128, "k": 16}
"""Multiples of these have no edges in some large tile."""


def can_fill(rung: str, gemm: Gemm) -> bool:
    """Whether a kernel may be given whole tiles only. Those of FFMA gain: the compiler makes a slower loop where edges
    are guarded or C leaves element by element. Measured on the H200: 4096 x 4224 x 4096 TN 2652 us; with an odd ldc
    2912; 4095 x 4097 x 4093 2970 (benchmarks/results/plans_h200.json)."""
    return rung == "worklog/best" and gemm.dtype is F32 and gemm.k > 0


def fastest_turned(gemm: Gemm) -> frozenset[OperandName]:
    """What is to be turned where both operands are copied anyway: no tile is, on its way through shared memory."""
    lies = {"A": gemm.a is Order.ROW, "B": gemm.b is Order.COL}
    return frozenset(name for name in PADDED if lies[name])


def fitted(choice: Choice, gemm: Gemm, alignment: Alignment) -> Choice:
    """A choice that was measured for a problem like this one, with the copies that this one needs, and no others."""
    if choice.filled:
        return replace(choice, turned=fastest_turned(gemm))
    turned = choice.turned & worth_turning(choice.rung, gemm)
    pads = copied_first(choice.rung, gemm, alignment) | (choice.pads & _narrow(alignment))
    return replace(choice, pads=pads | turned, turned=turned)


def _narrow(alignment: Alignment) -> frozenset[OperandName]:
    return frozenset(name for name in PADDED if alignment.of(name) < ENGINE_BYTES)


def as_read(gemm: Gemm, choice: Choice) -> Gemm:
    """The problem as the kernel of a choice finds it, behind the copies that are made first."""
    if choice.filled:
        gemm = filled(gemm, choice)
    for name in sorted(choice.pads):
        side = name.lower()
        order = order_read(choice, gemm, name)
        turned = replace(gemm, **{side: order, f"ld{side}": 0})  # type: ignore[arg-type]
        gemm = replace(turned, **{f"ld{side}": padded(row_length(turned, name), gemm.dtype)})  # type: ignore[arg-type]
    return gemm


def filled(gemm: Gemm, choice: Choice) -> Gemm:
    """A problem of whole tiles, whose C is by itself, with nothing added to it."""
    m, n, k = (round_up(gemm.size(dim), choice.point[f"b{dim}"]) for dim in ("m", "n", "k"))
    return replace(gemm, m=m, n=n, k=k, lda=0, ldb=0, ldc=0, beta=0.0, epilogue=PLAIN, ld_residual=0)


def row_length(gemm: Gemm, name: OperandName) -> int:
    """Elements of a matrix that lie side by side."""
    return gemm.size(gemm.operand(name).contiguous)


_LONG_BYTES = 1024
"""From this length on, rows of a copy begin at whole lines of the L2: at most an eighth more memory. Measured on the
H200: 4095 x 4097 x 4093 in bf16, where rows of B are copied to 8208 bytes apart, 267 us for the product; to whole
lines, 252 (benchmarks/results/plans_h200.json)."""


def padded(length: int, dtype: DType) -> int:
    """Elements from row to row of a copy."""
    each = LINE_BYTES if length * dtype.bytes >= _LONG_BYTES else ENGINE_BYTES
    return round_up(max(length, 1), each // dtype.bytes)


def padded_bytes(lines: int, length: int, dtype: DType) -> int:
    """The size of a copy, rounded up to 256 bytes."""
    return round_up(lines * padded(length, dtype) * dtype.bytes, 256)


def whole_pieces(length: int, dtype: DType) -> int:
    """Elements of a row of a copy, with zeros to the end of 16 bytes."""
    return round_up(max(length, 1), ENGINE_BYTES // dtype.bytes)


def finishes(choice: Choice) -> bool:
    """Whether a launch takes C from a workspace."""
    return choice.splits > 1 or choice.filled
