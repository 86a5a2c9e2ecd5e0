"""Shorthands for the statements of a thread, for kernels that are written in the IR directly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tilewright.device.arch import SINCE, Feature
from tilewright.device.spec import DeviceSpec
from tilewright.dtypes import I32, I64, DType
from tilewright.ir.async_stmt import StartNextGrid, WaitPreviousGrid
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import ZERO, Binary, Cast, Const, Expr, ExprLike, Load, Op, Ref, Var, as_expr, binary, both
from tilewright.ir.kernel import MOST_ALONG_Z, WIDEST_BYTES, Kernel, Variant
from tilewright.ir.ranges import NATURAL, Interval, interval
from tilewright.ir.stmt import Alloc, Assign, Barrier, Body, For, If, Let, Move, ShuffleAdd, Stmt
from tilewright.ir.verify import verify
from tilewright.ir.visit import map_exprs, simplify
from tilewright.problem.problem import Problem

THREAD, BLOCK = Var("threadIdx.x"), Var("blockIdx.x")
WARP_LANES = 32

AFTER_PREVIOUS_GRID: Body = (StartNextGrid(), WaitPreviousGrid())
"""How a kernel starts under the one before (programmatic dependent launch), and why that is safe.

Launches of a chain, copy -> product -> reduction -> copy of the next call, each start when every block of the one
before has begun. No thread touches global memory before its own wait, which ends when the grid before has ended and its
writes are visible. That grid had waited likewise, or was launched the plain way, so it ended after the one before it:
by induction all earlier grids have ended, though only the last one is named. So a later kernel sees whatever any
earlier one wrote, and a workspace may be used again by the next call, whose first write stands behind its wait."""


def verified(kernel: Kernel) -> Kernel:
    """The kernel with its index arithmetic simplified; BrokenRule where its body breaks a rule of the language."""
    sizes = {p.name: NATURAL for p in kernel.arguments if not p.dtype.is_float}
    blocks = {f"blockIdx.{axis}": NATURAL for axis in "xyz"}
    body = _simplified(kernel.body, {**sizes, **blocks, THREAD.name: Interval(0, kernel.threads_per_block - 1)})
    verify(body, names=[p.name for p in kernel.parameters if not p.is_pointer], after=kernel.name)
    return replace(kernel, body=body)


def launched(
    name: str,
    problem: Problem,
    aligned_bytes: int,
    grid: tuple[Expr, Expr, Expr],
    threads: int,
    body: Body,
    *,
    shared: tuple[Buffer, ...] = (),
    overlapped: bool,
) -> Kernel:
    """A kernel of offsets of 64 bits, verified. overlapped: it starts under the kernel before (sm_90 and later), whose
    end it waits for."""
    variant = Variant(alignment_bytes=aligned_bytes, near=False)
    body = together(AFTER_PREVIOUS_GRID if overlapped else (), body)
    return verified(Kernel(name, problem, variant, grid, (threads, 1, 1), shared, body, {}, overlapped=overlapped))


def against_overlap(overlapped: bool, spec: DeviceSpec | None) -> tuple[str, ...]:
    """Why a kernel cannot start under the one before on a GPU; empty if it can, or if it does not."""
    if overlapped and spec is not None and spec.compute_capability < SINCE[Feature.DEPENDENT_LAUNCH]:
        return (f"{spec.name} has no programmatic dependent launch",)
    return ()


def widest(element_bytes: int, aligned_bytes: int, *lengths: int, most: int = WIDEST_BYTES) -> int:
    """Elements of the widest access to a line, at most so many: addresses are multiples of `aligned_bytes`, lines of
    `lengths` elements.

    >>> widest(4, 16, 12), widest(2, 16, 12), widest(4, 8, 12, most=4)
    (4, 4, 2)
    """
    widths = (width for width in (16, 8, 4, 2) if width * element_bytes <= WIDEST_BYTES and width <= most)
    whole = (w for w in widths if aligned_bytes % (w * element_bytes) == 0 and not any(size % w for size in lengths))
    return next(whole, 1)


def threads_along(pieces: int, *, least: int = 8, most: int = 256) -> int:
    """Threads of a block that share a line of so many pieces: a power of two.

    >>> threads_along(3), threads_along(33), threads_along(1000)
    (8, 64, 256)
    """
    return min(most, max(least, 1 << max(pieces - 1, 0).bit_length()))


def against_batch(count: int) -> tuple[str, ...]:
    """Why a grid cannot have the matrices of a batch along z; empty if it can."""
    if count > MOST_ALONG_Z:
        return (f"a batch of {count} matrices exceeds the {MOST_ALONG_Z} blocks along z",)
    return ()


def _simplified(body: Body, bounds: dict[str, Interval]) -> Body:
    """Each expression in its simplest form, with what enclosing loops and names say of its variables."""
    result: list[Stmt] = []
    for stmt in body:
        plain = map_exprs(stmt, partial(simplify, bounds=dict(bounds)))
        match plain:
            case Let():
                bounds = {**bounds, plain.name: interval(plain.value, bounds)}
            case For():
                last = int(plain.extent.value) - 1 if isinstance(plain.extent, Const) else None
                plain = replace(plain, body=_simplified(plain.body, {**bounds, plain.var: Interval(0, last)}))
            case If():
                then, otherwise = (_simplified(one, bounds) for one in (plain.then, plain.otherwise))
                plain = replace(plain, then=then, otherwise=otherwise)
            case _:
                pass
        result.append(plain)
    return tuple(result)


def argument(name: str) -> Var:
    """A scalar argument of 32 bits."""
    return Var(name, I32)


def registers(name: str, dtype: DType, *shape: int, note: str = "") -> Buffer:
    """A register buffer."""
    return Buffer(name, Space.REGISTER, dtype, shape, note=note)


def at(buffer: Buffer, *index: ExprLike) -> Ref:
    """A place in registers or shared memory."""
    return Ref(buffer, tuple(as_expr(one) for one in index))


def element_of(name: str, dtype: DType, offset: Expr, base: Expr | None = None) -> Ref:
    """An element of a matrix in global memory. base: where the matrix begins, of several."""
    return Ref(Buffer(name, Space.GLOBAL, dtype, ()), (offset,) if base is None else (base, offset))


def unrolled(var: str, extent: int, make: Callable[[Expr], Stmt | Body]) -> Body:
    """A loop that the compiler writes out; its body alone where there is one iteration. make: the body of an
    iteration, by its number."""
    if extent == 1:
        return together(make(ZERO))
    return (For(var, Const(extent), together(make(Var(var))), unroll=True),)


def together(*parts: Stmt | Body) -> Body:
    """Statements and bodies as one body."""
    found: list[Stmt] = []
    for part in parts:
        found += part if isinstance(part, tuple) else [part]
    return tuple(found)


def below(a: ExprLike, b: ExprLike) -> Expr:
    """`a < b`."""
    return binary(Op.LT, a, b)


def within(line: Expr, column: Expr, prefix: str = "", suffix: str = "") -> Expr:
    """Whether an element is in a matrix of `lines` lines of `length` elements: arguments, so named or with more."""
    return both(below(line, argument(f"{prefix}lines{suffix}")), below(column, argument(f"{prefix}length{suffix}")))


def larger(place: Ref, value: Expr) -> Assign:
    """`place = max(place, value)`."""
    return Assign(place, Binary(Op.MAX, Load(place.buffer, place.index), value))


def over_lanes(place: Ref, lanes: int = WARP_LANES, op: Op = Op.MAX) -> Body:
    """The largest, or the sum, of so many neighbouring lanes, in each of them."""
    masks = [1 << bit for bit in range(lanes.bit_length() - 1)]
    return tuple(ShuffleAdd(place, mask, origin=place.buffer.name, op=op) for mask in masks)


def over_warps(largest: Ref, share: Buffer, shares: Callable[[Expr], Ref], warp: Expr, warps: int) -> Body:
    """The largest of so many warps, in each thread. shares: a place in shared memory for each of them."""

    def more(i: Expr) -> Body:
        return Move(at(share, ZERO), shares(i), origin="shares"), larger(largest, Load(share, (ZERO,)))

    return together(
        Alloc(share),
        If(binary(Op.EQ, THREAD % WARP_LANES, 0), (Move(shares(warp), largest, origin="shares"),)),
        Barrier(note="the largest of every warp is there"),
        unrolled("warp", warps, more),
    )


def least(a: ExprLike, b: ExprLike) -> Expr:
    """`min(a, b)`."""
    return binary(Op.MIN, a, b)


def times(count: Expr, step: str, *, near: bool) -> Expr:
    """`count * step`, an offset in elements: of 64 bits unless 31 are enough (near). step: a scalar argument."""
    return count * Var(step, I32) if near else binary(Op.MUL, Cast(I64, count), Var(step, I64))
