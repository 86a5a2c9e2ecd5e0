"""A `Kernel` as CUDA C++ text."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.artifacts import CudaSource, Parameter
from tilewright.codegen.async_calls import declared
from tilewright.codegen.async_prelude import TENSOR_MAP
from tilewright.codegen.expr import CudaExpr
from tilewright.codegen.lines import WIDTH, Line, rows_of, wrap
from tilewright.codegen.names import Names
from tilewright.codegen.prelude import PASSED_TABLE, prelude_text
from tilewright.codegen.stmt import BodyPrinter, buffer_note
from tilewright.dtypes import I64
from tilewright.ir.async_stmt import SetRegisters, Wgmma
from tilewright.ir.expr import Lookup
from tilewright.ir.guard import GUARD_FLAGS
from tilewright.ir.kernel import PROBLEMS, Kernel
from tilewright.ir.program import GROUP_LANES
from tilewright.ir.register_budgets import REGISTERS_PER_SM
from tilewright.ir.stmt import Move
from tilewright.ir.text import ExprText
from tilewright.ir.visit import Path, exprs_of, walk, walk_expr, written
from tilewright.ir.work import Problems
from tilewright.problem.block_scales import NAMES as BLOCK_SCALES
from tilewright.problem.gemm import Gemm, Operand, Order
from tilewright.problem.problem import PlainProblem, Problem

_PLACEMENT_BYTES = 128
"""The alignment of dynamic shared memory as a whole: enough for every access, TMA included."""


def print_cuda(kernel: Kernel, *, merge: bool = True) -> CudaSource:
    """The kernel as text: no includes, the names of its loops, a header that says what it computes and needs.

    merge False keeps the compiler from merging neighbouring f32 loads from shared memory, so that a counter sees each
    load that the kernel names; slower, and only for holding counts against hardware.
    """
    printed = _printed(kernel, Names(kernel), 'extern "C"', merge=merge)
    return CudaSource(
        "".join([printed.header, "\n", prelude_text(printed.used), printed.tables, printed.function]),
        printed.entry,
        kernel.parameters,
        kernel.threads_per_block,
        kernel.dynamic_shared_bytes,
        kernel.cluster,
        kernel.resident,
        kernel.overlapped,
        must_fit=any(isinstance(stmt, Wgmma) for _, stmt in walk(kernel.body)),
        equal_items=kernel.equal_items,
    )


def cuda_paths(kernel: Kernel) -> tuple[Path | None, ...]:
    """For each line of `print_cuda(kernel).text` the statement that it is of; None for the lines of none."""
    printed = _printed(kernel, Names(kernel), 'extern "C"')
    above = "".join([printed.header, "\n", prelude_text(printed.used), printed.tables, printed.signature])
    return (*(None for _ in above.splitlines()), *(path for _, path in printed.rows), None)


def print_together(kernels: Sequence[Kernel]) -> str:
    """Several kernels as one text for a C++ compiler, seen by that text only: what all call stands once, on top."""
    tables: dict[tuple[int, ...], str] = {}
    printed = []
    for kernel in kernels:
        names = Names(kernel, tables)
        printed.append(_printed(kernel, names, "static"))
        tables |= names.tables
    used = {name for text in printed for name in text.used}
    return prelude_text(used) + "\n".join("".join([text.tables, text.header, text.function]) for text in printed)


@dataclass(frozen=True, slots=True)
class _Printed:
    """The parts of one kernel's text. used: the names of the prelude that it calls. rows: of the body, each with the
    statement that it is of."""

    entry: str
    header: str
    used: frozenset[str]
    tables: str
    signature: str
    rows: list[tuple[str, Path | None]]

    @property
    def function(self) -> str:
        return "".join([self.signature, *(f"{row}\n" for row, _ in self.rows), "}\n"])


def _printed(kernel: Kernel, names: Names, linkage: str, *, merge: bool = True) -> _Printed:
    expr = CudaExpr(names)
    tables = _tables(kernel, names)
    printer = BodyPrinter(names, expr, kernel.body, merge=merge)
    shared = [*_own_problem(kernel, expr), *_shared(kernel, printer), *declared(kernel.body, expr)]
    body = printer.body(kernel.body, depth=1)
    gap = [Line(0, "")] if shared and body else []
    signature = _signature(kernel, names.entry, expr, linkage)
    rows = rows_of([*shared, *gap, *body])
    return _Printed(names.entry, _header(kernel, names.entry), frozenset(expr.used), tables, signature, rows)


def _tables(kernel: Kernel, names: Names) -> str:
    """The tables of constants that the kernel reads, each once, in the narrowest type that holds its entries."""
    exprs = (expr for _, stmt in walk(kernel.body) for expr in exprs_of(stmt))
    found = dict.fromkeys(part.table for expr in exprs for part in walk_expr(expr) if isinstance(part, Lookup))
    return "".join(_table(names.bind_table(table), table) for table in found if table not in names.tables)


def _table(name: str, table: tuple[int, ...]) -> str:
    types = (("unsigned char", 8), ("unsigned short", 16), ("int", 31))
    element = next(narrow for narrow, bits in types if max(table) >> bits == 0)
    entries = ", ".join(str(entry) for entry in table)
    rows = textwrap.fill(entries, WIDTH, initial_indent="    ", subsequent_indent="    ")
    return (
        "// Where each run of columns lies in its row. Not __constant__: different entries would be read in turn.\n"
        f"__device__ const {element} {name}[{len(table)}] = {{\n{rows}\n}};\n\n"
    )


def _shared(kernel: Kernel, printer: BodyPrinter) -> list[Line]:
    """The declarations of the shared buffers: arrays, or references into the one array that a launch sizes."""
    if not kernel.uses_dynamic_shared:
        return [Line(1, f"__shared__ {printer.array(b)}", buffer_note(b)) for b in kernel.shared]
    align_bytes = max(_PLACEMENT_BYTES, *(buffer.align_bytes for buffer in kernel.shared))
    lines = [Line(1, f"extern __shared__ __align__({align_bytes}) unsigned char shared_memory[];")]
    for buffer, offset_bytes in zip(kernel.shared, kernel.shared_offsets, strict=True):
        place = f"shared_memory + {offset_bytes}" if offset_bytes else "shared_memory"
        lines.append(Line(1, printer.view(buffer, place), buffer_note(buffer)))
    return lines


def _own_problem(kernel: Kernel, expr: CudaExpr) -> list[Line]:
    """What the body reads, of the problem that is this block's."""
    if kernel.problems is Problems.LISTED:
        note = "a row of the table for each block along z: addresses, then sizes"
        row = f"{PROBLEMS}.words + {len(kernel.columns)} * blockIdx.z"
        lines = [Line(1, f"const {expr.type(I64)}* problem = {row};", note)]
        stored = _stored(kernel)
        for number, column in enumerate(kernel.columns):
            kind = expr.type(column.dtype)
            if column.is_pointer:
                const = "" if column.name in stored else "const "
                value = f"({const}{kind}*)problem[{number}]"
                lines.append(Line(1, f"{const}{kind}* __restrict__ {column.name} = {value};"))
            else:
                lines.append(Line(1, f"const {kind} {column.name} = {kind}(problem[{number}]);"))
        beyond = " || ".join(
            f"blockIdx.{axis} >= {expr(count)}" for axis, count in zip("xy", kernel.grid, strict=False)
        )
        return [*lines, Line(1, f"if ({beyond}) return;", "the grid is as large as the largest problem's")]
    return []


def _stored(kernel: Kernel) -> frozenset[str]:
    """The names of the matrices that are written, and flags."""
    found = {place.buffer.name for _, stmt in walk(kernel.body) for place in written(stmt)}
    return frozenset(found | {flag.name for flag in kernel.guard_flags})


def _signature(kernel: Kernel, entry: str, expr: CudaExpr, linkage: str) -> str:
    """The head of the function: pointers on one line, sizes and scalars on the next."""
    stored = _stored(kernel)

    def declaration(parameter: Parameter) -> str:
        if parameter.tensor_map is not None:
            return f"const __grid_constant__ {TENSOR_MAP} {parameter.name}"
        if parameter.words:
            expr.used.add(PASSED_TABLE)
            return f"const __grid_constant__ {PASSED_TABLE} {parameter.name}"
        element = expr.type(parameter.dtype)
        if not parameter.is_pointer:
            return f"{element} {parameter.name}"
        if parameter.of_ranks:
            return f"{element}* const* __restrict__ {parameter.name}"
        const = "" if parameter.name in stored else "const "
        # What the kernel before may write while this one has begun is not constant: no load of it may move up.
        is_read = parameter.name in loaded - stored or parameter.name in GUARD_FLAGS
        restrict = "" if kernel.overlapped and is_read else "__restrict__ "
        return f"{const}{element}* {restrict}{parameter.name}"

    loaded = {stmt.src.buffer.name for _, stmt in walk(kernel.body) if isinstance(stmt, Move)}
    parameters = kernel.parameters
    pointers = ", ".join(declaration(p) for p in parameters if p.is_pointer)
    plain = [p for p in parameters if not p.is_pointer and p.tensor_map is None]
    maps = [p for p in parameters if p.tensor_map is not None]
    others = (", ".join(map(declaration, some)) for some in (plain, maps) if some)
    rows = [*((pointers,) if pointers else ()), *others]
    # Budgets of registers that change while a kernel runs need to know how many blocks share those of an SM.
    budgets = [stmt for _, stmt in walk(kernel.body) if isinstance(stmt, SetRegisters)]
    blocks = _blocks_with(budgets, kernel.threads_per_block) if budgets else kernel.blocks
    bounds = f"{kernel.threads_per_block}" + (f", {blocks}" if blocks else "")
    cluster = f"__cluster_dims__({kernel.cluster}, 1, 1) " if kernel.cluster > 1 else ""
    arguments = ",\n".join("\n".join(wrap(row, "    ")) for row in rows)
    return f"{linkage} __global__ void {cluster}__launch_bounds__({bounds})\n{entry}(\n{arguments})\n{{\n"


def _blocks_with(budgets: Sequence[SetRegisters], threads: int) -> int:
    """How many blocks of an SM can have their budgets at a time: one warpgroup shrinks, the others grow."""
    groups = threads // GROUP_LANES
    wanted = sum(stmt.count * (groups - 1 if stmt.grow else 1) for stmt in budgets) * GROUP_LANES
    return 2 if REGISTERS_PER_SM // 2 // threads // 8 * 8 * threads >= wanted else 1


def _header(kernel: Kernel, entry: str) -> str:
    """The comment on top: what is computed, where the kernel comes from, what it assumes and needs."""
    title, matrices = _described(kernel.problem)
    rows = [f"{entry}: {title}", "", *(f"    {line}" for line in matrices)]
    if kernel.heading:
        rows += ["", *(f"    {line}".rstrip() for line in kernel.heading)]
    rows += ["", *_titled("assumes", _assumptions(kernel)), *_titled("launch", _launch(kernel))]
    return "".join(f"{line}\n" for row in rows for line in _commented(row))


def _described(problem: Problem) -> tuple[str, tuple[str, ...]]:
    """What is computed, and a line for each matrix."""
    if isinstance(problem, Gemm):
        title = f"C = {problem.formula()}, accumulated in {problem.accumulate}"
        scales = problem.block_scales
        return title, tuple(
            scales.line(one.name) if scales is not None and one.name in BLOCK_SCALES else operand_line(one, problem)
            for one in problem.matrices
        )
    assert isinstance(problem, PlainProblem), f"no description of a {type(problem).__name__}"
    return problem.title, tuple(f"{one.name}  {one.told}" for one in problem.matrices)


def _commented(row: str) -> list[str]:
    """One row of the header as comment lines; a long one goes on further in."""
    inset = " " * (len(row) - len(row.lstrip()) + 4)
    wrapped = textwrap.wrap(row, WIDTH - len("// "), subsequent_indent=inset)
    return [f"// {line}" for line in wrapped] or ["//"]


def _titled(title: str, rows: list[str]) -> list[str]:
    """Rows beside a title, which stands on the first."""
    return [f"    {'' if index else title:<9}{row}" for index, row in enumerate(rows)]


def operand_line(operand: Operand, gemm: Gemm) -> str:
    """How one operand lies in memory, in one line."""
    if operand.is_single:
        return f"{operand.name}  {operand.dtype}, one number"
    if operand.is_vector:
        each = "column" if operand.contiguous == "n" else "row"
        return f"{operand.name}  {operand.dtype}, one for each {each}"
    rows, columns = (dim.upper() for dim in operand.dims)
    lines = "rows" if operand.order is Order.ROW else "columns"
    unread = "; not read when beta is 0" if operand.name == gemm.epilogue.addend else ""
    return f"{operand.name}  {operand.dtype}, {rows} x {columns}, {lines} {operand.leading} elements apart{unread}"


def _assumptions(kernel: Kernel) -> list[str]:
    """What the variant takes for granted, in words."""
    variant = kernel.variant
    exact = sorted(variant.exact, key="mnk".index)
    words = []
    if exact:
        sizes, tiles = ", ".join(exact).upper(), ", ".join(str(kernel.cluster_tile[dim]) for dim in exact)
        words.append(f"{sizes} multiples of {tiles}")
    if variant.alignment_bytes > 1:
        whose = " of A" if variant.b_bytes else " of A and B" if variant.result_bytes else ""
        words.append(f"pointers and leading dimensions{whose} multiples of {variant.alignment_bytes} bytes")
    if variant.b_bytes > 1:
        words.append(f"those of B multiples of {variant.b_bytes}")
    if variant.result_bytes > 1:
        words.append(f"those of C multiples of {variant.result_bytes}")
    if variant.whole:
        words.append("rows of A and B that end, or go on with zeros, to as many")
    if variant.filled:
        words.append("lines of A and B up to a multiple of the tile")
    if variant.near:
        words.append("offsets below 2^31 elements")
    if variant.overwrites:
        words.append("beta 0: C is not read")
    if variant.guard is not None:
        words.append(f"it runs where {variant.guard.words}")
    return words or ["nothing: any size, any alignment"]


def _launch(kernel: Kernel) -> list[str]:
    grid = ", ".join(ExprText()(extent) for extent in kernel.grid)
    if kernel.problems is Problems.LISTED:
        grid = f"{grid.rpartition(', ')[0]}, one for each problem"
    block = ", ".join(str(extent) for extent in kernel.block)
    dynamic = "dynamic " if kernel.uses_dynamic_shared else ""
    shared = f"{kernel.shared_bytes} bytes of {dynamic}shared memory" if kernel.shared else "no shared memory"
    return [f"grid ({grid}), block ({block})", shared]
