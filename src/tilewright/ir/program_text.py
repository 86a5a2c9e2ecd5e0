"""A program as text: the nest with its declarations where they take effect. Printed after any step."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.ir.accumulators import accumulator_of
from tilewright.ir.buffer import Space
from tilewright.ir.clusters import readers
from tilewright.ir.program import Axis, Level, Loop, Program, RasterOrder, Route, Staged
from tilewright.ir.register_budgets import register_budgets
from tilewright.ir.tiles import Tile, source_of, tile_of
from tilewright.problem.gemm import Dim, OperandName, Order, Product

_SIZE: dict[Dim, str] = {"m": "M", "n": "N", "k": "K"}


def program_text(program: Program) -> str:
    """The program, ending in a newline.

    >>> from tilewright.ir.program import naive_program
    >>> from tilewright.problem.gemm import Gemm
    >>> print(program_text(naive_program(Gemm(8, 8, 8))))
    C[m, n] = alpha * sum_k A[m, k] * B[k, n] + beta * C[m, n]    f32, A and B and C row-major
    for m in M:
      for n in N:
        C[m, n] = beta * C[m, n]
        for k in K:
          C[m, n] += alpha * A[m, k] * B[k, n]
    <BLANKLINE>
    """
    return "\n".join(_Writer(program).lines()) + "\n"


def _terms(axes: tuple[Axis, ...]) -> str:
    parts = [axis.name if axis.stride == 1 else f"{axis.name}*{axis.stride}" for axis in axes]
    return " + ".join(parts) or "0"


def _extent(axis: Axis) -> str:
    if axis.extent is not None:
        return str(axis.extent)
    return _SIZE[axis.dim] if axis.stride == 1 else f"{_SIZE[axis.dim]}/{axis.stride}"


@dataclass
class _Writer:
    program: Program
    out: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        program = self.program
        self.out = [self._headline()]
        dims: tuple[Dim, ...] = ("m", "n", "k")
        for dim in (dim for dim in dims if len(program.axes_of(dim)) > 1):
            self.out.append(f"  {dim} = {_terms(program.axes_of(dim))}")
        depth = 0
        for loop in (*program.grid_loops, *program.thread_loops):
            self._line(depth, self._loop(loop))
            depth += 1
        if program.raster is not None:
            in_groups = program.raster.order in (RasterOrder.GROUPED, RasterOrder.SERPENTINE)
            unit = "rows a group" if in_groups else "columns a panel"
            group = f", {program.raster.group} {unit}" if program.raster.group > 1 else ""
            back = ", every other tile of a block from the end of k" if program.raster.alternating_k else ""
            self._line(0, f"blocks visit tiles in {program.raster.order.value} order{group}{back}")
        for sentence in self._blocks_and_roles():
            self._line(0, sentence)
        for loop in (*program.grid_loops, *program.thread_loops):
            self._copies(loop, depth)
        self._nest(program.thread_serial_loops, depth)
        return self.out

    def _line(self, depth: int, text: str) -> None:
        self.out.append("  " * depth + text)

    def _headline(self) -> str:
        gemm = self.program.gemm
        groups: dict[Order, list[str]] = {}
        for operand in gemm.operands:
            groups.setdefault(operand.order, []).append(operand.name)
        major = {Order.ROW: "row-major", Order.COL: "column-major"}
        orders = ", ".join(f"{' and '.join(names)} {major[order]}" for order, names in groups.items())
        value = gemm.formula(indexed=True)
        return f"C[m, n] = {value}    {gemm.dtype.name}, {orders}"

    def _loop(self, loop: Loop) -> str:
        digits = " * ".join(_extent(axis) for axis in loop.axes)
        fused = "" if len(loop.axes) == 1 else f" = ({', '.join(axis.name for axis in loop.axes)})"
        if loop.level is not None:
            return f"{loop.level.value}: {loop.name} in {digits}{fused}"
        room = f" with the registers of {loop.blocks} blocks an SM" if loop.blocks else ""
        manner = (" unrolled" + room if loop.unroll else "") + (", forward and backward" if loop.turning else "")
        return f"for {loop.name}{fused} in {digits}{manner}:"

    def _blocks_and_roles(self) -> list[str]:
        """How blocks start and stay, and what their warpgroups are for, a line each."""
        program, roles = self.program, self.program.specialized
        lines = []
        if program.clustered is not None:
            loops = [(name, size, program.loop(name).is_reduction) for name, size in program.clustered.loops]
            along = " and ".join(f"{size} neighbours along {name}" for name, size, shared in loops if not shared)
            lines += [f"{along} are a cluster"] if along else []
            lines += [
                f"the {size} blocks of a cluster share out {name} and add up" for name, size, shared in loops if shared
            ]
        if program.persistent:
            lines.append("persistent: no more blocks are started than run at once, each computes several tiles")
        if roles is not None:
            copying, multiplying = register_budgets(program)
            ping_pong = f", {roles.ping_pong} of them in ping-pong, each on a tile of C" if roles.ping_pong > 1 else ""
            each = f"with {copying} registers a thread; the others multiply, with {multiplying}"
            lines.append(f"one warpgroup copies, {each}{ping_pong}")
        if program.overlapped:
            lines.append("starts while the kernels before it end")
        return lines

    def _nest(self, loops: tuple[Loop, ...], depth: int) -> None:
        program = self.program
        if not loops:
            for product in program.gemm.products:
                self._line(depth, self._multiply_add(product))
            return
        loop, rest = loops[0], loops[1:]
        total = program.accumulation
        starts = total is not None and loop.name == total.over
        if total is not None and starts:
            sizes = ", ".join(f"{axis.name} {axis.extent}" for axis in program.sum_axes)
            start = "0" if program.late_beta else "beta * C[m, n]"
            self._line(depth, f"{total.name}[{sizes}] = {start}    in registers")
        if total is None and loop.is_reduction and not self._has_outer_reduction(loop):
            self._line(depth, "C[m, n] = beta * C[m, n]")
        virtual = f"    {Level.VTHREAD.value}" if loop.level is Level.VTHREAD else ""
        self._line(depth, (f"for {loop.name} in {loop.extent}:" if virtual else self._loop(loop)) + virtual)
        self._copies(loop, depth + 1)
        self._nest(rest, depth + 1)
        self._promote(loop, depth + 1)
        if total is not None and starts:
            self._finish(depth)

    def _promote(self, loop: Loop, depth: int) -> None:
        kept = accumulator_of(self.program)
        promotion = kept.promotion
        if promotion is not None and promotion.loop == loop.name:
            iterations = f", {promotion.iterations} iterations" if promotion.iterations > 1 else ""
            when = f"every {promotion.every} of k{iterations}; {kept.group} starts anew"
            self._line(depth, f"{kept.name} += {kept.group}    in {kept.result_dtype}, {when}")

    def _has_outer_reduction(self, loop: Loop) -> bool:
        outer = self.program.loops[: self.program.position(loop.name)]
        return any(other.is_reduction for other in outer)

    def _copies(self, loop: Loop, depth: int) -> None:
        for operand in self.program.gemm.factors:
            for staged in self.program.chain(operand):
                if staged.under == loop.name:
                    self._line(depth, self._copy(staged))

    def _copy(self, staged: Staged) -> str:
        tile = tile_of(self.program, staged)
        source = source_of(self.program, staged)
        index = ", ".join(self.program.gemm.operand(staged.operand).dims)
        origin = staged.operand if source is None else source.name
        return f"{self._tile(tile)} <- {origin}[{index}]    {', '.join(self._manner(tile))}"

    def _tile(self, tile: Tile) -> str:
        if tile.staged.space is Space.REGISTER:
            return f"{tile.staged.name}[{', '.join(f'{a.name} {a.extent}' for a in tile.register_axes)}]"
        slow, fast = tile.spans[tile.major], tile.spans[tile.minor]
        return f"{tile.staged.name}[{slow.dim} {slow.extent}, {fast.dim} {fast.extent}]"

    def _manner(self, tile: Tile) -> list[str]:
        staged = tile.staged
        if staged.space is Space.REGISTER:
            place = ", each in place of the one that is done" if staged.in_place else ""
            early = [f"one step ahead{place}"] if staged.prefetched else []
            return ["in registers", *early, *([f"{staged.vector} at once"] if staged.vector > 1 else [])]
        words = ["in shared memory"]
        if tile.is_transposed:
            words.append("transposed")
        if staged.pad:
            words.append(f"rows padded by {staged.pad}")
        if staged.arrangement is not None:
            words.append(staged.arrangement.text)
        if tile.slots > 1:
            words.append(f"{tile.slots} stages")
        if staged.route is not Route.REGISTERS:
            words.append(f"by {self._way(staged)}")
        ring = self.program.pipelined
        if ring is not None and ring.loop == staged.under and ring.interleave:
            distance = f", behind {ring.issue_distance} iteration(s) of its MMAs" if ring.issue_distance else ""
            words.append(f"a part in each {ring.interleave}{distance}")
        if staged.prefetched:
            words.append("the next one loaded early" + (", in front of a fence" if staged.fenced else ""))
        if staged.route is Route.TMA or staged.finished:
            words.append(self._asked_for(staged))
        elif staged.distribution is None:
            words.append("all of it by every thread")
        else:
            vector = f", {staged.distribution.vector} at once" if staged.distribution.vector > 1 else ""
            row = f", {staged.distribution.row_threads} along a row" if staged.distribution.row_threads else ""
            guards = ", guarded by a thread's own row" if staged.distribution.thread_guards else ""
            manner = f"{staged.distribution.pattern.value}{row}{vector}{guards}"
            words.append(f"by {self.program.threads_per_block} threads, {manner}")
        return words

    @staticmethod
    def _way(staged: Staged) -> str:
        return "stmatrix" if staged.finished and staged.route is Route.MATRICES else staged.route.value

    def _asked_for(self, staged: Staged) -> str:
        """Who asks TMA for a tile, or for how much of it; who stores a result."""
        if staged.operand == "C":
            columns = self.program.subtile_columns(staged)
            several = self.program.subtile_count(staged) > 1
            return f"in subtiles of {columns} columns by each warpgroup" if several else "by each warpgroup"
        count = readers(self.program, staged.operand)
        if count > 1:
            return f"a part by each of {count} blocks, for all of them"
        return "asked for by the warpgroup that copies" if self.program.specialized else "asked for by one thread"

    def _operand(self, name: OperandName) -> str:
        chain = self.program.chain(name)
        rows, cols = self.program.gemm.operand(name).dims
        if chain and chain[-1].space is Space.REGISTER:
            return f"{chain[-1].name}[{', '.join(a.name for a in tile_of(self.program, chain[-1]).register_axes)}]"
        return f"{chain[-1].name if chain else name}[{rows}, {cols}]"

    def _multiply_add(self, product: Product) -> str:
        program = self.program
        factor = "" if program.late_alpha else "alpha * "
        instruction = program.tensorized.instruction if program.tensorized is not None else None
        sign = "*" if instruction is None else "@"
        term = f"{factor}{self._operand(product.a)} {sign} {self._operand(product.b)}"
        by = "" if instruction is None else f"    {instruction.name}{', rows along n' if program.is_turned else ''}"
        if program.accumulation is None:
            return f"C[m, n] += {term}{by}"
        several = (str(product.into),) if program.gemm.accumulators > 1 else ()
        index = ", ".join((*several, *(axis.name for axis in program.sum_axes)))
        return f"{accumulator_of(program).group}[{index}] += {term}{by}"

    def _finish(self, depth: int) -> None:
        program = self.program
        assert program.accumulation is not None
        name = program.accumulation.name
        staged = program.staged_result
        if staged is not None:
            tile = tile_of(program, staged)
            self._line(depth, f"{self._tile(tile)} <- {name}    {', '.join(self._manner(tile))}")
            name = f"{staged.name}[m, n]"
        factor = "alpha * " if program.late_alpha else ""
        plus = " + beta * C[m, n]" if program.late_beta else ""
        vector = f"    {program.result_vector} at once" if program.result_vector > 1 else ""
        self._line(depth, f"C[m, n] = {factor}{name}{plus}{vector}")
