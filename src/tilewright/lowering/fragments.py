"""The operands of a matrix instruction: fragments loaded into registers, and the instruction on them.

Three ways to load, by what the program says: whole tiles (opaque fragments), matrices of eight rows (ldmatrix), or each
lane its own elements.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.errors import LoweringError
from tilewright.ir.expr import HERE, ZERO, Cast, Const, Env, Expr, Load, Ref, Var
from tilewright.ir.program import Program, Route, Staged
from tilewright.ir.stmt import (
    Assign,
    Body,
    For,
    Let,
    LoadFragment,
    LoadMatrices,
    Move,
    MultiplyTiles,
    RoundPair,
    StoreFragment,
)
from tilewright.ir.tiles import FRAGMENT, Tile, source_of, tile_of
from tilewright.layout.fragment import MATRIX_ROWS, Fragment, Holder
from tilewright.lowering.coordinates import index_of, lane_of
from tilewright.lowering.kernel_parts import Steps, every, global_place, over_digits
from tilewright.lowering.sums import Sums
from tilewright.problem.gemm import Order, Product


def fragment_steps(program: Program, tile: Tile, env: Env) -> Steps:
    """Steps that load the fragments of a register tile; they are still to be rounded (`round_fragments`)."""
    assert tile.fragment is not None
    axes = tile.register_axes
    counts = [(axis.name, axis.name, axis.extent or 1, 1) for axis in axes]
    fragment = tile.fragment
    load: Callable[[Env], Body]
    if fragment.opaque:
        load = lambda at: (_load_opaque(program, tile, at),)  # noqa: E731
    elif tile.staged.route is Route.MATRICES:
        together = max(1, tile.staged.vector // _matrices(tile, fragment))
        if together > 1:
            last = axes[-1]
            counts[-1] = (last.name, f"{last.name}_vec", (last.extent or 1) // together, together)
        counts = [each for each in counts if each[2] > 1 or each[3] == 1]
        env = env if together == 1 or (axes[-1].extent or 1) > together else env.at(**{axes[-1].name: ZERO})
        load = lambda at: _load_matrices(program, tile, fragment, at, is_inside=bool(counts))  # noqa: E731
    else:
        load = lambda at: _load_by_lane(program, tile, fragment, at)  # noqa: E731
    return _nested(counts, env, load)


def _nested(counts: list[tuple[str, str, int, int]], env: Env, load: Callable[[Env], Body]) -> Steps:
    """What `load` makes at each value of each of these digits: (digit, loop, count, values that one load covers)."""
    if not counts:
        return Steps("", 1, lambda _: load(env), looped=False)
    (digit, loop, count, together), *inner = counts

    def step(number: Expr) -> Body:
        return _nested(inner, env.at(**{digit: number * together}), load).whole()

    return Steps(loop, count, step)


def round_fragments(program: Program, tile: Tile, env: Env) -> Body:
    """Statements that round the fragments of a register tile where the problem asks for it.

    They stand in front of the products, not behind the loads: fragments that are loaded a step ahead are then rounded
    when they have arrived, and the compiler lays the rounding between the products. What TMA brings it has rounded.
    """
    rounded, source = program.gemm.rounds_to, source_of(program, tile.staged)
    if tile.fragment is None or rounded is None or (source is not None and source.route is Route.TMA):
        return ()
    fragment, name = tile.fragment, tile.staged.name

    def held(register: Expr) -> Ref:
        return Ref(tile.register_buffer, (*tile.register_index(env)[:-1], register))

    if fragment.opaque:  # nobody knows which elements share a row
        place = held(Var(FRAGMENT))
        value = Cast(rounded, Load(place.buffer, place.index))
        rounding: Body = (For(FRAGMENT, Const(fragment.registers), (Assign(place, value, origin=name),), unroll=True),)
    else:
        along = program.gemm.operand(tile.staged.operand).dims.index("k")
        pairs = fragment.pairs(1 if along == 1 else 0)
        rounding = tuple(RoundPair(held(Const(a)), held(Const(b)), rounded, origin=name) for a, b in pairs)
    return over_digits(tile.register_axes, rounding)


def multiply_tiles(program: Program, sums: Sums, env: Env) -> Body:
    """The instructions that add the products of the running fragments to the running sums."""
    return tuple(_multiply(program, sums, env, product) for product in program.gemm.products)


def _multiply(program: Program, sums: Sums, env: Env, product: Product) -> MultiplyTiles:
    assert program.tensorized is not None
    instruction = program.tensorized.instruction
    names = (product.b, product.a) if program.is_turned else (product.a, product.b)
    tiles = [_fragments_of(program, name) for name in names]
    a, b = (Ref(tile.register_buffer, tile.register_index(env)) for tile in tiles)
    orders = None
    if instruction.is_opaque:
        orders = (_order(_parent(program, tiles[0].staged)), _order(_parent(program, tiles[1].staged)))
    d = Ref(sums.group, sums.tile_of(product.into))
    return MultiplyTiles(instruction, d, a, b, orders, origin=sums.name)


def store_opaque(program: Program, sums: Sums, tile: Tile) -> Body:
    """The running fragment of the sum to its place in the shared tile of the result."""
    assert program.tensorized is not None
    corner = {axis.name: ZERO for axis in program.instruction_axes}
    row, col = (span.local_index(HERE.at(**corner)) for span in tile.spans)
    src = Ref(sums.buffer, sums.tile_of(0))
    leading = tile.row_length + tile.staged.pad
    name = tile.staged.name
    return (StoreFragment(tile.at(row, col), src, program.tensorized.instruction, _order(tile), leading, origin=name),)


def _fragments_of(program: Program, name: str) -> Tile:
    return tile_of(program, next(staged for staged in reversed(program.chain(name))))  # type: ignore[arg-type]


def _parent(program: Program, staged: Staged) -> Tile:
    source = source_of(program, staged)
    if source is None:
        raise LoweringError(
            f"{staged.name!r} is loaded from global memory, and its fragments are loaded from shared memory.",
            hint=f"Stage({staged.operand!r}, Space.SHARED, under=...) as well.",
        )
    return tile_of(program, source)


def _order(tile: Tile) -> Order:
    return Order.ROW if tile.minor == 1 else Order.COL


def _load_opaque(program: Program, tile: Tile, env: Env) -> LoadFragment:
    """One fragment, as the tile of shared memory that begins at its first element."""
    assert program.tensorized is not None
    parent = _parent(program, tile.staged)
    corner = {axis.name: ZERO for axis in program.instruction_axes}
    row, col = (span.local_index(env.at(**corner)) for span in parent.spans)
    return LoadFragment(
        Ref(tile.register_buffer, tile.register_index(env)),
        parent.at(row, col, env),
        program.tensorized.instruction,
        "A" if tile.staged.operand == "A" else "B",
        _order(parent),
        parent.row_length + parent.staged.pad,
        origin=tile.staged.name,
    )


def _load_by_lane(program: Program, tile: Tile, fragment: Fragment, env: Env) -> Body:
    """Each lane its own elements, as many neighbours at once as the program says."""
    source = source_of(program, tile.staged)
    held = fragment.element(lane_of(program), Var(FRAGMENT))
    element = env.at(**_digits(program, tile, held))
    if source is None:
        rows, cols = program.gemm.operand(tile.staged.operand).dims
        row, col = index_of(program, rows, element), index_of(program, cols, element)
        place = global_place(program, tile.staged.operand, row, col, env)
    else:
        parent = tile_of(program, source)
        row, col = (span.local_index(element) for span in parent.spans)
        place = parent.at(row, col, env)
    dst = Ref(tile.register_buffer, (*tile.register_index(env)[:-1], Var(FRAGMENT)))
    width = tile.staged.vector
    return every(FRAGMENT, fragment.registers, width, (Move(dst, place, width, origin=tile.staged.name),))


def _matrices(tile: Tile, fragment: Fragment) -> int:
    """Matrices of eight rows of 16 bytes that make up a fragment."""
    return fragment.registers * tile.dtype.bytes // 4


def _load_matrices(program: Program, tile: Tile, fragment: Fragment, env: Env, *, is_inside: bool) -> Body:
    """ldmatrix: each lane names one row of 16 bytes. One instruction may fill several fragments side by side.

    A matrix is eight rows along the index that lane / 4 counts; where the tile in memory runs along that index instead,
    the matrix is read column-major and transposed on the way.
    """
    parent = _parent(program, tile.staged)
    each = _matrices(tile, fragment)
    count = tile.staged.vector if tile.staged.vector > 1 else each
    rows = next(d for d in fragment.digits if d.holder is Holder.LANE and d.extent == MATRIX_ROWS)
    eight = rows.index
    transposed = parent.minor == eight
    matrix, row = lane_of(program) // MATRIX_ROWS % count, lane_of(program) % MATRIX_ROWS
    at: list[Expr] = list(fragment.element(ZERO, matrix % each * (4 // tile.dtype.bytes)))
    along = 1 - eight if transposed else eight
    at[along] = at[along] + row * rows.stride
    digits = _digits(program, tile, (at[0], at[1]))
    if count > each:
        beside = tile.register_axes[-1].name
        digits[beside] = env[beside] + matrix // each
    row, col = (span.local_index(env.at(**digits)) for span in parent.spans)
    body: Body = ()
    if is_inside:  # inside a loop, where names are free
        names = [f"{tile.staged.name}_{span.dim}" for span in parent.spans]
        body = tuple(Let(name, index) for name, index in zip(names, (row, col), strict=True))
        row, col = (Var(name) for name in names)
    fragment_place = Ref(tile.register_buffer, tile.register_index(env))
    name = tile.staged.name
    return (*body, LoadMatrices(fragment_place, parent.at(row, col, env), count, transposed, origin=name))


def _digits(program: Program, tile: Tile, held: tuple[Expr, Expr]) -> dict[str, Expr]:
    """The instruction's digits of the operand's two dimensions, where the lane's element is."""
    dims = program.gemm.operand(tile.staged.operand).dims
    return {axis.name: held[dims.index(axis.dim)] for axis in program.instruction_axes if axis.dim in dims}
