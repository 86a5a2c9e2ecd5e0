"""Statements of the units that work beside the threads: TMA, mbarriers, the wgmma unit.

All are of sm_90 and later; wgmma is of sm_90a. What they do, they do some time between the statement that starts them
and the one that waits for them; what lies between must not touch their memory. Source: PTX ISA 9.0, sections
"Asynchronous copy", "mbarrier" and "Asynchronous Warpgroup Level Matrix Instructions".
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.artifacts import TensorBox
from tilewright.enums import Spelled
from tilewright.ir.buffer import Space
from tilewright.ir.expr import Expr, Ref
from tilewright.ir.guard import Guard
from tilewright.isa.instruction import MatrixInstruction
from tilewright.layout.swizzle import Swizzle
from tilewright.problem.problem import Problem, tma_matrix


class Scope(Spelled):
    """Whose threads a flag orders. GPU: those of one GPU. SYSTEM: also other GPUs, and copy engines."""

    GPU = "gpu"
    SYSTEM = "sys"


@dataclass(frozen=True, slots=True)
class TensorMap:
    """What TMA knows of a matrix in global memory, made by the host for each launch.

    operand: whose address, sizes and leading dimension it holds; elements outside the matrix are read as zero and not
    written. box: elements of one copy along the contiguous and the strided dimension. swizzle: how the 16-byte pieces
    of a box are permuted in shared memory. step: the argument that holds the elements from one matrix to the next,
    where the map is of several; empty where it is of one. ragged: the matrix is cut into groups along its strided
    dimension; what lies behind the group of a copy is read as zero and not written.

    A copy names the first element of its box: (along, across) of one matrix, (along, across, number of the matrix) of
    several, (along, across from the group's first line on, first line of the group, lines of the group) of a ragged
    one; `along` the contiguous dimension and `across` the strided one.
    """

    name: str
    operand: str
    box: tuple[int, int]
    swizzle: Swizzle
    step: str = ""
    ragged: bool = False

    @property
    def rank(self) -> int:
        """Coordinates of a box, as the driver counts the dimensions of the map."""
        return 4 if self.ragged else 3 if self.step else 2

    def box_of(self, problem: Problem) -> TensorBox:
        """The same for the runtime."""
        matrix = tma_matrix(problem, self.operand)
        swizzle, stored = self.swizzle.tensor_map, self.operand == "C"
        kind = self.step, stored, self.ragged
        extents = matrix.length, matrix.lines
        return TensorBox(self.operand, extents, matrix.leading, matrix.mapped, self.box, swizzle, *kind)


@dataclass(frozen=True, slots=True)
class Originated:
    """A statement of a declared thing. origin: its name."""

    origin: str = field(default="", kw_only=True)


@dataclass(frozen=True, slots=True)
class InitBarrier(Originated):
    """An mbarrier comes into being: a phase is complete after `arrivals` arrivals and all bytes expected."""

    place: Ref
    arrivals: int


@dataclass(frozen=True, slots=True)
class FenceBarriers:
    """The barriers that this thread has made are seen by TMA and by the other blocks of the cluster."""


@dataclass(frozen=True, slots=True)
class ExpectBytes(Originated):
    """This thread arrives at an mbarrier of its block, and the phase waits for `size_bytes` more to land."""

    place: Ref
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ArriveBarrier(Originated):
    """This thread arrives at an mbarrier: of its block, or at the same place in block `rank` of the cluster.

    behind_copies: not at once, but when the asynchronous copies (cp.async) that it started so far have landed, for
    which it does not wait; of its block only. Source: PTX ISA 9.0, cp.async.mbarrier.arrive.noinc.
    """

    place: Ref
    rank: Expr | None = None
    behind_copies: bool = False


@dataclass(frozen=True, slots=True)
class WaitBarrier(Originated):
    """This thread waits until the phase of the given parity is complete.

    A new barrier is in phase 0: waiting for parity 1 passes at once, waiting for parity 0 waits for the first phase.
    of_cluster: what threads of other blocks of the cluster stored by then is visible, too.
    """

    place: Ref
    parity: Expr
    of_cluster: bool = False


@dataclass(frozen=True, slots=True)
class StoreAsync(Originated):
    """st.async: this thread starts the store of `count` neighbouring registers to shared memory of block `rank` of the
    cluster, at the place `dst`; the bytes are told to the barrier at the place `signal` of that block.

    The registers may be overwritten at once. Source: PTX ISA 9.0, st.async.
    """

    dst: Ref
    src: Ref
    count: int
    rank: Expr
    signal: Ref


@dataclass(frozen=True, slots=True)
class TmaLoad(Originated):
    """One thread starts the copy of a box from global to shared memory; its bytes are told to the barrier `signal`.

    at: the box's first element, as the map counts. dst: where it lands, a multiple of the swizzle's repeat. mask: the
    blocks of the cluster (bit i: rank i) in which it lands, each at the same place and telling the barrier at the same
    place; None: this block alone. evict_first: what it reads is the first to leave the L2.
    """

    dst: Ref
    map: TensorMap
    at: tuple[Expr, ...]
    signal: Ref
    mask: Expr | None = None
    evict_first: bool = False


@dataclass(frozen=True, slots=True)
class TmaPrefetch(Originated):
    """The L2 is asked for a box that a copy will read later. Nothing is read: what is written to the box meanwhile is
    what that copy finds. at: the box's first element, as the map counts. Source: PTX ISA 9.0,
    cp.async.bulk.prefetch.tensor."""

    map: TensorMap
    at: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class BulkPrefetch(Originated):
    """The L2 is asked for bytes of global memory that are read later; both the place and the size are multiples of 16
    bytes. Nothing is read, as by `TmaPrefetch`. Source: PTX ISA 9.0, cp.async.bulk.prefetch."""

    place: Ref
    size_bytes: int


@dataclass(frozen=True, slots=True)
class L2Prefetch(Originated):
    """The L2 is asked for what a thread loads later, where the guard holds. Nothing is read, as by `TmaPrefetch`, so
    that it may stand before the wait for the kernel that writes there. Source: PTX ISA 9.0, prefetch."""

    place: Ref
    guard: Expr | None = None


@dataclass(frozen=True, slots=True)
class TmaStore(Originated):
    """One thread starts the copy of a box from shared to global memory. What lies outside the matrix is left out, in
    whole pieces of 16 bytes: rows of the matrix must end at multiples of them. evict_first: as of `TmaLoad`, what it
    writes."""

    map: TensorMap
    at: tuple[Expr, ...]
    src: Ref
    evict_first: bool = False


@dataclass(frozen=True, slots=True)
class PrefetchMap:
    """TMA is told of a matrix before its first copy, which then need not wait for it."""

    map: TensorMap


@dataclass(frozen=True, slots=True)
class CommitStores:
    """The bulk stores that this thread started since the last commit become one group."""


@dataclass(frozen=True, slots=True)
class WaitStores:
    """This thread waits until at most `pending` of its groups of bulk stores still read shared memory.

    written: until they are also complete in global memory.
    """

    pending: int
    written: bool = False


@dataclass(frozen=True, slots=True)
class FenceProxy:
    """What this thread did in memory of a space comes before what TMA and wgmma do there later; what this thread has
    waited for, too.

    Ordinary accesses and those of the asynchronous units are ordered by nothing else; a barrier among threads, which
    must follow where other threads start the copies, orders only the threads.
    """

    space: Space = Space.SHARED


@dataclass(frozen=True, slots=True)
class ClusterBarrier:
    """Every thread of every block of the cluster waits here for all others."""


@dataclass(frozen=True, slots=True)
class TeamBarrier:
    """`threads` threads of the block, whole warps, wait for each other at the named barrier `number` (1 to 15)."""

    number: Expr
    threads: int


@dataclass(frozen=True, slots=True)
class SignalFlag(Originated):
    """This thread sets a flag in global memory. What it did before, and what others did before a barrier that it has
    passed, is visible to whoever waits for the value: on the same GPU, or anywhere. Source: PTX ISA 9.0, st.release.
    releases: False where nobody waits for the value, and nothing need be visible. adds: the flag counts, and the value
    is added to it; who finds the sum sees what all did that added. Source: red.release."""

    place: Ref
    value: Expr
    scope: Scope = Scope.GPU
    releases: bool = True
    adds: bool = False


@dataclass(frozen=True, slots=True)
class WaitFlag(Originated):
    """This thread waits until a flag in global memory has a value, which a thread of the same GPU sets, or anyone.
    or_later: the flag counts, and may have gone on; counters may wrap around."""

    place: Ref
    value: Expr
    scope: Scope = Scope.GPU
    or_later: bool = False


@dataclass(frozen=True, slots=True)
class SetRegisters:
    """Each thread of this warpgroup has `count` registers from here on: it gives up some, or waits for more."""

    count: int
    grow: bool


@dataclass(frozen=True, slots=True)
class WgmmaFence:
    """Accumulators written so far come before the wgmma that this warpgroup starts from here on."""


@dataclass(frozen=True, slots=True)
class WgmmaCommit:
    """The wgmma that this warpgroup started since the last commit become one group."""


@dataclass(frozen=True, slots=True)
class WgmmaWait(Originated):
    """This warpgroup waits until at most `pending` of its youngest wgmma groups are not complete.

    sums: registers that are read next, all of the buffer; the compiler cannot see that the wait is for them.
    """

    pending: int
    sums: Ref | None = None


@dataclass(frozen=True, slots=True)
class SharedMatrix:
    """A tile in shared memory as wgmma is told of it: where it begins, and how far apart its pieces are.

    The unit sees matrices of 8 rows of 16 bytes ("core matrices") grouped into rows of `swizzle.row_bytes`. turned
    False: rows run along k; `stride_bytes` from 8 rows (of m or n) to the next 8; `leading_bytes` is not used. turned
    True: rows run along m or n; `stride_bytes` from 8 steps of k to the next 8, `leading_bytes` from one row's worth of
    m or n to the next. Source: PTX ISA 9.0, "Strides" and "Matrix Descriptor Format" of wgmma.
    """

    place: Ref
    swizzle: Swizzle
    turned: bool
    leading_bytes: int
    stride_bytes: int


@dataclass(frozen=True, slots=True)
class Wgmma(Originated):
    """`d += a @ b` by the four warps of a warpgroup, some time before it is waited for.

    d: where each lane's fragment of the sum begins. a: a tile in shared memory, or where each lane's fragment of it
    begins in registers, which nobody may touch until the wait. fresh: where true, `d = a @ b` instead; the same in all
    lanes.
    """

    instruction: MatrixInstruction
    d: Ref
    a: SharedMatrix | Ref
    b: SharedMatrix
    fresh: Expr | None = None

    @property
    def a_place(self) -> Ref:
        return self.a if isinstance(self.a, Ref) else self.a.place


@dataclass(frozen=True, slots=True)
class StoreMatrices(Originated):
    """stmatrix: `count` matrices of 8 rows of 16 bytes from a warp's registers to shared memory, as LoadMatrices."""

    dst: Ref
    src: Ref
    count: int
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class StartNextGrid:
    """The kernel behind this one in the stream may start its blocks from here on, where there is room for them."""


@dataclass(frozen=True, slots=True)
class WaitPreviousGrid:
    """This thread waits until the kernels before this one have ended and all they wrote is there. guard: then it ends
    where the flags say that the kernel does not run; all threads of the grid that wait agree in that."""

    guard: Guard | None = None


AsyncStmt = (
    InitBarrier
    | FenceBarriers
    | ExpectBytes
    | ArriveBarrier
    | WaitBarrier
    | StoreAsync
    | TmaLoad
    | TmaPrefetch
    | BulkPrefetch
    | L2Prefetch
    | TmaStore
    | PrefetchMap
    | CommitStores
    | WaitStores
    | FenceProxy
    | ClusterBarrier
    | TeamBarrier
    | SignalFlag
    | WaitFlag
    | SetRegisters
    | WgmmaFence
    | WgmmaCommit
    | WgmmaWait
    | Wgmma
    | StoreMatrices
    | StartNextGrid
    | WaitPreviousGrid
)
