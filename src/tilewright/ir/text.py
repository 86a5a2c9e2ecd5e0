"""The stable text form of a kernel: what goldens, errors, reports and the command line show.

`kernel_lines` also says which statement each line prints, so that a simulator can name the line of an access.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from tilewright.ir import async_stmt
from tilewright.ir import stmt as statements
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import (
    Apply,
    Binary,
    Cast,
    Const,
    Expr,
    Fma,
    Load,
    Lookup,
    Op,
    RandomNumber,
    Ref,
    Select,
    Var,
    binary,
)
from tilewright.ir.kernel import Kernel
from tilewright.ir.visit import Path, bodies, sub_exprs

_ATOM = 100.0
_UNARY = 11.0


class ExprText:
    """Prints expressions with the fewest parentheses; a back end overrides the parts that differ."""

    def __call__(self, expr: Expr) -> str:
        return self._text(expr)[0]

    def place(self, ref: Ref) -> str:
        return f"{ref.buffer.name}[{', '.join(self(i) for i in ref.index)}]"

    def const(self, expr: Const) -> str:
        return f"{expr.value:g}" if expr.dtype.is_float else str(expr.value)

    def bits(self, expr: Expr) -> str:
        """A mask: in binary digits where it is known."""
        return f"{expr.value:#b}" if isinstance(expr, Const) else self(expr)

    def cast(self, expr: Cast) -> tuple[str, float]:
        return f"{expr.dtype.name}({self(expr.value)})", _ATOM

    def fma(self, expr: Fma) -> tuple[str, float]:
        return f"fma({self(expr.a)}, {self(expr.b)}, {self(expr.c)})", _ATOM

    def apply(self, expr: Apply) -> str:
        return f"{expr.function.value}({self(expr.value)})"

    def uniform(self, expr: RandomNumber) -> str:
        return f"uniform({', '.join(self(part) for part in sub_exprs(expr))})"

    def lookup(self, expr: Lookup) -> str:
        return f"table of {len(expr.table)}[{self(expr.index)}]"

    def select(self, expr: Select) -> tuple[str, float]:
        return f"{self._inside(expr.condition, 2)} ? {self(expr.a)} : {self(expr.b)}", 1.0

    def _inside(self, expr: Expr, strength: float) -> str:
        text, own = self._text(expr)
        return text if own >= strength else f"({text})"

    def _text(self, expr: Expr) -> tuple[str, float]:
        match expr:
            case Const():
                negative = expr.value < 0
                return self.const(expr), _UNARY if negative else _ATOM
            case Var():
                return expr.name, _ATOM
            case Load():
                return self.place(Ref(expr.buffer, expr.index)), _ATOM
            case Apply():
                return self.apply(expr), _ATOM
            case Cast():
                return self.cast(expr)
            case Lookup():
                return self.lookup(expr), _ATOM
            case RandomNumber():
                return self.uniform(expr), _ATOM
            case Fma():
                return self.fma(expr)
            case Select():
                return self.select(expr)
            case Binary(op=Op.MIN | Op.MAX):
                return f"{expr.op.text}({self(expr.a)}, {self(expr.b)})", _ATOM
            case Binary():
                return self._binary(expr)

    def _binary(self, expr: Binary) -> tuple[str, float]:
        op = expr.op
        # Mixed bit and arithmetic operators are always bracketed: few readers know how they bind.
        loose = op in (Op.XOR, Op.AND, Op.SHL, Op.SHR)
        left = self._inside(expr.a, 11 if loose else op.strength)
        right = self._inside(expr.b, 11 if loose else op.strength + 0.1)
        if op is Op.ADD and isinstance(expr.b, Const) and expr.b.value < 0 and not expr.b.dtype.is_float:
            return f"{left} - {-expr.b.value}", op.strength
        if op is Op.ADD and (taken := _subtracted(expr.b)) is not None:
            return f"{left} - {self._inside(taken, op.strength + 0.1)}", op.strength
        if op is Op.ADD and (taken := _subtracted(expr.a)) is not None:
            return f"{self._inside(expr.b, op.strength)} - {self._inside(taken, op.strength + 0.1)}", op.strength
        return f"{left} {op.text} {right}", op.strength


def _subtracted(term: Expr) -> Expr | None:
    """What a term of a sum takes away, where it is a multiple of a whole number below 0: linear forms keep it so."""
    match term:
        case Binary(op=Op.MUL, a=taken, b=Const(value=times, dtype=dtype)) if times < 0 and not dtype.is_float:
            return binary(Op.MUL, taken, -int(times))
    return None


@dataclass(frozen=True, slots=True)
class Line:
    """One printed line; `path` is the statement it prints (None for headings)."""

    text: str
    path: Path | None = None


def buffer_text(buffer: Buffer) -> str:
    """`A_tile: shared f32[8, 128]  (k, m)`."""
    axes = f"  ({', '.join(buffer.axes)})" if buffer.axes else ""
    note = f" {buffer.note}" if buffer.note else ""
    shape = ", ".join(str(extent) for extent in buffer.shape)
    return f"{buffer.name}: {buffer.space.value} {buffer.dtype.name}[{shape}]{axes}{note}"


def kernel_lines(kernel: Kernel) -> list[Line]:
    """The kernel as text, a statement a line."""
    expr = ExprText()
    names = ", ".join(p.name for p in kernel.parameters)
    grid = ", ".join(expr(g) for g in kernel.grid)
    block = ", ".join(str(b) for b in kernel.block)
    head = [
        Line(f"kernel {kernel.name}({names})"),
        Line(f"  grid ({grid})  block ({block})  assumes: {kernel.variant.words}"),
        *(Line(f"  {buffer_text(buffer)}") for buffer in kernel.shared),
    ]
    return head + body_lines(kernel.body, indent=1)


def body_lines(body: statements.Body, *, indent: int = 0, path: Path = ()) -> list[Line]:
    """Statements as text, each with its path."""
    lines: list[Line] = []
    for index, stmt in enumerate(body):
        here = (*path, index)
        pad = "  " * indent
        lines.append(Line(pad + stmt_text(stmt), here))
        for inner, nested in bodies(stmt):
            if inner == (1,) and nested:
                lines.append(Line(f"{pad}else:"))
            lines += body_lines(nested, indent=indent + 1, path=(*here, *inner))
    return lines


def stmt_text(stmt: statements.Stmt) -> str:
    """The one line of a statement; what is inside a loop or branch follows on lines of its own."""
    expr = ExprText()
    match stmt:
        case statements.Let():
            return f"let {stmt.name} = {expr(stmt.value)}"
        case statements.For():
            unrolled = " unrolled" if stmt.unroll else ""
            carried = "".join(f", {c.name} = {expr(c.start)} then {expr(c.next)}" for c in stmt.carried)
            return f"for {stmt.var} in {expr(stmt.extent)}{carried}{unrolled}:"
        case statements.If():
            return f"if {expr(stmt.condition)}:"
        case statements.Alloc():
            return buffer_text(stmt.buffer)
        case statements.Move():
            wide = f" x{stmt.width}" if stmt.width > 1 else ""
            guard = "" if stmt.guard is None else f" where {expr(stmt.guard)}"
            some = "" if stmt.valid is None else f" first {expr(stmt.valid)}"
            arrow = "<~" if stmt.asynchronous else "<- streaming" if stmt.streaming else "<-"
            return f"{expr.place(stmt.dst)} {arrow}{wide} {expr.place(stmt.src)}{some}{guard}"
        case statements.Assign(value=Fma() as fma) if (
            isinstance(fma.c, Load) and Ref(fma.c.buffer, fma.c.index) == stmt.dst
        ):
            left, right = expr._inside(fma.a, 10), expr._inside(fma.b, 10)
            return f"{expr.place(stmt.dst)} += {left} * {right}"
        case statements.Assign():
            return f"{expr.place(stmt.dst)} = {expr(stmt.value)}"
        case statements.Barrier():
            return f"barrier{'  # ' + stmt.note if stmt.note else ''}"
        case statements.SyncWarp():
            return f"sync warp{'  # ' + stmt.note if stmt.note else ''}"
        case statements.CommitCopies():
            return "commit copies"
        case statements.WaitCopies():
            return f"wait until at most {stmt.pending} group(s) of copies are under way"
        case statements.LoadMatrices():
            turned = " transposed" if stmt.transposed else ""
            return f"{expr.place(stmt.dst)} <- {stmt.count} matrices{turned} {expr.place(stmt.src)}"
        case statements.LoadFragment():
            tile = f"{stmt.order.value}s {stmt.leading} apart"
            return f"{expr.place(stmt.dst)} <- fragment {stmt.role} {expr.place(stmt.src)}, {tile}"
        case statements.StoreFragment():
            return (
                f"{expr.place(stmt.dst)}, {stmt.order.value}s {stmt.leading} apart <- fragment {expr.place(stmt.src)}"
            )
        case statements.MultiplyTiles():
            operands = f"{expr.place(stmt.a)} @ {expr.place(stmt.b)}"
            return f"{expr.place(stmt.d)} += {operands}  # {stmt.instruction.name}"
        case statements.RoundPair():
            return f"{expr.place(stmt.first)} and {expr.place(stmt.second)} rounded to {stmt.dtype}"
        case statements.UnpackCodes():
            return f"{expr.place(stmt.dst)} <- 8 codes of {stmt.codes} {expr.place(stmt.src)}"
        case statements.ShuffleAdd():
            how = "+=" if stmt.op is Op.ADD else "max="
            shared = "" if stmt.other is None else f", or {expr.place(stmt.other)} of both where the lane has that bit"
            return f"{expr.place(stmt.place)} {how} that of lane {'-' if stmt.up else '^'} {stmt.mask}{shared}"
        case statements.QuadTranspose():
            return f"{expr.place(stmt.place)} transposed: 4 words of 4 lanes"
        case _:
            return async_text(stmt, expr)


def async_text(stmt: async_stmt.AsyncStmt, expr: ExprText) -> str:
    """The line of a statement of an asynchronous unit."""
    match stmt:
        case async_stmt.InitBarrier():
            return f"{expr.place(stmt.place)} = a barrier of {stmt.arrivals} arrival(s)"
        case async_stmt.FenceBarriers():
            return "the new barriers are seen by all"
        case async_stmt.ExpectBytes():
            return f"arrive at {expr.place(stmt.place)}, {stmt.size_bytes} bytes to come"
        case async_stmt.ArriveBarrier():
            far = "" if stmt.rank is None else f" of block {expr(stmt.rank)}"
            behind = ", when the copies of this thread have landed" if stmt.behind_copies else ""
            return f"arrive at {expr.place(stmt.place)}{far}{behind}"
        case async_stmt.SignalFlag():
            word = "signal" if stmt.releases else "set"
            sign = "+=" if stmt.adds else "="
            return f"{word} {expr.place(stmt.place)} {sign} {expr(stmt.value)}{_told(stmt.scope)}"
        case async_stmt.WaitFlag():
            sign = ">=" if stmt.or_later else "=="
            return f"wait for {expr.place(stmt.place)} {sign} {expr(stmt.value)}{_told(stmt.scope)}"
        case async_stmt.WaitBarrier():
            far = ", which other blocks tell" if stmt.of_cluster else ""
            return f"wait for {expr.place(stmt.place)}, parity {expr(stmt.parity)}{far}"
        case async_stmt.StoreAsync():
            source = f"{stmt.count} x {expr.place(stmt.src)}"
            return f"{expr.place(stmt.dst)} of block {expr(stmt.rank)} <~ {source}, tells {expr.place(stmt.signal)}"
        case async_stmt.TmaLoad():
            box = f"{stmt.map.name}[{', '.join(map(expr, stmt.at))}]"
            where = "" if stmt.mask is None else f" in blocks {expr.bits(stmt.mask)} of the cluster"
            first = ", first to leave the L2" if stmt.evict_first else ""
            return f"{expr.place(stmt.dst)} <~ box {box}{where}{first}, tells {expr.place(stmt.signal)}"
        case async_stmt.TmaPrefetch():
            return f"prefetch box {stmt.map.name}[{', '.join(map(expr, stmt.at))}] to the L2"
        case async_stmt.TmaStore():
            first = ", first to leave the L2" if stmt.evict_first else ""
            return f"box {stmt.map.name}[{', '.join(map(expr, stmt.at))}] <~ {expr.place(stmt.src)}{first}"
        case async_stmt.BulkPrefetch():
            return f"the L2 is asked for {stmt.size_bytes} bytes at {expr.place(stmt.place)}"
        case async_stmt.L2Prefetch():
            where = "" if stmt.guard is None else f" where {expr(stmt.guard)}"
            return f"the L2 is asked for {expr.place(stmt.place)}{where}"
        case async_stmt.PrefetchMap():
            return f"prefetch {stmt.map.name}"
        case async_stmt.CommitStores():
            return "commit bulk stores"
        case async_stmt.WaitStores():
            what = "are under way" if stmt.written else "read shared memory"
            return f"wait until at most {stmt.pending} group(s) of bulk stores {what}"
        case async_stmt.FenceProxy():
            where = "" if stmt.space is Space.SHARED else f" of {stmt.space.value} memory"
            return f"fence between ordinary and asynchronous accesses{where}"
        case async_stmt.ClusterBarrier():
            return "barrier of the cluster"
        case async_stmt.TeamBarrier():
            return f"barrier {expr(stmt.number)} of {stmt.threads} threads"
        case async_stmt.SetRegisters():
            return f"{'grow' if stmt.grow else 'shrink'} to {stmt.count} registers"
        case async_stmt.WgmmaFence():
            return "fence before products"
        case async_stmt.StartNextGrid():
            return "the next kernel may start"
        case async_stmt.WaitPreviousGrid():
            ends = "" if stmt.guard is None else f"; go on where {stmt.guard.words}"
            return f"wait until the kernels before have ended{ends}"
        case async_stmt.WgmmaCommit():
            return "commit products"
        case async_stmt.WgmmaWait():
            return f"wait until at most {stmt.pending} wgmma group(s) are under way"
        case async_stmt.Wgmma():
            a = "" if isinstance(stmt.a, Ref) or not stmt.a.turned else " transposed"
            b = " transposed" if stmt.b.turned else ""
            operands = f"{expr.place(stmt.a_place)}{a} @ {expr.place(stmt.b.place)}{b}"
            fresh = "" if stmt.fresh is None else f" (= where {expr(stmt.fresh)})"
            return f"{expr.place(stmt.d)} += {operands}{fresh}  # {stmt.instruction.name}"
        case async_stmt.StoreMatrices():
            turned = " transposed" if stmt.transposed else ""
            return f"{expr.place(stmt.dst)} <- {stmt.count} matrices{turned} {expr.place(stmt.src)}"
        case _:
            assert_never(stmt)


def kernel_text(kernel: Kernel) -> str:
    """The whole kernel as text, ending in a newline."""
    return "\n".join(line.text for line in kernel_lines(kernel)) + "\n"


def _told(scope: async_stmt.Scope) -> str:
    return ", in the whole system" if scope is async_stmt.Scope.SYSTEM else ""
