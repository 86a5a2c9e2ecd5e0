"""What must hold of a kernel body after every pass. A broken promise names the pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.dtypes import BF16, F16, F32, I32, TF32_FORMATS
from tilewright.errors import LoweringError
from tilewright.ir.async_stmt import ArriveBarrier, Wgmma
from tilewright.ir.buffer import Space
from tilewright.ir.expr import Binary, Const, Expr, Load, Op, Ref, Var
from tilewright.ir.kernel import (
    BATCH,
    BUILTINS,
    C_ODD,
    CAPACITY,
    FIRST_GROUP,
    GROUPS,
    MOST_ROWS,
    OWN_RANK,
    OWN_ROW,
    PART_OF_K,
    SHARDS,
    step_of,
)
from tilewright.ir.ranges import Interval, interval
from tilewright.ir.stmt import (
    Alloc,
    Assign,
    Barrier,
    Body,
    CommitCopies,
    For,
    If,
    Let,
    LoadFragment,
    LoadMatrices,
    Move,
    MultiplyTiles,
    QuadTranspose,
    RoundPair,
    ShuffleAdd,
    Stmt,
    StoreFragment,
    SyncWarp,
    UnpackCodes,
    WaitCopies,
)
from tilewright.ir.text import stmt_text
from tilewright.ir.tiles import VECTOR_BYTES
from tilewright.ir.visit import exprs_of, moved_from, sub_exprs, variables, walk_expr, written
from tilewright.layout.fragment import TRANSPOSED_BYTES
from tilewright.problem.gemm import FACTORS, LEADING

PARAMETERS = (
    *("M", "N", "K", *LEADING, "alpha", "beta", PART_OF_K.name, C_ODD.name),
    *(SHARDS.name, OWN_ROW.name, OWN_RANK.name, MOST_ROWS.name),
    *(BATCH.name, GROUPS.name, FIRST_GROUP.name, CAPACITY.name, *(step_of(name) for name in (*FACTORS, "C"))),
)


SHUFFLE_MASKS = (1, 2, 4, 8, 16)
"""Bits of a lane's number."""


class BrokenRule(LoweringError):
    """A pass made a kernel that breaks a rule of the language: a mistake in tilewright."""


def verify(body: Body, *, scheduled: Sequence[str] = (), names: Iterable[str] = PARAMETERS, after: str) -> None:
    """Raise LoweringError where a statement breaks a rule of the language.

    Names are defined before they are used and never twice in one scope; registers are declared, and have an element for
    each turn of the loops that count them; a `Move` has exactly one side in memory and a width that an instruction has;
    a barrier stands where all threads come.

    names: of the scalar arguments.
    """
    scope = _Scope(frozenset((*BUILTINS, *names)), frozenset(), OF_THREADS, OF_THREADS)
    _check(body, scope, divergent=False, after=after)


def _fail(after: str, stmt: Stmt, why: str) -> None:
    raise BrokenRule(
        f"The pass {after!r} broke a rule: {why}.",
        place=stmt_text(stmt),
        note="this is a mistake in tilewright, not in your schedule.",
    )


@dataclass(frozen=True, slots=True)
class _Scope:
    """What a statement may use. varying: the names whose values differ between threads; in_warps: between lanes of a
    warp. iterations: the values of loop variables that are all taken."""

    names: frozenset[str]
    registers: frozenset[str]
    varying: frozenset[str]
    in_warps: frozenset[str]
    iterations: Mapping[str, Interval] = field(default_factory=dict)

    def with_loop(self, loop: For) -> _Scope:
        names = self.names | {loop.var} | {c.name for c in loop.carried}
        iterations = self.iterations
        if isinstance(loop.extent, Const):
            iterations = {**iterations, loop.var: Interval(0, int(loop.extent.value) - 1)}
        return _Scope(names, self.registers, self.varying, self.in_warps, iterations)

    def under(self, condition: Expr) -> _Scope:
        """In a branch: the loops whose variables its condition reads need not reach all their iterations."""
        asked = variables(condition)
        left = {name: taken for name, taken in self.iterations.items() if name not in asked}
        return _Scope(self.names, self.registers, self.varying, self.in_warps, left)


def _check(body: Body, scope: _Scope, *, divergent: bool, after: str, some_lanes: bool = False) -> None:
    """divergent: whether only some threads come here; some_lanes: of a warp."""
    for stmt in body:
        for expr in exprs_of(stmt):
            names, loads = _read(expr)
            if not names <= scope.names:
                _fail(after, stmt, f"{', '.join(sorted(names - scope.names))} has no value here")
            for load in loads:
                _check_place(stmt, Ref(load.buffer, load.index), scope, after)
        match stmt:
            case Let():
                if stmt.name in scope.names:
                    _fail(after, stmt, f"{stmt.name} has a value already")
                varying = scope.varying | {stmt.name} if varies(stmt.value, scope.varying) else scope.varying
                differs = not stmt.uniform and varies(stmt.value, scope.in_warps)
                in_warps = scope.in_warps | {stmt.name} if differs else scope.in_warps
                scope = _Scope(scope.names | {stmt.name}, scope.registers, varying, in_warps, scope.iterations)
            case Alloc():
                registers = scope.registers | {stmt.buffer.name}
                scope = _Scope(scope.names, registers, scope.varying, scope.in_warps, scope.iterations)
            case For():
                inside = scope.with_loop(stmt)
                if len(inside.names) != len(scope.names) + 1 + len(stmt.carried):
                    _fail(after, stmt, f"{stmt.var} or a counter it carries has a value already")
                _check(stmt.body, inside, divergent=divergent, after=after, some_lanes=some_lanes)
            case If():
                parts = divergent or varies(stmt.condition, scope.varying)
                lanes = some_lanes or varies(stmt.condition, scope.in_warps)
                for branch in (stmt.then, stmt.otherwise):
                    _check(branch, scope.under(stmt.condition), divergent=parts, after=after, some_lanes=lanes)
            case Move():
                _check_move(stmt, scope, after)
            case Assign():
                _check_place(stmt, stmt.dst, scope, after)
                if stmt.dst.buffer.space is not Space.REGISTER:
                    _fail(after, stmt, "arithmetic writes registers only")
            case Barrier():
                if divergent:
                    _fail(after, stmt, "a barrier stands where only some threads come")
            case RoundPair():
                for place in (stmt.first, stmt.second):
                    _check_place(stmt, place, scope, after)
                    if place.buffer.space is not Space.REGISTER or place.buffer.dtype is not F32:
                        _fail(after, stmt, f"{stmt.dtype} is rounded to in registers of f32")
            case UnpackCodes():
                for place in (stmt.dst, stmt.src):
                    _check_place(stmt, place, scope, after)
                    if place.buffer.space is not Space.REGISTER:
                        _fail(after, stmt, "codes are unpacked in registers")
                if stmt.src.buffer.dtype is not I32 or stmt.dst.buffer.dtype not in (F16, BF16):
                    _fail(after, stmt, f"no words of {stmt.src.buffer.dtype} are unpacked to {stmt.dst.buffer.dtype}")
            case LoadMatrices() | LoadFragment() | StoreFragment() | MultiplyTiles() | QuadTranspose() | ShuffleAdd():
                if some_lanes:
                    _fail(after, stmt, "an instruction of the whole warp stands where only some lanes come")
                _check_collective(stmt, scope, after)
            case SyncWarp() if some_lanes:
                _fail(after, stmt, "the lanes of a warp meet where only some of them come")
            case SyncWarp() | CommitCopies() | WaitCopies():
                pass
            case ArriveBarrier() if stmt.behind_copies and stmt.rank is not None:
                _fail(after, stmt, "copies are told of to a barrier of their own block, not of another")
            case Wgmma():
                _check_wgmma(stmt, scope, after)
            case _:
                for place in (*written(stmt), *moved_from(stmt)):
                    _check_place(stmt, place, scope, after)


def _read(expr: Expr) -> tuple[set[str], list[Load]]:
    """The names and the elements that an expression reads."""
    names, loads, left = set(), [], [expr]
    while left:  # as `walk_expr`, without its pauses: most of the time of a verification is spent here
        part = left.pop()
        if isinstance(part, Var):
            names.add(part.name)
        else:
            if isinstance(part, Load):
                loads.append(part)
            left += sub_exprs(part)
    return names, loads


OF_THREADS = frozenset(name for name in BUILTINS if name.startswith("threadIdx"))
"""The names that tell the threads of a block apart."""


def varies(expr: Expr, varying: frozenset[str]) -> bool:
    """Whether threads of a block may disagree about a value. varying: the names whose values differ between them."""
    names, loads = _read(expr)
    return bool(loads) or not names.isdisjoint(varying)


def _check_move(stmt: Move, scope: _Scope, after: str) -> None:
    in_memory = [place.buffer.space for place in (stmt.dst, stmt.src) if place.buffer.space is not Space.REGISTER]
    if stmt.asynchronous:
        if in_memory != [Space.SHARED, Space.GLOBAL]:
            _fail(after, stmt, "an asynchronous copy goes from global to shared memory")
        if stmt.width * stmt.src.buffer.dtype.bytes not in VECTOR_BYTES:
            _fail(after, stmt, f"no asynchronous copy moves {stmt.width} x {stmt.src.buffer.dtype.bytes} bytes")
    elif stmt.streaming and in_memory != [Space.GLOBAL]:
        _fail(after, stmt, "only loads of global memory stream")
    elif stmt.predicated and (in_memory != [Space.GLOBAL] or stmt.width > 1 or stmt.dst.buffer.dtype is not F32):
        _fail(after, stmt, "only stores of an f32 to global memory are predicated")
    elif len(in_memory) != 1:
        _fail(after, stmt, f"{len(in_memory)} of its two sides are in memory")
    if stmt.dst.buffer.dtype is not stmt.src.buffer.dtype:
        _fail(after, stmt, f"it moves {stmt.src.buffer.dtype} into {stmt.dst.buffer.dtype}")
    if stmt.width > 1 and stmt.width * stmt.src.buffer.dtype.bytes not in (2, *VECTOR_BYTES):
        _fail(after, stmt, f"no instruction moves {stmt.width} x {stmt.src.buffer.dtype.bytes} bytes")
    for place in (stmt.dst, stmt.src):
        _check_place(stmt, place, scope, after)


def _check_collective(stmt: Stmt, scope: _Scope, after: str) -> None:
    """Fragments are declared, wide enough and of the instruction's formats; what is in memory is in shared memory."""
    for place in (*written(stmt), *moved_from(stmt)):
        _check_place(stmt, place, scope, after)
    match stmt:
        case LoadMatrices():
            if stmt.count not in (1, 2, 4):
                _fail(after, stmt, f"no instruction loads {stmt.count} matrices")
            if stmt.dst.buffer.space is not Space.REGISTER or stmt.src.buffer.space is not Space.SHARED:
                _fail(after, stmt, "matrices are loaded from shared memory to registers")
            if stmt.transposed and stmt.src.buffer.dtype.bytes != TRANSPOSED_BYTES:
                _fail(after, stmt, "only matrices of elements of 2 bytes are transposed on the way")
        case QuadTranspose():
            if stmt.place.buffer.space is not Space.REGISTER or stmt.place.buffer.dtype.bytes > 4:
                _fail(after, stmt, "words are transposed in registers")
        case ShuffleAdd():
            exchanged = I32 if stmt.up else F32
            if stmt.place.buffer.space is not Space.REGISTER or stmt.place.buffer.dtype is not exchanged:
                _fail(after, stmt, f"lanes exchange registers of {exchanged}")
            if stmt.other is not None and (stmt.up or stmt.other.buffer != stmt.place.buffer):
                _fail(after, stmt, "two lanes that share two sums have both in one buffer")
            if stmt.mask not in SHUFFLE_MASKS:
                _fail(after, stmt, f"no lane of a warp is {stmt.mask} apart by one bit")
            if stmt.op not in (Op.ADD, Op.MAX):
                _fail(after, stmt, f"lanes add, or take the larger, and do not combine by {stmt.op.text}")
        case MultiplyTiles():
            instruction = stmt.instruction
            if stmt.d.buffer.dtype is not instruction.accumulate:
                _fail(after, stmt, f"{instruction.name} does not add into {stmt.d.buffer.dtype}")
            for place in (stmt.d, stmt.a, stmt.b):
                if place.buffer.space is not Space.REGISTER:
                    _fail(after, stmt, f"{instruction.name} takes its operands from registers")
            if instruction.is_opaque == (stmt.orders is None):
                _fail(
                    after, stmt, "the orders of opaque fragments are part of the instruction, those of others are not"
                )
        case _:
            pass


def _check_wgmma(stmt: Wgmma, scope: _Scope, after: str) -> None:
    """A in registers is a fragment that the instruction takes, of its format."""
    for place in (*written(stmt), *moved_from(stmt)):
        _check_place(stmt, place, scope, after)
    if not isinstance(stmt.a, Ref):
        return
    if stmt.a.buffer.space is not Space.REGISTER or stmt.instruction.left is None:
        _fail(after, stmt, f"{stmt.instruction.name} takes no fragment of A from {stmt.a.buffer.name}")
    product = stmt.instruction.product
    if stmt.a.buffer.dtype is not (F32 if product in TF32_FORMATS else product):
        _fail(after, stmt, f"{stmt.instruction.name} does not multiply {stmt.a.buffer.dtype}")


def _check_place(stmt: Stmt, place: Ref, scope: _Scope, after: str) -> None:
    buffer = place.buffer
    if buffer.space is Space.REGISTER and buffer.name not in scope.registers:
        _fail(after, stmt, f"{buffer.name} is not declared here")
    if buffer.space is Space.GLOBAL:
        return
    if len(place.index) != len(buffer.shape):
        _fail(after, stmt, f"{buffer.name} has {len(buffer.shape)} indices, not {len(place.index)}")
    for index, extent in zip(place.index, buffer.shape, strict=True):
        if isinstance(index, Const):
            if not 0 <= index.value < extent:
                _fail(after, stmt, f"index {index.value} of {buffer.name} is outside 0 .. {extent - 1}")
        elif buffer.space is Space.REGISTER and _is_affine(index):
            taken = interval(index, scope.iterations)
            if (taken.low is not None and taken.low < 0) or (taken.high is not None and taken.high >= extent):
                _fail(after, stmt, f"index {taken.low} .. {taken.high} of {buffer.name} leaves 0 .. {extent - 1}")


def _is_affine(expr: Expr) -> bool:
    """Whether the ends of an expression's interval are values that it takes: a sum of multiples of different names."""
    parts = tuple(walk_expr(expr))
    names = [part.name for part in parts if isinstance(part, Var)]
    sums = all(isinstance(part, Var | Const) or (isinstance(part, Binary) and part.op in _AFFINE) for part in parts)
    return sums and len(names) == len(set(names))


_AFFINE = frozenset({Op.ADD, Op.SUB, Op.MUL})
