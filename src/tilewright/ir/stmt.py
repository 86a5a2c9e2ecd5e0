"""Statements of a kernel: what one thread does, in order.

Every memory access is one `Move`, every arithmetic one `Assign`; so each line of the printed kernel is one kind of
instruction, and a counter can be laid beside it. `origin` names the declared thing a statement comes from (a staged
tile, the running sum, the result), which is how counts find their way back to the line of the schedule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Union

from tilewright.dtypes import DType
from tilewright.ir.async_stmt import AsyncStmt, Originated
from tilewright.ir.buffer import Buffer
from tilewright.ir.expr import ZERO, Expr, Op, Ref, Select, Var, binary
from tilewright.isa.instruction import MatrixInstruction
from tilewright.problem.gemm import Order
from tilewright.problem.weight_codes import Codes


@dataclass(frozen=True, slots=True)
class Let:
    """`name = value`, constant in the enclosing body.

    uniform: the value is the same in all lanes of a warp, which the compiler is told, as it cannot always see it.
    """

    name: str
    value: Expr
    note: str = ""
    uniform: bool = False


@dataclass(frozen=True, slots=True)
class Carried:
    """An integer that a loop carries along: `start` at first, `next` (which may read it) after each iteration."""

    name: str
    start: Expr
    next: Expr

    @classmethod
    def cyclic(cls, name: str, first: Expr, stages: int) -> Carried:
        """A counter that goes round 0 .. stages - 1."""
        following = Var(name) + 1
        return cls(name, first, Select(binary(Op.EQ, following, stages), ZERO, following))


@dataclass(frozen=True, slots=True)
class Steady:
    """What is known of the steady state of a pipeline: it loads fragments, and no branch stands around an access.

    moves_on: it runs for tile after tile, so that the places that it copies from are worth pointers of their own.
    """

    moves_on: bool = False


@dataclass(frozen=True, slots=True)
class For:
    """`for var in 0 .. extent`. The extent is the same for every thread of the block.

    unroll: written out by the compiler, which a loop that indexes registers needs. rolled: never written out, where
    what the compiler would move in front of it takes too many registers. carried: counters that move on with the loop,
    such as the stage of a ring, which then costs no division; they are the same for every thread. steady: of
    a pipeline's steady state.
    """

    var: str
    extent: Expr
    body: tuple[Stmt, ...]
    unroll: bool = False
    note: str = ""
    carried: tuple[Carried, ...] = ()
    steady: Steady | None = None
    rolled: bool = False


@dataclass(frozen=True, slots=True)
class If:
    """A branch. Threads of a warp may differ.

    rare: hardly ever taken, so that it must cost no more than its condition; the compiler would make a select of each
    register that a short body sets.
    """

    condition: Expr
    then: tuple[Stmt, ...]
    otherwise: tuple[Stmt, ...] = ()
    rare: bool = False


@dataclass(frozen=True, slots=True)
class Alloc:
    """Declares a register buffer in the enclosing body; its elements hold nothing yet."""

    buffer: Buffer


@dataclass(frozen=True, slots=True)
class Move(Originated):
    """`width` consecutive elements from `src` to `dst`: one load or store instruction per thread.

    Exactly one side is in registers, unless the copy is asynchronous. Where `guard` is false a load fills its registers
    with zero and a store does nothing; memory is not touched either way.

    asynchronous: global to shared memory with no register between (cp.async, sm_80). The elements arrive some time
    before the `WaitCopies` that waits for their group; zero fill as for a load. valid: of `width` elements, how many
    are read; the rest are zero (asynchronous copies only).

    settled: its address is a multiple of its bytes whatever its operand's is, and no pass narrows or guards it.

    streaming: a load of global memory that no thread repeats and that this kernel does not write: it is not kept in the
    first-level cache (ld.global.L1::no_allocate).

    predicated: a store of an f32 to global memory whose guard is a predicate and no branch: a compiler does not put off
    what leads to the value, such as a load from shared memory, until it knows that it is stored.
    """

    dst: Ref
    src: Ref
    width: int = 1
    guard: Expr | None = None
    asynchronous: bool = False
    valid: Expr | None = None
    settled: bool = False
    streaming: bool = False
    predicated: bool = False


@dataclass(frozen=True, slots=True)
class Assign(Originated):
    """`dst = value` on registers. An `Fma` whose addend is `dst` is one multiply-add."""

    dst: Ref
    value: Expr


@dataclass(frozen=True, slots=True)
class Barrier(Originated):
    """Every thread of the block waits here for all others; shared memory written before is visible after."""

    note: str = ""


@dataclass(frozen=True, slots=True)
class SyncWarp(Originated):
    """The lanes of a warp meet (__syncwarp). A compiler moves no access of memory from one side to the other."""

    note: str = ""


@dataclass(frozen=True, slots=True)
class CommitCopies(Originated):
    """The asynchronous copies that this thread started since the last commit become one group."""


@dataclass(frozen=True, slots=True)
class WaitCopies(Originated):
    """This thread waits until at most `pending` of its youngest groups have not arrived."""

    pending: int


@dataclass(frozen=True, slots=True)
class LoadMatrices(Originated):
    """ldmatrix: `count` (1, 2 or 4) matrices of 8 rows of 16 bytes from shared memory into a warp's registers.

    src: where a row begins; lane l gives row l % 8 of matrix l / 8. dst: lane l receives of matrix i, as its i-th four
    bytes, those at row l / 4 and the l % 4-th four bytes of that row; transposed (elements of 2 bytes): the elements
    at rows 2 * (l % 4) and the next, column l / 4. All lanes of the warp take part.
    """

    dst: Ref
    src: Ref
    count: int
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class LoadFragment(Originated):
    """wmma.load: the tile whose first element is `src` into an opaque fragment `dst`, by all lanes of a warp.

    role: which operand of the instruction. order: whether rows or columns of the tile are contiguous, `leading`
    elements apart. Every lane gives the same place.
    """

    dst: Ref
    src: Ref
    instruction: MatrixInstruction
    role: Literal["A", "B"]
    order: Order
    leading: int


@dataclass(frozen=True, slots=True)
class StoreFragment(Originated):
    """wmma.store: an opaque accumulator `src` to the tile whose first element is `dst`, by all lanes of a warp."""

    dst: Ref
    src: Ref
    instruction: MatrixInstruction
    order: Order
    leading: int


@dataclass(frozen=True, slots=True)
class MultiplyTiles(Originated):
    """`d += a @ b` on the fragments that begin at these registers, by all lanes of a warp together.

    orders: how opaque fragments of A and B were loaded, which the instruction must know.
    """

    instruction: MatrixInstruction
    d: Ref
    a: Ref
    b: Ref
    orders: tuple[Order, Order] | None = None


@dataclass(frozen=True, slots=True)
class RoundPair(Originated):
    """Two elements of one row of A, or of one column of B, rounded in registers to the format of the multiplier.

    One check serves both: where either is NaN, both stay as they are. Unobservable, as every result that the other
    has a part in is NaN as well. The multiplier then drops the lower bits, and a NaN that differs from infinity in
    those alone is read as one, which cvt.rna, at twice the cost, would keep.
    """

    first: Ref
    second: Ref
    dtype: DType


@dataclass(frozen=True, slots=True)
class UnpackCodes(Originated):
    """The eight codes in the words from `src` on, as numbers in the registers from `dst` on, exactly: each times two to
    the power `unpacked_exponent`.

    src: i32, one word of 4-bit codes or two of 8-bit ones. dst: f16 or bf16.
    """

    dst: Ref
    src: Ref
    codes: Codes


@dataclass(frozen=True, slots=True)
class QuadTranspose(Originated):
    """The lanes of a quad transpose a square of words: word j of its lane i and word i of its lane j change places.

    place: the first of four words in registers. All lanes of the warp take part.
    """

    place: Ref


@dataclass(frozen=True, slots=True)
class ShuffleAdd(Originated):
    """`place += place` of the lane whose number differs by `mask` (shfl.sync.bfly), in every lane of the warp; or the
    larger of the two.

    mask: a power of two below 32. Both lanes of a pair take the same two numbers, so they get the same bits. op: ADD or
    MAX. up: of the lane `mask` below (shfl.sync.up) where there is one, of int: five make the sum up to each lane.
    other: a register of the sums of which the lanes with the bit of `mask` take care instead: they get `other` of both
    lanes into `place`, those without it `place` of both.
    """

    place: Ref
    mask: int
    op: Op = Op.ADD
    up: bool = False
    other: Ref | None = None


Stmt = Union[  # noqa: UP007
    Let,
    For,
    If,
    Alloc,
    Move,
    Assign,
    Barrier,
    SyncWarp,
    CommitCopies,
    WaitCopies,
    LoadMatrices,
    LoadFragment,
    StoreFragment,
    MultiplyTiles,
    RoundPair,
    UnpackCodes,
    QuadTranspose,
    ShuffleAdd,
    AsyncStmt,
]
Body = tuple[Stmt, ...]
