"""Drawn kernels of loops, branches, registers, shared and global memory, and what they mean, one thread after another.

A kernel is written out as a Python function of one thread, which stops at each barrier: as long as no two threads
conflict, any order of threads gives what the kernel means. Every access is put down, so that conflicts, places beyond
a buffer and elements that nobody wrote are found by looking at all of them. Nothing of it is the simulator's.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations, product
from random import Random
from typing import Any

from simulated_kernels import A, B, C, at, kernel, registers, shared

from tilewright.dtypes import F32, I32
from tilewright.ir.buffer import Space
from tilewright.ir.expr import (
    ONE,
    Binary,
    Cast,
    Const,
    Expr,
    Fma,
    Load,
    Lookup,
    Op,
    Ref,
    Select,
    Var,
    as_expr,
    both,
    real,
)
from tilewright.ir.kernel import Kernel
from tilewright.ir.stmt import Alloc, Assign, Barrier, Body, Carried, For, If, Let, Move, Stmt

SIDE = 24
SIZE = SIDE * SIDE
"""Elements of each matrix."""

SHARED = shared("tile", 16, 6)
BLOCK, GRID = (20, 2, 1), (2, 1, 2)
THREADS = 40
LINEAR = Var("threadIdx.y") * 20 + Var("threadIdx.x")
NUMBER = (Var("blockIdx.z") * 2 + Var("blockIdx.x")) * THREADS + LINEAR
SUMS, WORDS, OTHERS = registers("sums", 3, 2), registers("words", 4, dtype=I32), registers("others", 4)
MOST = 1 << 22
"""Sums stay below this, so that f32 holds them exactly."""


class Drawing:
    """Draws the statements of one kernel. names: integers that may be used, those of loops in `turns`."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.count = 0
        self.careless = seed % 3 == 0

    def kernel(self) -> Kernel:
        body: list[Stmt] = [
            Let("t", LINEAR),
            Let("g", NUMBER),
            *(Alloc(SUMS), Alloc(WORDS), Alloc(OTHERS)),
            *(Assign(at(SUMS, i, j), real(i - j)) for i, j in product(range(3), range(2))),
            *(Assign(at(WORDS, i), Binary(Op.ADD, Var("t"), Const(i))) for i in range(4)),
            *self._filled(),
        ]
        body += self.statements(("t", "g"), (), depth=0, uniform=True, count=self.random.randint(4, 7))
        body += [
            For(
                "last",
                as_expr(3),
                (Move(Ref(C, (Var("g") * 3 + Var("last"),)), at(SUMS, Var("last"), 1), origin="C"),),
                unroll=True,
            )
        ]
        grid = (Const(GRID[0]), ONE, Const(GRID[2]))
        return kernel(tuple(body), grid=grid, block=BLOCK, shared_buffers=(SHARED,))

    def _filled(self) -> Body:
        """Loads for all of OTHERS, and all of the tile written."""
        if self.random.random() < 0.1:
            return ()
        place = Var("row") * THREADS + Var("t")
        store = Move(at(SHARED, place // 6, place % 6), at(OTHERS, Var("row")), guard=Binary(Op.LT, place, Const(96)))
        fill = For("row", as_expr(3), (store,), unroll=True)
        return Move(at(OTHERS), Ref(A, (Var("t") * 4,)), 4), fill, Barrier()

    def name(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def statements(
        self, names: tuple[str, ...], turns: tuple[str, ...], depth: int, *, uniform: bool, count: int
    ) -> list[Stmt]:
        """uniform: all threads come here, so that they may meet."""
        found: list[Stmt] = []
        for _ in range(count):
            kind = self.random.choice(["let", "assign", "assign", "load", "tile", "tile", "word", "if", "for", "meet"])
            match kind:
                case "let":
                    name = self.name("n")
                    found.append(Let(name, self.integer(names, turns)))
                    names = (*names, name)
                case "assign":
                    found.append(self.assign(turns))
                case "word":
                    value = Binary(Op.MOD, self.integer(names, turns), Const(self.random.randint(2, 90)))
                    found.append(Assign(at(WORDS, self.element(turns, 4)), value))
                case "load":
                    found.append(self.load(names, turns))
                case "tile":
                    found += self.tile(names, turns, uniform=uniform)
                case "if" if depth < 2:
                    condition = self.condition(names, turns)
                    then, otherwise = (
                        tuple(self.statements(names, turns, depth + 1, uniform=False, count=self.random.randint(0, 2)))
                        for _ in range(2)
                    )
                    found.append(If(condition, then, otherwise))
                case "for" if depth < 2:
                    found.append(self.loop(names, turns, depth, uniform=uniform))
                case "meet" if uniform:
                    found.append(Barrier())
                case _:
                    pass
        return found

    def loop(self, names: tuple[str, ...], turns: tuple[str, ...], depth: int, *, uniform: bool) -> For:
        var, extent = self.name("i"), as_expr(self.random.choice([0, 1, 2, 3, 3, 4]))
        if self.random.random() < 0.3:  # blocks that run together go round unequally often
            extent = extent + self.random.choice([Var("blockIdx.x"), Var("blockIdx.z") * 2])
        carried: tuple[Carried, ...] = ()
        inner = names
        if self.random.random() < 0.3:
            stage = self.name("s")
            carried = (Carried.cyclic(stage, Const(self.random.randint(0, 1)), self.random.randint(2, 3)),)
            inner = (*names, stage)
        body = self.statements(inner, (*turns, var), depth + 1, uniform=uniform, count=self.random.randint(1, 3))
        return For(var, extent, tuple(body), unroll=self.random.random() < 0.5, carried=carried)

    def integer(self, names: tuple[str, ...], turns: tuple[str, ...], depth: int = 0) -> Expr:
        """At least 0 and below some thousands."""
        kind = self.random.random()
        if depth > 2 or kind < 0.35:
            leaves: list[Expr] = [Var(name) for name in (*names, *turns)]
            return self.random.choice([*leaves, *leaves, Const(self.random.randint(0, 9))])
        if kind < 0.42:
            index = self.element(turns, 4)
            return Load(WORDS, (index,))
        a = self.integer(names, turns, depth + 1)
        b: Expr = Const(self.random.randint(1, 8))
        match self.random.choice(["+", "*", "/", "%", "<<", ">>", "&", "^", "min", "max", "?", "table"]):
            case "+":
                return Binary(Op.ADD, a, self.integer(names, turns, depth + 1))
            case "*":
                return Binary(Op.MUL, Binary(Op.MOD, a, Const(40)), b)
            case "/":
                return Binary(Op.DIV, a, b)
            case "%":
                return Binary(Op.MOD, a, b)
            case "<<":
                return Binary(Op.SHL, Binary(Op.MOD, a, Const(16)), Const(self.random.randint(0, 2)))
            case ">>":
                return Binary(Op.SHR, a, Const(self.random.randint(0, 3)))
            case "&":
                return Binary(Op.AND, a, self.integer(names, turns, depth + 1))
            case "^":
                return Binary(Op.XOR, a, self.integer(names, turns, depth + 1))
            case "min" | "max" as which:
                op = Op.MIN if which == "min" else Op.MAX
                return Binary(op, a, self.integer(names, turns, depth + 1))
            case "?":
                return Select(self.condition(names, turns, depth + 1), a, b)
            case _:
                return Lookup((7, 0, 5, 2, 11), Binary(Op.MOD, a, Const(5)))

    def condition(self, names: tuple[str, ...], turns: tuple[str, ...], depth: int = 1) -> Expr:
        op = self.random.choice([Op.LT, Op.LE, Op.GE, Op.EQ, Op.NE, Op.LT])
        one = Binary(op, self.integer(names, turns, depth), Const(self.random.choice([0, 1, 2, 5, 13, 20, 33, 70])))
        if self.random.random() < 0.2:
            return both(one, self.condition(names, turns, depth))
        return one

    def element(self, turns: tuple[str, ...], extent: int) -> Expr:
        """A place in registers: the same for all threads, and known to the compiler."""
        if turns and self.random.random() < 0.6:
            return Binary(Op.MOD, Var(self.random.choice(turns)) + self.random.randint(0, 3), Const(extent))
        return Const(self.random.randrange(extent))

    def sum_place(self, turns: tuple[str, ...]) -> Ref:
        return at(SUMS, self.element(turns, 3), self.element(turns, 2))

    def number(self, turns: tuple[str, ...], depth: int = 0) -> Expr:
        kind = self.random.random()
        if depth > 1 or kind < 0.4:
            place = self.sum_place(turns) if self.random.random() < 0.4 else at(OTHERS, self.element(turns, 4))
            return Load(place.buffer, place.index)
        a, b = self.number(turns, depth + 1), self.number(turns, depth + 1)
        match self.random.choice(["+", "-", "min", "max", "?", "cast"]):
            case "+":
                return Binary(Op.ADD, a, b)
            case "-":
                return Binary(Op.SUB, a, real(self.random.randint(-3, 3)))
            case "min":
                return Binary(Op.MIN, a, b)
            case "max":
                return Binary(Op.MAX, a, real(0))
            case "?":
                return Select(Binary(Op.LT, a, real(1)), a, b)
            case _:
                return Cast(F32, Load(WORDS, (self.element(turns, 4),)))

    def assign(self, turns: tuple[str, ...]) -> Assign:
        place = self.sum_place(turns)
        a, b = (Load(OTHERS, (self.element(turns, 4),)) for _ in range(2))
        if self.random.random() < 0.5:
            return Assign(place, Fma(a, Binary(Op.MIN, b, real(3)), Load(place.buffer, place.index)), origin="sum")
        return Assign(place, self.number(turns))

    def load(self, names: tuple[str, ...], turns: tuple[str, ...]) -> Move:
        width = self.random.choice([1, 1, 2, 4])
        offset = Binary(Op.MUL, Binary(Op.MOD, self.integer(names, turns), Const(SIZE // width)), Const(width))
        if self.careless and self.random.random() < 0.3:
            further = [Const(1), Const(SIZE - 40), *(Var(turn) for turn in turns)]
            offset = offset + self.random.choice(further)
        guard = self.condition(names, turns) if self.random.random() < 0.4 else None
        source = Ref(self.random.choice([A, B]), (offset,))
        return Move(at(OTHERS, 0 if width == 4 else self.element_of(turns, width)), source, width, guard)

    def element_of(self, turns: tuple[str, ...], width: int) -> Expr:
        return Binary(Op.MUL, self.element(turns, 4 // width), Const(width)) if width > 1 else self.element(turns, 4)

    def tile(self, names: tuple[str, ...], turns: tuple[str, ...], *, uniform: bool) -> list[Stmt]:
        """A load from the tile, or a store to it, mostly between barriers and to a place of the thread's own."""
        guard = self.condition(names, turns) if self.random.random() < 0.3 else None
        if self.random.random() < 0.5:
            width = self.random.choice([1, 2])
            row, pair = self.integer(names, turns) % 16, self.integer(names, turns) % (6 // width) * width
            if self.careless and self.random.random() < 0.1:
                row = row + 3
            load = Move(at(OTHERS, self.element_of(turns, width)), at(SHARED, row, pair), width, guard)
            return [Barrier(), load, Barrier()] if uniform and self.random.random() < 0.8 else [load]
        own = Var("t") * 2 + self.random.choice([0, 1, 0, 16])
        place = own if self.random.random() < 0.8 else self.integer(names, turns) % 96
        store = Move(at(SHARED, place // 6, place % 6), at(OTHERS, self.element(turns, 4)), 1, guard)
        return [store, Barrier()] if uniform and self.random.random() < 0.8 else [store]


# -- what it means -----------------------------------------------------------------------------------------------------

_SIGNS = {Op.DIV: "//", Op.LAND: "and", Op.LOR: "or"}


def text(expr: Expr) -> str:
    """An expression of one thread in Python; sums are exact."""
    match expr:
        case Const():
            return repr(expr.value)
        case Var():
            return expr.name.replace(".", "_")
        case Cast():
            return text(expr.value)
        case Select():
            return f"({text(expr.a)} if {text(expr.condition)} else {text(expr.b)})"
        case Lookup():
            return f"{expr.table}[{text(expr.index)}]"
        case Load():
            return f"own.get({expr.buffer.name!r}, {flat(Ref(expr.buffer, expr.index))})"
        case Fma():
            return f"({text(expr.a)} * {text(expr.b)} + {text(expr.c)})"
        case Binary(op=Op.MIN | Op.MAX):
            return f"{expr.op.text}({text(expr.a)}, {text(expr.b)})"
        case Binary():
            return f"({text(expr.a)} {_SIGNS.get(expr.op, expr.op.text)} {text(expr.b)})"
    raise AssertionError(expr)


def flat(place: Ref) -> str:
    steps = place.buffer.strides if place.buffer.space is not Space.GLOBAL else (1,)
    return " + ".join(f"{text(part)} * {step}" for part, step in zip(place.index, steps, strict=True))


def lines_of(body: Body, indent: str, turns: str = "") -> Iterator[str]:
    """turns: the variables of the loops around."""
    yield f"{indent}pass"
    for stmt in body:
        match stmt:
            case Let():
                yield f"{indent}{stmt.name} = {text(stmt.value)}"
            case Alloc():
                yield f"{indent}own.declare({stmt.buffer.name!r}, {stmt.buffer.elements})"
            case Assign():
                yield f"{indent}own.put({stmt.dst.buffer.name!r}, {flat(stmt.dst)}, {text(stmt.value)})"
            case Barrier():
                yield f"{indent}yield"
            case If():
                yield f"{indent}if {text(stmt.condition)}:"
                yield from lines_of(stmt.then, indent + " ", turns)
                yield f"{indent}else:"
                yield from lines_of(stmt.otherwise, indent + " ", turns)
            case For():
                for one in stmt.carried:
                    yield f"{indent}{one.name} = {text(one.start)}"
                yield f"{indent}for {stmt.var} in range({text(stmt.extent)}):"
                yield from lines_of(stmt.body, indent + " ", f"{turns}{stmt.var}, ")
                for one in stmt.carried:
                    yield f"{indent} {one.name} = {text(one.next)}"
            case Move():
                guard = "True" if stmt.guard is None else text(stmt.guard)
                for name, place in (("to", stmt.dst), ("source", stmt.src)):
                    yield f"{indent}{name} = {flat(place)}"
                names = f"{stmt.dst.buffer.name!r}, to, {stmt.src.buffer.name!r}, source, {stmt.width}"
                what = "store" if stmt.src.buffer.space is Space.REGISTER else "load"
                yield f"{indent}own.execution = ({id(stmt)}, {turns})"
                yield f"{indent}own.{what}({names}, {guard})"
            case _:
                raise AssertionError(stmt)


Request = list[range]
"""The bytes that each lane of a warp touches in one execution of an access."""


@dataclass
class Meaning:
    """What a kernel does. broken: kinds of findings that it must have. c: the elements of C that were stored. largest:
    of all values. requests: of loads and stores of each space, by statement, turns of loops, block and warp."""

    broken: set[str] = field(default_factory=set)
    c: dict[int, float] = field(default_factory=dict)
    largest: float = 0.0
    requests: dict[tuple[Space, str], dict[tuple[Any, ...], Request]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )

    def counts(self, space: Space, what: str) -> dict[str, int]:
        """What counters say of loads or stores."""
        every = self.requests[space, what].values()
        moved = [[byte for lane in one for byte in lane] for one in every if one]

        def distinct(unit: int) -> int:
            return sum(len({byte // unit for byte in one}) for one in moved)

        found = {"instructions": len(every), "requests": len(moved), "bytes_asked": sum(map(len, moved))}
        found["lanes"] = sum(len(one) for one in every)
        if space is Space.GLOBAL:
            return found | {"bytes_used": distinct(1), "sectors": distinct(32), "cache_lines": distinct(128)}
        if what == "stores":  # all of them of single elements: the most words of a bank
            words = [{byte // 4 for byte in one} for one in moved]
            found["wavefronts"] = sum(max(Counter(word % 32 for word in one).values()) for one in words)
        return found


class OwnState:
    """The registers of a thread, and its way to memory."""

    def __init__(self, whole: Whole, block: int, thread: int) -> None:
        self.whole, self.block, self.thread = whole, block, thread
        self.registers: dict[str, dict[int, Any]] = {}
        self.epoch = 0
        self.execution: tuple[int, ...] = ()

    def declare(self, name: str, elements: int) -> None:
        self.registers[name] = dict.fromkeys(range(elements))

    def get(self, name: str, element: int) -> Any:
        value = self.registers[name][element]
        if value is None:
            self.whole.meaning.broken.add("UNWRITTEN")
            return 0
        return value

    def put(self, name: str, element: int, value: Any) -> None:
        self.whole.meaning.largest = max(self.whole.meaning.largest, abs(value))
        self.registers[name][element] = value

    def load(self, to_name: str, to: int, name: str, source: int, width: int, guard: Any) -> None:
        self.request(name, "loads", source, width, guard)
        if guard:
            self.whole.reach(name, source, width)
        for step in range(width):
            value = self.whole.read(self, name, source + step) if guard else 0
            self.registers[to_name][to + step] = value

    def store(self, name: str, to: int, own: str, source: int, width: int, guard: Any) -> None:
        self.request(name, "stores", to, width, guard)
        if not guard:
            return
        self.whole.reach(name, to, width)
        for step in range(width):
            self.whole.write(self, name, to + step, self.get(own, source + step))

    def request(self, name: str, what: str, element: int, width: int, guard: Any) -> None:
        space = Space.SHARED if name == SHARED.name else Space.GLOBAL
        lanes = self.whole.meaning.requests[space, what][(*self.execution, self.block, self.thread // 32)]
        if guard:
            lanes.append(range(element * 4, (element + width) * 4))


class Whole:
    """Memory of the grid, with all that was done to each element."""

    def __init__(self, matrices: Mapping[str, Any]) -> None:
        self.matrices = matrices
        self.meaning = Meaning()
        self.tiles: dict[int, dict[int, Any]] = defaultdict(dict)
        self.done: dict[tuple[str, int, int], list[tuple[int, int, int, bool, Any]]] = defaultdict(list)

    def reach(self, name: str, element: int, width: int) -> None:
        elements = SHARED.elements if name == SHARED.name else SIZE
        if not 0 <= element <= elements - width:
            self.meaning.broken.add("OUT_OF_BOUNDS")
        if element % width:
            self.meaning.broken.add("MISALIGNED")

    def read(self, own: OwnState, name: str, element: int) -> Any:
        if name != SHARED.name:
            return float(self.matrices[name][element % SIZE])
        self.put_down(own, name, element, store=False, value=None)
        if element not in self.tiles[own.block] and 0 <= element < SHARED.elements:
            self.meaning.broken.add("UNWRITTEN")
        return self.tiles[own.block].get(element, 0)

    def write(self, own: OwnState, name: str, element: int, value: Any) -> None:
        self.put_down(own, name, element, store=True, value=value)
        (self.tiles[own.block] if name == SHARED.name else self.meaning.c)[element] = value

    def put_down(self, own: OwnState, name: str, element: int, *, store: bool, value: Any) -> None:
        block = own.block if name == SHARED.name else -1
        self.done[name, block, element].append((own.block, own.thread, own.epoch, store, value))

    def conflicts(self) -> set[str]:
        found = set()
        for those in self.done.values():
            for one, other in combinations(dict.fromkeys(those), 2):
                if one[:2] == other[:2] or not (one[3] or other[3]):
                    continue
                if one[0] != other[0] or one[2] == other[2]:
                    found.add("SAME_VALUE" if one[3] and other[3] and one[4] == other[4] else "RACE")
        return found


def meaning_of(made: Kernel, matrices: Mapping[str, Any]) -> Meaning:
    """What a kernel does to C, element by element."""
    whole = Whole(matrices)
    names = "own, blockIdx_x, blockIdx_z, threadIdx_x, threadIdx_y"
    source = "\n".join([f"def thread({names}):", *lines_of(made.body, " "), " yield"])
    scope: dict[str, Any] = {}
    exec(compile(source, "<drawn>", "exec"), scope)
    for z, x in product(range(GRID[2]), range(GRID[0])):
        block = z * GRID[0] + x
        owns = [OwnState(whole, block, number) for number in range(THREADS)]
        running = [scope["thread"](own, x, z, own.thread % 20, own.thread // 20) for own in owns]
        ended = 0
        while ended < THREADS:
            for own, thread in zip(owns, running, strict=True):
                ended += next(thread, thread) is thread
                own.epoch += 1
    whole.meaning.broken |= whole.conflicts()
    return whole.meaning
