"""Pass 7: what an offset of a pipelined loop owes to the thread alone is computed once, in front of the loop.

    for k_tile: load &A_tile[slot][m(lane) + 16 * i][k(lane, step)]
->  for step: A_frag_at[step] = m(lane) * 64 + k(lane, step)
    for k_tile: load &A_tile[slot][0][A_frag_at[step] + 1024 * i]

What is left in the loop is the same for all threads, or a constant, and fits into the instruction. A warp that feeds
tensor cores has few instructions to spare: each one between two products delays the next.

Where blocks are persistent, what is copied is found by pointers, which move on with the loop:

    for k_tile: copy &A[(m_block * 128 + m(thread) + 32 * i) * lda + k(thread) + k_tile * 64]
->  for i: A_tile_here[i] = &A[(m_block * 128 + m(thread) + 32 * i) * lda + k(thread)]
    for k_tile: copy A_tile_here[i];  A_tile_here[i] += 64

needs: flat, simple offsets, and no branch around an access. leaves: the same places; a place of a shared tile may count
from the start of its slot, past its first row. pinned last: earlier passes speak of rows, columns and names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import count

from tilewright.dtypes import I32
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import ZERO, Binary, Const, Expr, Load, Op, Ref, Var, binary
from tilewright.ir.kernel import PART_OF_K, SIZES
from tilewright.ir.ranges import Bounds, Interval, interval
from tilewright.ir.stmt import Alloc, Assign, Body, CommitCopies, For, If, Let, LoadMatrices, Move, Stmt
from tilewright.ir.visit import (
    exprs_of,
    rebuild,
    simplify,
    sub_exprs,
    substitute,
    sum_of,
    terms_of,
    variables,
    walk,
)
from tilewright.problem.gemm import LEADING

PARAMETERS = frozenset({*LEADING, PART_OF_K.name, *(size.name for size in SIZES.values())})
"""What the caller gives, by the names of `Kernel.parameters`."""


MOST_POINTERS = 8
"""That move on with a loop: each takes two registers of a thread that has some 60 beside its sums and fragments."""


def hoist_offsets(body: Body, bounds: Bounds) -> Body:
    """`body` with the offsets of each steady state that loads fragments from a ring split in two.

    Where it runs for several tiles, what it copies from is found by pointers that move on with it, so that a copy takes
    one addition.
    """
    known = dict(bounds)
    result: list[Stmt] = []
    for stmt in body:
        if not isinstance(stmt, For):
            result.append(stmt)
        elif stmt.steady is not None:
            hoisted, inside = _hoisted(stmt, known, moves_on=stmt.steady.moves_on)
            result += [*hoisted.before, replace(stmt, body=_behind_copies(inside, hoisted.behind))]
        else:
            result.append(replace(stmt, body=hoist_offsets(stmt.body, bounds)))
    return tuple(result)


def _hoisted(loop: For, bounds: dict[str, Interval], *, moves_on: bool) -> tuple[_Hoisted, Body]:
    """What stands in front of a loop, and its body.

    Unrolled loops of different lengths may need the same values: a copy in parts of 6 and of 10 steps. How many entries
    an array needs is known when all of the loop has been seen, so the loop is rewritten until none needs more.
    """
    entries: dict[Expr | tuple[Buffer, Expr], int] = {}
    while True:
        known = dict(entries)
        hoisted = _Hoisted(loop, bounds, moves_on, entries)
        body = hoisted.rewritten(loop.body, {}, {})
        if entries == known:
            return hoisted, body


def _behind_copies(body: Body, moved: list[Stmt]) -> Body:
    """A turn of a loop with its pointers moved on as soon as its last copy is started."""
    last = max(i for i, stmt in enumerate(body) if i == 0 or isinstance(stmt, CommitCopies))
    return (*body[: last + 1], *moved, *body[last + 1 :]) if moved else body


@dataclass
class _Hoisted:
    """The names that stand in front of one loop, and the loop's statements in terms of them.

    entries: of the array for a value, or for the pointers into a buffer that begin at it; grows with what is needed.
    behind: what moves pointers on, at the end of each turn.
    """

    loop: For
    bounds: dict[str, Interval]
    has_pointers: bool
    entries: dict[Expr | tuple[Buffer, Expr], int]
    before: list[Stmt] = field(default_factory=list)
    behind: list[Stmt] = field(default_factory=list)
    pointers: list[Buffer] = field(default_factory=list)
    pointed: dict[tuple[Buffer, Expr], Expr] = field(default_factory=dict)
    made: dict[Expr, Expr] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)

    def rewritten(self, body: Body, values: Mapping[str, Expr], inner: Mapping[str, int]) -> Body:
        """`values`: the `Let`s around, written out. inner: the unrolled loops around, with their counts."""
        values, result = dict(values), list[Stmt]()
        for stmt in body:
            match stmt:
                case Let():
                    values[stmt.name] = substitute(stmt.value, values)
                    result.append(stmt)
                case For(extent=Const() as extent, unroll=True):
                    within = {**inner, stmt.var: int(extent.value)}
                    result.append(replace(stmt, body=self.rewritten(stmt.body, values, within)))
                case If():
                    then = self.rewritten(stmt.then, values, inner)
                    result.append(replace(stmt, then=then, otherwise=self.rewritten(stmt.otherwise, values, inner)))
                case LoadMatrices():
                    result.append(replace(stmt, src=self._place(stmt.src, stmt.origin, values, inner)))
                case Move():
                    found = self._pointed if self.has_pointers and stmt.asynchronous else self._place
                    src = found(stmt.src, stmt.origin, values, inner)
                    result.append(replace(stmt, dst=self._place(stmt.dst, stmt.origin, values, inner), src=src))
                case _:
                    result.append(stmt)
        return _without_idle_names(tuple(result))

    def _place(self, place: Ref, origin: str, values: Mapping[str, Expr], inner: Mapping[str, int]) -> Ref:
        if place.buffer.space is Space.REGISTER:
            return place
        is_shared = place.buffer.space is Space.SHARED
        ranges = {**self.bounds, **{name: Interval(0, last - 1) for name, last in inner.items()}}
        if is_shared:
            *slot, row, column = (substitute(index, dict(values)) for index in place.index)
            offset = row * place.buffer.shape[-1] + column
        else:
            *slot, offset = (substitute(index, dict(values)) for index in place.index)
        terms = terms_of(simplify(_remainders(offset), ranges))
        if self.has_pointers:
            terms = [part for term in terms for part in terms_of(_above_xor(term, ranges))]
        moving = {self.loop.var, *(carried.name for carried in self.loop.carried)}
        # Counts of unrolled loops and kernel parameters are the same for all threads.
        own = [t for t in terms if variables(t) - set(inner) - PARAMETERS and not variables(t) & moving]
        rest = [t for t in terms if t not in own]
        counted = [name for name in inner if any(name in variables(term) for term in own)]
        if not own or len(counted) > 1 or offset.dtype is not I32:
            return place
        name = f"{origin}_{'at' if is_shared else 'from'}"
        base = self._named(name, simplify(sum_of(own), ranges), {name: inner[name] for name in counted})
        moved = sum_of([base, *rest])
        return Ref(place.buffer, (*slot, ZERO, moved) if is_shared else (*slot, moved))

    def _pointed(self, place: Ref, origin: str, values: Mapping[str, Expr], inner: Mapping[str, int]) -> Ref:
        """A place in global memory by a pointer that moves on: only constants are added to it."""
        offset = substitute(place.index[-1], dict(values))
        ranges = {**self.bounds, **{name: Interval(0, last - 1) for name, last in inner.items()}}
        terms = terms_of(simplify(_remainders(offset), ranges))
        added = [term for term in terms if variables(term) <= set(inner)]
        based = [term for term in terms if term not in added]
        moving = [term for term in based if self.loop.var in variables(term)]
        strides = [_factor(term, self.loop.var) for term in moving]
        counted = {name: inner[name] for name in inner if any(name in variables(term) for term in based)}
        if offset.dtype is not I32 or len(place.index) > 1 or len(counted) > 1 or None in strides:
            return self._place(place, origin, values, inner)
        begin = [simplify(term, ranges) for term in based if term not in moving]
        near = [term for term in begin if variables(term) <= PARAMETERS]
        own = simplify(sum_of([term for term in begin if term not in near]), ranges)
        stride = simplify(sum_of([stride for stride in strides if stride is not None]), ranges)
        pointers = sum(int(buffer.shape[0]) for buffer in self.pointers)
        if (place.buffer, own) in self.pointed and near and pointers + max(counted.values(), default=1) > MOST_POINTERS:
            self._needed((place.buffer, own), counted)
            pointer, added = self.pointed[place.buffer, own], [*near, *added]
        else:
            start = simplify(sum_of([own, *near]), ranges)
            pointer = self._pointer(f"{origin}_here", place.buffer, start, stride, counted)
        return Ref(place.buffer, (sum_of([pointer, *added]),))

    def _pointer(self, name: str, into: Buffer, start: Expr, stride: Expr, counted: Mapping[str, int]) -> Expr:
        """The pointer that begins at `start` and moves by `stride`; one for each turn of an unrolled loop."""
        turns = self._needed((into, start), counted)
        if (into, start) in self.pointed:
            return self.pointed[into, start]
        name = self._free(name)
        turn = next(iter(counted), "")
        pointers = Buffer(name, Space.REGISTER, I32, (turns,), (turn,) if turn else (), offsets_into=into)
        index: Expr = Var(turn) if turn else ZERO
        here = Load(pointers, (index,))
        begin: Stmt = Assign(Ref(pointers, (index,)), start, origin=name)
        move: Stmt = Assign(Ref(pointers, (index,)), here + stride, origin=name)
        if turn:
            begin, move = (For(turn, Const(turns), (stmt,), unroll=True) for stmt in (begin, move))
        self.pointers.append(pointers)
        self.before += [Alloc(pointers), begin]
        self.behind.append(move)
        self.pointed[into, start] = here
        return here

    def _needed(self, key: Expr | tuple[Buffer, Expr], counted: Mapping[str, int]) -> int:
        """The entries of an array that is read in all turns of an unrolled loop, or was found to be read in more."""
        self.entries[key] = max(self.entries.get(key, 1), *counted.values(), 1)
        return self.entries[key]

    def _free(self, name: str) -> str:
        """A name that nothing else has."""
        name = next(n for i in count(1) if (n := name if i == 1 else f"{name}_{i}") not in self.names)
        self.names.add(name)
        return name

    def _named(self, name: str, value: Expr, counted: Mapping[str, int]) -> Expr:
        """What stands for `value`: a name, or an entry for each turn of the unrolled loop that it depends on."""
        turns = self._needed(value, counted)
        if value in self.made:
            return self.made[value]
        name = self._free(name)
        if not counted:
            self.before.append(Let(name, value))
            self.made[value] = Var(name)
        else:
            (turn,) = counted
            entries = Buffer(name, Space.REGISTER, I32, (turns,), (turn,))
            fill = Assign(Ref(entries, (Var(turn),)), value, origin=name)
            self.before += [Alloc(entries), For(turn, Const(turns), (fill,), unroll=True)]
            self.made[value] = Load(entries, (Var(turn),))
        return self.made[value]


def _without_idle_names(body: Body) -> Body:
    """`body` without the `Let`s that nothing in it reads any more."""
    kept: list[Stmt] = []
    needed: set[str] = set()
    for stmt in reversed(body):
        if isinstance(stmt, Let) and stmt.name not in needed:
            continue
        for _, part in walk((stmt,)):
            for expr in exprs_of(part):
                needed |= variables(expr)
        kept.append(stmt)
    return tuple(reversed(kept))


def _remainders(expr: Expr) -> Expr:
    """`x & 7` as `x % 8` and shifts as factors, which `simplify` takes apart; of values of at least 0 all the same."""
    parts = tuple(_remainders(part) for part in sub_exprs(expr))
    plain = rebuild(expr, parts)
    if isinstance(plain, Binary) and plain.op is Op.AND and isinstance(plain.b, Const):
        above = int(plain.b.value) + 1
        if above & (above - 1) == 0:
            return binary(Op.MOD, plain.a, above)
    if isinstance(plain, Binary) and plain.op is Op.SHL and isinstance(plain.b, Const):
        return plain.a * (1 << int(plain.b.value))
    if isinstance(plain, Binary) and plain.op is Op.SHR and isinstance(plain.b, Const):
        return plain.a // (1 << int(plain.b.value))
    return plain


def _above_xor(expr: Expr, ranges: Bounds) -> Expr:
    """`(64 * i + a) ^ b` as `64 * i + (a ^ b)`, where a and b are less than 64."""
    if not isinstance(expr, Binary) or expr.op is not Op.XOR:
        return expr
    high = interval(expr.b, ranges).high
    if high is None:
        return expr
    above = 1 << int(high).bit_length()
    terms = terms_of(expr.a)
    multiples = [term for term in terms if _is_multiple(term, above)]
    rest = simplify(sum_of([term for term in terms if term not in multiples]), ranges)
    found = interval(rest, ranges)
    if not multiples or found.low is None or found.low < 0 or found.high is None or found.high >= above:
        return expr
    return sum_of([*multiples, binary(Op.XOR, rest, expr.b)])


def _is_multiple(term: Expr, of: int) -> bool:
    if isinstance(term, Binary) and term.op is Op.MUL:
        return _is_multiple(term.a, of) or _is_multiple(term.b, of)
    return isinstance(term, Const) and int(term.value) % of == 0


def _factor(term: Expr, name: str) -> Expr | None:
    """What a variable is multiplied by in a product; None where the term is not a product with it once."""
    if term == Var(name):
        return Const(1)
    if isinstance(term, Binary) and term.op is Op.MUL:
        for one, other in ((term.a, term.b), (term.b, term.a)):
            if name in variables(one) and name not in variables(other):
                inner = _factor(one, name)
                return None if inner is None else inner * other
    return None
