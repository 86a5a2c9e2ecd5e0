"""From a kernel to a program of the simulated machine: names become slots and cells, statements become operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tilewright.errors import SimulationError
from tilewright.ir.async_stmt import (
    AsyncStmt,
    ClusterBarrier,
    StoreMatrices,
    TeamBarrier,
    WaitBarrier,
    WaitFlag,
    Wgmma,
    WgmmaWait,
)
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import ZERO, Const, Expr, Load, Ref, Var
from tilewright.ir.kernel import BUILTINS, Kernel
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
from tilewright.ir.visit import Path, exprs_of, walk, walk_expr
from tilewright.layout.fragment import MATRIX_ROW_BYTES, QUAD_LANES, WORD_BYTES
from tilewright.problem.weight_codes import FRAGMENT_CODES, unpacked_exponent
from tilewright.simulator.assigns import AllocOp, ReadOp, RoundPairOp, UnpackCodesOp, assign_op, copy_ops
from tilewright.simulator.asynchronous.compile import TELLING, WAITING, Compiler
from tilewright.simulator.asynchronous.meeting_ops import UniformCheckOp
from tilewright.simulator.collective import (
    LoadMatricesOp,
    MultiplyTilesOp,
    QuadTransposeOp,
    ShuffleAddOp,
    StoreMatricesOp,
)
from tilewright.simulator.context import Context
from tilewright.simulator.control import (
    BarrierStep,
    BranchBegin,
    BranchElse,
    BranchEnd,
    Condition,
    Counter,
    IfOp,
    Instruction,
    LoopBegin,
    LoopNext,
    LoopOp,
    LoopTest,
    Operation,
    Straight,
    Telling,
    observed,
    observed_step,
)
from tilewright.simulator.convoy import Convoy
from tilewright.simulator.findings import Site, Sites
from tilewright.simulator.index import (
    Cells,
    Place,
    Predicate,
    Scope,
    Uniform,
    is_natural,
    is_uniform,
    resolve,
    slot_var,
    uniform,
)
from tilewright.simulator.launch import odd
from tilewright.simulator.moves import AsyncCopyOp, CommitOp, LoadOp, MemorySide, StoreOp, WaitOp
from tilewright.simulator.naturals import NaturalCheck, divided, natural_checks
from tilewright.simulator.opaque_tiles import (
    LoadTileOp,
    StoreTileOp,
    load_access,
    operand_fragment,
    store_access,
    tile_sides,
)
from tilewright.simulator.values import NotEven, Values
from tilewright.simulator.warps import Warps


@dataclass(slots=True)
class Program:
    """A translated kernel: what `Machine` runs."""

    code: list[Instruction]
    slots: int
    registers: int
    cells: int

    def convoy(self, warps: Warps) -> Convoy:
        """These warps at the first instruction."""
        return Convoy(warps, self.slots, self.registers, self.cells)


def translate(
    kernel: Kernel, sites: Sites, context: Context, constants: Mapping[str, Expr], grid: tuple[int, int, int]
) -> Program:
    """The program of a kernel. constants: the value of each scalar argument; other names are coordinates.

    grid: the blocks that are launched. Where the context has a journal, warps can also stop before what others may be
    waiting for.
    """
    translator = _Translator(sites, context)
    scope = {name: _coordinate(kernel, name, grid) for name in BUILTINS} | dict(constants)
    scope |= odd(kernel, context.memory.base_of)
    translator.emit(kernel.body, (), Scope(scope))
    return Program(translator.code, translator.slots, translator.registers, translator.cells.count)


def _coordinate(kernel: Kernel, name: str, grid: tuple[int, int, int]) -> Expr:
    """A built-in; 0 along an axis of length 1."""
    vector, axis = name.split(".")
    which = "xyz".index(axis)
    if vector == "threadIdx":
        return ZERO if kernel.block[which] == 1 else Var(name)
    if vector == "gridDim":
        return Const(grid[which])
    return ZERO if grid[which] == 1 else Var(name)


class _Translator:
    def __init__(self, sites: Sites, context: Context) -> None:
        self.code: list[Instruction] = []
        self.slots = 0
        self.registers = 0
        self.cells = Cells()
        self._sites = sites
        self._context = context
        self._stops = (Barrier, *WAITING) if context.journal is None else (Barrier, *WAITING, *TELLING)

    def emit(self, body: Body, path: Path, names: Scope) -> None:
        """Instructions for `body`, appended to the code."""
        straight: list[Operation] = []

        def flush() -> None:
            if straight:
                self.code.append(Straight(tuple(straight)))
                straight.clear()

        for index, stmt in enumerate(body):
            here = (*path, index)
            if isinstance(stmt, (Let, Alloc)):
                names = self._declare(stmt, here, names, straight)
            elif any(isinstance(inner, self._stops) for _, inner in walk((stmt,))):
                straight += self._checks(stmt, here, names)
                flush()
                self._emit_waiting(stmt, here, names)
            else:
                straight += self._statement(stmt, here, names)
        flush()

    def _emit_waiting(self, stmt: Stmt, path: Path, names: Scope) -> None:
        site = self._sites.add(path, stmt, names.loops)
        match stmt:
            case Barrier():
                self._append(site, BarrierStep(site, self._context))
            case For():
                slot, (extent, varies) = self._slot(), self._extent(stmt, names)
                test = LoopTest(site, self._context, slot, extent, varies)
                inside, counters = self._counters(stmt, names, slot)
                self.code += [LoopBegin(slot, counters), test]
                at = len(self.code) - 1
                self.emit(stmt.body, path, inside)
                self.code.append(LoopNext(slot, at, counters))
                test.exit = len(self.code)
            case If():
                begin, middle = BranchBegin(self._condition(site, stmt, names)), BranchElse()
                self.code.append(begin)
                self.emit(stmt.then, (*path, 0), names)
                begin.otherwise = len(self.code)
                self.code.append(middle)
                self.emit(stmt.otherwise, (*path, 1), names)
                middle.end = len(self.code)
                self.code.append(BranchEnd())
            case WaitBarrier() | WaitFlag() | TeamBarrier() | ClusterBarrier() | Wgmma() | WgmmaWait():
                self._append(site, Compiler(self._values(site, names)).instruction(stmt))
            case _:
                assert isinstance(stmt, TELLING), f"{type(stmt).__name__} does not wait"
                self._append(site, Telling((Compiler(self._values(site, names)).operation(stmt),)))

    def _body(self, body: Body, path: Path, names: Scope) -> tuple[Operation, ...]:
        """Operations for a body in which nothing waits."""
        operations: list[Operation] = []
        for index, stmt in enumerate(body):
            here = (*path, index)
            if isinstance(stmt, (Let, Alloc)):
                names = self._declare(stmt, here, names, operations)
            else:
                operations += self._statement(stmt, here, names)
        return tuple(operations)

    def _checks(self, stmt: Stmt, path: Path, names: Scope) -> list[Operation]:
        """Checks of what a statement is made of, before it is executed."""
        return [*self._reads(stmt, path, names), *self._naturals(stmt, path, names)]

    def _naturals(self, stmt: Stmt, path: Path, names: Scope) -> list[NaturalCheck]:
        place = partial(self._sites.place, path, stmt, names.loops)
        return natural_checks(stmt, place, self._context, self.cells, names)

    def _reads(self, stmt: Stmt, path: Path, names: Scope) -> list[Operation]:
        """Checks of the registers that indices, guards and conditions are made of."""
        loads = {part for expr in exprs_of(stmt) for part in walk_expr(expr) if isinstance(part, Load)}
        if isinstance(stmt, Assign):
            loads = {load for load in loads if not load.dtype.is_float}  # the assignment checks the others itself
        if not loads:
            return []
        values = self._values(self._sites.place(path, stmt, names.loops), names)
        return [ReadOp(values.view(Ref(load.buffer, load.index))) for load in sorted(loads, key=str)]

    def _append(self, site: Site, instruction: Instruction) -> None:
        self.code.append(observed_step(instruction, self._context.observer, site))

    def _statement(self, stmt: Stmt, path: Path, names: Scope) -> Sequence[Operation]:
        """The operations of a statement, which tell an observer that it is executed; those of its bodies do."""
        operations = [*self._checks(stmt, path, names), *self._operations(stmt, path, names)]
        if isinstance(stmt, (For, If)):
            return operations
        return observed(operations, self._context.observer, lambda: self._sites.place(path, stmt, names.loops))

    def _operations(self, stmt: Stmt, path: Path, names: Scope) -> list[Operation]:
        match stmt:
            case Move(asynchronous=True):
                return [self._copy(stmt, path, names)]
            case SyncWarp():  # lanes run in step
                return []
            case CommitCopies():
                return [CommitOp()]
            case WaitCopies():
                return [WaitOp(self._context, stmt.pending)]
            case For():
                return self._nest(stmt, path, names) or [self._loop(stmt, path, names)]
            case If():
                condition = self._condition(self._sites.add(path, stmt, names.loops), stmt, names)
                then = self._body(stmt.then, (*path, 0), names)
                return [IfOp(condition, then, self._body(stmt.otherwise, (*path, 1), names))]
            case _:
                return self._at_one_site(stmt, self._values(self._sites.add(path, stmt, names.loops), names))

    def _at_one_site(self, stmt: Stmt, values: Values) -> list[Operation]:
        here = values.site, self._context
        match stmt:
            case Assign():
                return [assign_op(stmt, values)]
            case Move():
                return self._move(stmt, values)
            case LoadMatrices():
                size = stmt.src.buffer.dtype.bytes
                source = _side(values, stmt.src, MATRIX_ROW_BYTES // size)
                target = values.run(stmt.dst, stmt.count * WORD_BYTES // size)
                return [LoadMatricesOp(self._context, source, target, stmt.count, stmt.transposed)]
            case StoreMatrices():
                size = stmt.dst.buffer.dtype.bytes
                into = _side(values, stmt.dst, MATRIX_ROW_BYTES // size, is_store=True)
                held = values.run(stmt.src, stmt.count * WORD_BYTES // size)
                return [StoreMatricesOp(self._context, into, held, stmt.count, stmt.transposed)]
            case LoadFragment() | StoreFragment():
                return [self._tile(stmt, values)]
            case RoundPair():
                return [RoundPairOp(*here, (values.view(stmt.first), values.view(stmt.second)), stmt.dtype)]
            case UnpackCodes():
                words = values.run(stmt.src, FRAGMENT_CODES // stmt.codes.per_word)
                numbers = values.run(stmt.dst, FRAGMENT_CODES)
                exponent = unpacked_exponent(stmt.codes, stmt.dst.buffer.dtype)
                return [UnpackCodesOp(*here, stmt.codes, numbers, words, exponent)]
            case QuadTranspose():
                size = stmt.place.buffer.dtype.bytes
                return [QuadTransposeOp(*here, values.run(stmt.place, QUAD_LANES * WORD_BYTES // size), size)]
            case ShuffleAdd():
                other = None if stmt.other is None else values.view(stmt.other)
                return [ShuffleAddOp(*here, values.view(stmt.place), stmt, other)]
            case MultiplyTiles():
                return [self._multiply(stmt, values)]
            case _:
                assert isinstance(stmt, AsyncStmt), f"{type(stmt).__name__} is not an operation"
                return [Compiler(values).operation(stmt)]

    def _loop(self, stmt: For, path: Path, names: Scope) -> LoopOp:
        site = self._sites.add(path, stmt, names.loops)
        slot, (extent, varies) = self._slot(), self._extent(stmt, names)
        inside, counters = self._counters(stmt, names, slot)
        return LoopOp(site, self._context, slot, extent, varies, self._body(stmt.body, path, inside), counters)

    def _counters(self, stmt: For, names: Scope, slot: int) -> tuple[Scope, tuple[Counter, ...]]:
        """What is visible inside a loop, and what it carries along."""
        inside = names.with_loop(stmt.var, slot)
        slots = [self._slot() for _ in stmt.carried]
        for carried, own in zip(stmt.carried, slots, strict=True):
            inside = inside.with_name(carried.name, slot_var(own))
        counters = [
            Counter(own, self._shared(carried.start, names), self._shared(carried.next, inside))
            for carried, own in zip(stmt.carried, slots, strict=True)
        ]
        return inside, tuple(counters)

    def _shared(self, expr: Expr, names: Scope) -> Uniform:
        """An integer on which all lanes agree."""
        resolved = resolve(expr, names)
        if not is_uniform(resolved):
            raise SimulationError("What a loop carries along must be the same in every thread.")
        return uniform(resolved)

    def _nest(self, stmt: For, path: Path, names: Scope) -> list[Operation]:
        """A nest of loops around one assignment as one operation; empty where it has to be run step by step.

        Loops that do not move the result (a sum along k) stay loops around it: every element still sees its
        iterations in order.
        """
        loops: list[tuple[For, Path]] = []
        inner: Stmt = stmt
        while isinstance(inner, For) and len(inner.body) == 1 and isinstance(inner.extent, Const) and not inner.carried:
            loops.append((inner, path))
            inner, path = inner.body[0], (*path, 0)
        if not isinstance(inner, Assign) or any(_length(loop) < 1 for loop, _ in loops):
            return []
        around, axes, inside = [], {}, names
        moving = {part.name for position in inner.dst.index for part in walk_expr(position) if isinstance(part, Var)}
        for loop, at in loops:
            slot = self._slot()
            inside = inside.with_loop(loop.var, slot)
            if loop.var in moving:
                axes[slot_var(slot).name] = _length(loop)
            else:
                around.append((loop, at, slot))
        if any(not is_natural(resolve(operand, inside)) for operand, _ in divided(inner)):
            return []
        site = self._sites.add(path, inner, inside.loops)
        try:
            operation: Operation = assign_op(inner, replace(self._values(site, inside), axes=axes))
        except NotEven:
            self._sites.all.pop()
            return []
        walked = (*names.loops, *((loop.var, slot) for loop, _, slot in around))
        own = [*self._reads(inner, path, inside), operation]
        operations = list(observed(own, self._context.observer, lambda: self._sites.place(path, inner, walked)))
        for loop, at, slot in reversed(around):
            outer = self._sites.add(at, loop, names.loops)
            extent = self.cells.place(loop.extent)
            operations = [LoopOp(outer, self._context, slot, extent, False, tuple(operations))]
        return operations

    def _move(self, stmt: Move, values: Values) -> list[Operation]:
        spaces = stmt.dst.buffer.space, stmt.src.buffer.space
        if spaces == (Space.REGISTER, Space.REGISTER):
            return list(copy_ops(stmt, values))
        is_store = stmt.src.buffer.space is Space.REGISTER
        memory, register = (stmt.dst, stmt.src) if is_store else (stmt.src, stmt.dst)
        if register.buffer.space is not Space.REGISTER:
            raise SimulationError(
                "A Move that is not asynchronous has one side in registers.",
                place=f"line {values.site.line}: {values.site.text}",
                hint="load, then store.",
            )
        guard = None if stmt.guard is None else values.condition(stmt.guard)
        first, kind, width = values.view(register), StoreOp if is_store else LoadOp, stmt.width
        where = memory.buffer, values.place(memory.flat), width, guard, is_store, width
        return [kind(values.site, self._context, *where, first.array, first.base)]

    def _tile(self, stmt: LoadFragment | StoreFragment, values: Values) -> LoadTileOp | StoreTileOp:
        is_store = isinstance(stmt, StoreFragment)
        if isinstance(stmt, StoreFragment):
            memory, register, fragment = stmt.dst, stmt.src, stmt.instruction.c
            access = store_access(stmt.instruction, stmt.order)
        else:
            memory, register = stmt.src, stmt.dst
            fragment = operand_fragment(stmt.instruction, stmt.role)
            access = load_access(stmt.instruction, stmt.role, stmt.order)
        side = _side(values, memory, access.width, is_store=is_store)
        sides = tile_sides(side, access, stmt.leading)
        view = values.run(register, fragment.registers)
        kind = StoreTileOp if is_store else LoadTileOp
        return kind(self._context, side.place, access, access.holding(), sides, fragment, view, stmt.leading)

    def _multiply(self, stmt: MultiplyTiles, values: Values) -> MultiplyTilesOp:
        instruction = stmt.instruction
        assert instruction.a is not None and instruction.b is not None
        pairs = (stmt.d, instruction.c), (stmt.a, instruction.a), (stmt.b, instruction.b)
        d, a, b = (values.run(ref, fragment.numbered) for ref, fragment in pairs)
        return MultiplyTilesOp(values.site, self._context, instruction, d, a, b)

    def _copy(self, stmt: Move, path: Path, names: Scope) -> AsyncCopyOp:
        read, written = (
            self._values(self._sites.add(path, stmt, names.loops, ref.buffer), names) for ref in (stmt.src, stmt.dst)
        )
        guard = None if stmt.guard is None else read.condition(stmt.guard)
        valid = None if stmt.valid is None else read.place(stmt.valid)
        source = _side(read, stmt.src, stmt.width, guard)
        target = _side(written, stmt.dst, stmt.width, is_store=True)
        source.checked_width = stmt.width if valid is None else 1
        return AsyncCopyOp(self._context, source, target, valid)

    def _declare(self, stmt: Let | Alloc, path: Path, names: Scope, operations: list[Operation]) -> Scope:
        """What is visible from here on. A named value that is read from registers gets a register of its own."""
        if isinstance(stmt, Alloc):
            operations.append(AllocOp(self._context, self.registers, stmt.buffer))
            self.registers += 1
            return names.with_registers(stmt.buffer.name, self.registers - 1)
        operations += self._naturals(stmt, path, names)
        reads_registers = any(isinstance(part, Load) for part in walk_expr(stmt.value))
        if not stmt.value.dtype.is_float and not reads_registers:
            value = resolve(stmt.value, names)
            if stmt.uniform and not is_uniform(value):
                site = self._sites.add(path, stmt, names.loops)
                operations.append(UniformCheckOp(site, self._context, stmt.name, self.cells.place(value)))
            return names.with_name(stmt.name, self.cells.let(resolve(stmt.value, names)))
        held = Buffer(stmt.name, Space.REGISTER, stmt.value.dtype, (1,))
        names = self._declare(Alloc(held), path, names, operations)
        operations += self._reads(stmt, path, names)
        site = self._sites.add(path, stmt, names.loops)
        operations.append(assign_op(Assign(Ref(held, (ZERO,)), stmt.value), self._values(site, names)))
        if stmt.value.dtype.is_float:
            return names.with_name(stmt.name, Load(held, (ZERO,)))
        # An integer is read where names are resolved already: its register goes by its number.
        numbered = resolve(Load(held, (ZERO,)), names)
        return names.with_registers(str(self.registers - 1), self.registers - 1).with_name(stmt.name, numbered)

    def _values(self, site: Site, names: Scope) -> Values:
        return Values(site, self._context, self.cells, names, {})

    def _condition(self, site: Site, stmt: If, names: Scope) -> Condition:
        return Condition(site, self._context, self.cells.predicate(resolve(stmt.condition, names)))

    def _extent(self, stmt: For, names: Scope) -> tuple[Place, bool]:
        """The number of iterations, and whether blocks differ in it."""
        extent = resolve(stmt.extent, names)
        return self.cells.place(extent), not is_uniform(extent)

    def _slot(self) -> int:
        self.slots += 1
        return self.slots - 1


def _side(
    values: Values, ref: Ref, width: int, guard: Predicate | None = None, *, is_store: bool = False
) -> MemorySide:
    """The side of an access that is in memory."""
    place = values.place(ref.flat)
    return MemorySide(values.site, values.context, ref.buffer, place, width, guard, is_store, width)


def _length(loop: For) -> int:
    assert isinstance(loop.extent, Const)
    return int(loop.extent.value)
