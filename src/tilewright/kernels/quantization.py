"""FP8 codes and their scales, at the speed of memory.

A group is what shares a scale. Some lanes of a warp, a whole warp or a whole block find its largest magnitude, by
exchanging registers, and divide by its scale. A block of 128 stays in registers in between; a line is read again, from
the caches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from tilewright.device.spec import DeviceSpec
from tilewright.dtypes import F32
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import ZERO, Binary, Cast, Const, Expr, Load, Op, Var, binary, both, real
from tilewright.ir.expr import ceil_div as ceil_div_of
from tilewright.ir.finish import as_f32, finite_magnitude
from tilewright.ir.kernel import Kernel
from tilewright.ir.stmt import Alloc, Assign, Body, For, Let, Move
from tilewright.kernels.statements import (
    BLOCK,
    THREAD,
    WARP_LANES,
    against_overlap,
    argument,
    at,
    below,
    element_of,
    larger,
    launched,
    over_lanes,
    over_warps,
    registers,
    times,
    together,
    unrolled,
    widest,
    within,
)
from tilewright.problem.quantization import BLOCK as GROUP
from tilewright.problem.quantization import LEAST_SCALE, Quantization

THREADS = 256
_WARPS = THREADS // WARP_LANES

_IN_FLIGHT = 4
"""Vectors, or groups, of a thread that are loaded at a time."""

_FEW_LINES = 1024
"""Lines up to which a block has each of them, not a warp."""

_LONG_LINE = 2048
"""Elements of a line from which a block may have it."""


@dataclass(frozen=True, slots=True)
class QuantizationConfig:
    """width: elements of one load; addresses and lines are multiples of it. along: threads that have a line, of a warp
    or of a block. overlapped: it starts under the kernel before (sm_90 and later)."""

    width: int
    along: int = WARP_LANES
    overlapped: bool = True

    @classmethod
    def of(cls, problem: Quantization, aligned_bytes: int, *, overlapped: bool = True) -> QuantizationConfig:
        """The widest that is legal. aligned_bytes: what the address and the lines of the source are multiples of; the
        codes begin at a multiple of 16."""
        lines = problem.length, problem.leading, problem.to_leading
        width = widest(problem.dtype.bytes, aligned_bytes, *lines)
        by_block = problem.lines <= _FEW_LINES and problem.length >= _LONG_LINE
        return cls(width, THREADS if by_block and problem.groups != "block" else WARP_LANES, overlapped)

    def reasons_against(self, problem: Quantization, spec: DeviceSpec | None = None) -> tuple[str, ...]:
        """Why this kernel cannot do it, in words; empty if it can."""
        found: list[str] = []
        if problem.length % self.width or problem.leading % self.width or problem.to_leading % self.width:
            found.append(f"lines of {problem.length} elements are not multiples of {self.width}")
        return *found, *against_overlap(self.overlapped, spec)

    def kernel(self, problem: Quantization) -> Kernel:
        """The kernel for the formats of a problem; sizes are arguments, offsets have 64 bits."""
        statements = (_Blocks if problem.groups == "block" else _Lines)(self, problem)
        name = f"quantize_{problem.groups}_{problem.dtype}_to_{problem.out}_x{self.width}_{self.along}"
        return launched(
            name,
            problem,
            self.width * problem.dtype.bytes,
            (statements.blocks(), Const(1), Const(1)),
            THREADS,
            statements.body(),
            shared=statements.shared,
            overlapped=self.overlapped,
        )


class _Statements(ABC):
    """The statements of a thread. held: numbers of the source, in vectors."""

    shared: tuple[Buffer, ...] = ()

    def __init__(self, config: QuantizationConfig, problem: Quantization, vectors: int) -> None:
        self.config, self.problem = config, problem
        self.held = registers("held", problem.dtype, vectors, config.width, note="numbers of the source")
        self.codes = registers("made", problem.out, config.width)
        self.largest = registers("largest", F32, 1, note="magnitude of the group")
        self.scale, self.inverse = registers("scale", F32, 1), registers("inverse", F32, 1)

    @abstractmethod
    def blocks(self) -> Expr:
        """Blocks of the grid."""

    @abstractmethod
    def body(self) -> Body:
        """What a thread does."""

    @property
    def declared(self) -> Body:
        return tuple(Alloc(one) for one in (self.held, self.codes, self.largest, self.scale, self.inverse))

    def load(self, i: Expr, line: Expr, column: Expr) -> Move:
        inside = within(line, column)
        place = element_of("source", self.problem.dtype, times(line, "leading", near=False) + column)
        return Move(at(self.held, i, ZERO), place, self.config.width, inside, origin="source")

    def keep(self, i: Expr) -> Body:
        """The largest finite magnitude so far, with those of a vector."""

        def more(element: Expr) -> Assign:
            return larger(at(self.largest, ZERO), finite_magnitude(as_f32(Load(self.held, (i, element)))))

        return unrolled("element", self.config.width, more)

    @property
    def scaled(self) -> Body:
        """The scale of the largest magnitude, and its inverse."""
        share = Binary(Op.MUL, Load(self.largest, (ZERO,)), real(1 / self.problem.largest))
        return (
            Assign(at(self.scale, ZERO), Binary(Op.MAX, share, real(LEAST_SCALE))),
            Assign(at(self.inverse, ZERO), Binary(Op.DIV, real(1.0), Load(self.scale, (ZERO,)))),
        )

    def store_scale(self, line: Expr, number: Expr, guard: Expr) -> Move:
        offset = times(line, "scale_step", near=False) + times(number, "scale_step_k", near=False)
        return Move(element_of("scales", F32, offset), at(self.scale, ZERO), 1, guard, origin="scales")

    def store_codes(self, i: Expr, line: Expr, column: Expr) -> Body:
        """The codes of a vector."""

        def code(element: Expr) -> Assign:
            value = Binary(Op.MUL, as_f32(Load(self.held, (i, element))), Load(self.inverse, (ZERO,)))
            return Assign(at(self.codes, element), Cast(self.problem.out, value))

        inside = within(line, column)
        place = element_of("codes", self.problem.out, times(line, "to_leading", near=False) + column)
        store = Move(place, at(self.codes, ZERO), self.config.width, inside, origin="codes")
        return together(unrolled("element", self.config.width, code), store)


class _Lines(_Statements):
    """A line has one scale, or all have one, whose largest magnitude is known; or only that magnitude is wanted."""

    def __init__(self, config: QuantizationConfig, problem: Quantization) -> None:
        super().__init__(config, problem, _IN_FLIGHT)
        self.lines = THREADS // config.along
        self.shares = Buffer("shares", Space.SHARED, F32, (_WARPS,), ("warp",))
        self.share = registers("share", F32, 1)
        self.finds = problem.groups != "all"
        self.shared = (self.shares,) if self.finds and config.along > WARP_LANES else ()

    def blocks(self) -> Expr:
        return ceil_div_of(argument("lines"), self.lines)

    def body(self) -> Body:
        config = self.config
        line, along = Var("line"), Var("along")
        known = at(self.largest, ZERO)
        found = together(Assign(known, real(0.0)), self._over(self.keep), over_lanes(known), self._over_warps())
        return together(
            Let("line", BLOCK * self.lines + binary(Op.DIV, THREAD, config.along)),
            Let("along", THREAD % config.along),
            self.declared,
            found if self.finds else (Move(known, element_of("largest", F32, ZERO), origin="largest"),),
            self._stored(both(binary(Op.EQ, along, 0), below(line, argument("lines")))),
        )

    def _stored(self, first: Expr) -> Body:
        """What becomes of the largest magnitude. first: of one thread of a line."""
        line = Var("line")
        if self.problem.groups == "largest":
            return (Move(element_of("largest", F32, line), at(self.largest, ZERO), 1, first, origin="largest"),)
        here = first if self.finds else both(first, binary(Op.EQ, line, 0))
        return together(
            self.scaled,
            self.store_scale(line, ZERO, here),
            self._over(lambda i: self.store_codes(i, line, self._column(i))),
        )

    def _column(self, i: Expr) -> Expr:
        step = self.config.along * self.config.width
        return (Var("chunk") * _IN_FLIGHT + i) * step + Var("along") * self.config.width

    def _over(self, use: Callable[[Expr], Body]) -> Body:
        """The vectors of the line, so many at a time."""
        step = self.config.along * self.config.width * _IN_FLIGHT
        loads = unrolled("i", _IN_FLIGHT, lambda i: self.load(i, Var("line"), self._column(i)))
        body = together(loads, unrolled("i", _IN_FLIGHT, use))
        return (For("chunk", ceil_div_of(argument("length"), step), body),)

    def _over_warps(self) -> Body:
        """The largest of all warps of a block."""
        if not self.shared:
            return ()
        warp = binary(Op.DIV, THREAD, WARP_LANES)
        return over_warps(at(self.largest, ZERO), self.share, lambda i: at(self.shares, i), warp, _WARPS)


class _Blocks(_Statements):
    """Each 128 of a line have a scale. lanes: that have them; rounds: vectors of each."""

    def __init__(self, config: QuantizationConfig, problem: Quantization) -> None:
        self.lanes = min(WARP_LANES, GROUP // config.width)
        self.rounds = GROUP // (self.lanes * config.width)
        self.together = max(1, _IN_FLIGHT // self.rounds)
        super().__init__(config, problem, self.together * self.rounds)

    @property
    def _groups(self) -> int:
        """Groups of a block of threads, at a time."""
        return THREADS // self.lanes

    def _of_a_line(self) -> Expr:
        return ceil_div_of(argument("length"), GROUP)

    def blocks(self) -> Expr:
        return ceil_div_of(argument("lines") * self._of_a_line(), self._groups * self.together)

    def body(self) -> Body:
        return together(
            Let("lane", THREAD % self.lanes),
            Let("first", BLOCK * (self._groups * self.together) + binary(Op.DIV, THREAD, self.lanes)),
            self.declared,
            # Loops also where there is one group, as each names its own line.
            *(For("i", Const(self.together), self._group(use), unroll=True) for use in (self._loads, self._quantized)),
        )

    def _group(self, use: Callable[[Expr], Body]) -> Body:
        group = Var("first") + Var("i") * self._groups
        return together(
            Let("line", binary(Op.DIV, group, self._of_a_line())),
            Let("piece", group - Var("line") * self._of_a_line()),
            use(Var("i")),
        )

    def _column(self, r: Expr) -> Expr:
        return Var("piece") * GROUP + (r * self.lanes + Var("lane")) * self.config.width

    def _loads(self, i: Expr) -> Body:
        return unrolled("r", self.rounds, lambda r: self.load(i * self.rounds + r, Var("line"), self._column(r)))

    def _quantized(self, i: Expr) -> Body:
        first = both(binary(Op.EQ, Var("lane"), 0), below(Var("line"), argument("lines")))
        return together(
            Assign(at(self.largest, ZERO), real(0.0)),
            unrolled("r", self.rounds, lambda r: self.keep(i * self.rounds + r)),
            over_lanes(at(self.largest, ZERO), self.lanes),
            self.scaled,
            self.store_scale(Var("line"), Var("piece"), first),
            unrolled(
                "r",
                self.rounds,
                lambda r: self.store_codes(i * self.rounds + r, Var("line"), self._column(r)),
            ),
        )
