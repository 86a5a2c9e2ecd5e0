"""`Kernel`: the program of the whole grid as CUDA executes it. What every back end reads."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tilewright.artifacts import Parameter
from tilewright.device.arch import Feature
from tilewright.dtypes import F32, I32, I64, MBARRIER
from tilewright.errors import ProblemError
from tilewright.ir.async_stmt import (
    BulkPrefetch,
    ClusterBarrier,
    SetRegisters,
    StartNextGrid,
    StoreAsync,
    StoreMatrices,
    TensorMap,
    TmaLoad,
    TmaPrefetch,
    TmaStore,
    WaitBarrier,
    WaitPreviousGrid,
    Wgmma,
)
from tilewright.ir.buffer import PEERS, Buffer, Space
from tilewright.ir.expr import Expr, Var
from tilewright.ir.guard import GUARD_FLAGS, Guard
from tilewright.ir.stmt import Body, CommitCopies, LoadMatrices, Move, MultiplyTiles, Stmt, WaitCopies
from tilewright.ir.visit import rewrite, walk
from tilewright.ir.work import Problems, SplitK
from tilewright.problem.gemm import FACTORS, Dim, Gemm, Operand, piece_of
from tilewright.problem.problem import Matrix, Problem, parameters_of
from tilewright.units import KIB, round_up

BUILTINS = (*(f"{vector}.{axis}" for vector in ("blockIdx", "threadIdx") for axis in "xyz"), "gridDim.x")
"""Names that mean the same in every kernel: the coordinates of the running thread, and how many blocks run."""

SIZES: dict[Dim, Var] = {"m": Var("M"), "n": Var("N"), "k": Var("K")}
"""The run-time size of each dimension, as kernel parameters."""

PART_OF_K = Var("K_part")
"""How many products a work item sums, where items share out k."""

PARTIAL_SUMS, TILE_FLAGS = "partial_sums", "tile_flags"
"""The workspace of items that add up in order, and the flags of tiles, which are 0 before and after a launch."""

FLAGS_OF_A_TILE = 4
"""Flags that a launch has for each block's tile: one for each warpgroup that keeps sums, of which there are fewer."""

GROUP_ENDS, GROUPS = "group_ends", Var("groups")
"""Where each group ends, on the device, and how many groups there are."""

GROUP_COUNTS, CAPACITY = "group_counts", Var("capacity")
"""How many rows each group has, on the device, and how many it has room for."""

FIRST_GROUP = Var("first_group")
"""The number of a launch's first group among all whose ends are listed, where groups are ragged along m."""

SHARD_FLAGS, SHARD_STARTS, SHARDS = "shard_flags", "shard_starts", Var("shards")
"""For each shard of rows of A: whether it has arrived (1), and where it begins, behind which stands the end of all; how
many shards there are."""

SENT_PARTS, SENT_FLAGS = "sent_parts", "sent_flags"
"""Where a rank that shares out k leaves its parts of the tiles of others until they travel, and which are there."""

RECEIVED_PARTS, RECEIVED_FLAGS = "received_parts", "received_flags"
"""Where it receives parts of its own tiles, and flags of each of them: memory that the peers write."""

OWN_RANK, MOST_ROWS = Var("own_rank"), Var("most_rows")
"""The number of the running rank, and the most rows that a rank keeps."""

OWN_ROW = Var("own_row")
"""The row of C with whose tiles a kernel begins that shares its work with other ranks."""

MOST_GROUPS = 512
"""Groups of a launch that are ragged along m: each block counts their tiles in shared memory."""

BATCH = Var("batch")
"""How many problems a strided batched kernel computes."""

C_ODD = Var("C_odd")
"""1 where C begins in the middle of an aligned pair of its elements, else 0."""

MOST_ALONG_Z = 65535
"""Blocks along z of a grid. Source: CUDA C++ Programming Guide, technical specifications."""

WIDEST_BYTES = 16
"""The widest access to memory. Source: PTX ISA, ld, st and cp.async."""

PROBLEMS = "problems"
"""The table of problems of a kernel that computes a list of them."""

PASSED_WORDS = 504
"""64-bit words of a table that is an argument, beside others. Source: CUDA C++ Programming Guide, 4 KB of arguments."""


STATIC_SHARED_BYTES = 48 * KIB
"""The most shared memory a kernel may declare itself. Source: CUDA C++ Programming Guide, technical specifications."""


@dataclass(frozen=True, slots=True)
class Variant:
    """What a kernel may assume of its arguments. Dispatch chooses; a user never does.

    exact: the dimensions that are multiples of the block's tile, so that no edge needs a guard.
    alignment_bytes: the pointers and leading dimensions of A and B are multiples of this (16, 8 or 4), so that vector
    accesses up to it are legal; 1: of one element, no more. b_bytes: those of B; 0 where that is the same.
    result_bytes: those of C and what is added to it; 0 where that is the same as A's.
    near: every element offset fits in 31 bits, so that 32-bit index arithmetic is enough.
    whole: a vector of `alignment_bytes` that begins inside a row of A or B may be read to its end, and holds zeros
    behind the row's. So a vector is one access with one guard, where it else is one with a branch to single elements.
    overwrites: beta is 0, so that C is written and not read.
    repeats: nothing that is stored depends on what stands in the place of lines of A and B behind the last one: it is
    read once more, and a loop over k has no guards but those of k.
    filled: A and B have lines up to a multiple of the tile, all of whose elements may be read.
    guard: the kernel runs on a condition, which its launch is told on the device; None: always.

    >>> Variant(exact=frozenset("mn")).name
    'mn_aligned_near'
    """

    exact: frozenset[Dim] = frozenset()
    alignment_bytes: int = WIDEST_BYTES
    near: bool = True
    result_bytes: int = 0
    whole: bool = False
    overwrites: bool = False
    guard: Guard | None = None
    repeats: bool = False
    filled: bool = False
    b_bytes: int = 0

    def __post_init__(self) -> None:
        for name in ("result_bytes", "b_bytes"):  # one way to say it, since kernels are known by their variant
            if getattr(self, name) == self.alignment_bytes:
                object.__setattr__(self, name, 0)

    @property
    def aligned(self) -> bool:
        """Whether the widest accesses are legal."""
        return self.alignment_bytes == WIDEST_BYTES and not self.result_bytes and not self.b_bytes

    def aligned_bytes(self, name: str) -> int:
        """What the pointer and the leading dimension of an operand are multiples of, or 1."""
        if name not in FACTORS:
            return self.result_bytes or self.alignment_bytes
        return self.b_bytes or self.alignment_bytes if name.startswith("B") else self.alignment_bytes

    @property
    def name(self) -> str:
        parts = ["".join(sorted(self.exact, key="mnk".index)) or "edges"]
        parts += ["aligned"] if self.alignment_bytes == WIDEST_BYTES else []
        parts += [f"aligned{self.alignment_bytes}"] if 1 < self.alignment_bytes < WIDEST_BYTES else []
        parts += [f"b{self.b_bytes}"] if self.b_bytes else []
        parts += [f"results{self.result_bytes}"] if self.result_bytes else []
        parts += ["whole"] if self.whole else []
        parts += ["near"] if self.near else []
        parts += ["overwrites"] if self.overwrites else []
        parts += ["repeats"] if self.repeats else []
        parts += ["filled"] if self.filled else []
        parts += [self.guard.value] if self.guard else []
        return "_".join(parts)

    @property
    def words(self) -> str:
        """The assumptions for a reader, in one line.

        >>> Variant(exact=frozenset("mn"), overwrites=True).words
        'M, N multiples of the tile; 16-byte aligned rows; 32-bit offsets; beta is 0'
        """
        exact = ", ".join(sorted(self.exact, key="mnk".index)).upper()
        bytes_each, of_b, results = self.alignment_bytes, self.b_bytes, self.result_bytes
        whose = " of A" if of_b else " of A and B" if results else ""
        parts = [f"{exact} multiple{'s' * (len(self.exact) > 1)} of the tile"] if exact else []
        parts += [f"{bytes_each}-byte aligned rows{whose}"] if bytes_each > 1 else []
        parts += [f"{of_b}-byte aligned rows of B"] if of_b > 1 else []
        parts += [f"{results}-byte aligned rows of C"] if results > 1 else []
        parts += ["vector-padded rows"] if self.whole else []
        parts += ["operands padded to tile multiples"] if self.filled else []
        parts += ["32-bit offsets"] if self.near else []
        parts += ["beta is 0"] if self.overwrites else []
        parts += [f"runs where {self.guard.words}"] if self.guard else []
        return "; ".join(parts) or "nothing"


MAX_SHARED_BYTES = 227 * KIB
"""The most shared memory a block can have on any device: sm_90 and sm_100. Source: cuda_occupancy.h of CUDA 13.0."""

SAFE = Variant(alignment_bytes=1, near=False)
"""Assumes nothing: right for every argument."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One grid program.

    problem: the class of what is computed; its sizes are arguments. grid: blocks along x, y, z as expressions of the
    scalar arguments. block: threads along x, y, z.
    shared: the shared buffers, in the order of their placement. tile: elements of each dimension that one block
    covers; cluster_tile: that the blocks of a cluster cover together, which is what `exact` is about.
    heading: lines that say where the kernel comes from (schedule, problem). cluster: blocks along x that run as a
    cluster. resident: a launch starts no more blocks than run at once, and they share out the whole grid. equal_items:
    a block of the grid stands for an item, all of the same length: no more are started than finish in as few rounds.
    overlapped: a launch may start before the kernels before it have ended. split_k: what becomes of the partial sums of
    items that share out k. problems: where they are listed, blocks along z have one each; the grid is that of one of
    them, and a launch has as many blocks along z as problems. partial_elements: of the workspace, for the tile of a
    block, where items add up in order. arriving: rows of A arrive shard by shard while it runs. blocks: of an SM, whose
    registers the compiler may use up; 0: it decides. whole_waves: all tiles of items that add up are fewer than two of
    each block.
    """

    name: str
    problem: Problem
    variant: Variant
    grid: tuple[Expr, Expr, Expr]
    block: tuple[int, int, int]
    shared: tuple[Buffer, ...]
    body: Body
    tile: dict[Dim, int]
    heading: tuple[str, ...] = field(default=(), compare=False)
    cluster_tile: dict[Dim, int] = field(default_factory=dict)
    cluster: int = 1
    resident: bool = False
    overlapped: bool = False
    split_k: SplitK = SplitK.NONE
    problems: Problems = Problems.ONE
    partial_elements: int = 0
    arriving: bool = False
    equal_items: bool = False
    blocks: int = 0
    whole_waves: bool = False

    def __post_init__(self) -> None:
        if not self.cluster_tile:
            object.__setattr__(self, "cluster_tile", self.tile)

    @property
    def gemm(self) -> Gemm:
        """The problem of a kernel that multiplies matrices; TypeError for any other kernel."""
        if not isinstance(self.problem, Gemm):
            raise TypeError(f"kernel {self.name!r} computes a {type(self.problem).__name__}, not a Gemm")
        return self.problem

    @property
    def threads_per_block(self) -> int:
        x, y, z = self.block
        return x * y * z

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory per block."""
        return self.shared_offsets[-1] + self.shared[-1].size_bytes if self.shared else 0

    @property
    def uses_dynamic_shared(self) -> bool:
        """Whether the shared buffers exceed what a kernel may declare; they are then carved out of one array."""
        return self.shared_bytes > STATIC_SHARED_BYTES

    @property
    def dynamic_shared_bytes(self) -> int:
        """Bytes of shared memory per block that a launch asks for, and the kernel does not declare."""
        return self.shared_bytes if self.uses_dynamic_shared else 0

    @property
    def shared_offsets(self) -> tuple[int, ...]:
        """The byte offset of each shared buffer, aligned for vector accesses and for what else it asks."""
        offsets, at = [], 0
        for buffer in self.shared:
            at = round_up(at, max(16, buffer.align_bytes))
            offsets.append(at)
            at += buffer.size_bytes
        return tuple(offsets)

    @property
    def needs(self) -> frozenset[Feature]:
        """What its instructions need of the architecture."""
        found: set[Feature] = set()
        for _, stmt in walk(self.body):
            match stmt:
                case Move(asynchronous=True) | CommitCopies() | WaitCopies():
                    found.add(Feature.CP_ASYNC)
                case LoadMatrices():
                    found.add(Feature.LDMATRIX)
                case MultiplyTiles() | Wgmma():
                    found.add(stmt.instruction.feature)
                case TmaLoad() | TmaPrefetch() | BulkPrefetch() | TmaStore():
                    found.add(Feature.TMA)
                case WaitBarrier():
                    found.add(Feature.MBARRIER_TX)
                case SetRegisters():
                    found.add(Feature.SETMAXNREG)
                case StoreMatrices():
                    found.add(Feature.STMATRIX)
                case ClusterBarrier() | StoreAsync():
                    found.add(Feature.CLUSTER)
                case StartNextGrid():
                    found.add(Feature.DEPENDENT_LAUNCH)
                case _:
                    pass
        return frozenset(found)

    @property
    def arguments(self) -> tuple[Parameter, ...]:
        """What the body reads of one problem: matrices, the workspace, scalars, and K_part where items share out
        k."""
        own = parameters_of(self.problem, near=self.variant.near)
        pointers = tuple(parameter for parameter in own if parameter.is_pointer)
        parts = (Parameter(PART_OF_K.name, I32),) if self.split_k.by_items else ()
        ends = (Parameter(self.group_sizes, I32, is_pointer=True),) if self.problems.has_groups else ()
        told = (*self.workspace, *self.shard_tables, *self.guard_flags, *ends)
        return (*pointers, *told, *own[len(pointers) :], *parts, *self.shard_numbers)

    @property
    def shard_tables(self) -> tuple[Parameter, ...]:
        """The pointers to where the rows of each rank begin, and to their flags; or to what it sends and receives."""
        starts = Parameter(SHARD_STARTS, I32, is_pointer=True)
        if self.split_k is SplitK.RANKS:
            sent = [Parameter(SENT_PARTS, self.gemm.out, is_pointer=True), Parameter(SENT_FLAGS, I32, is_pointer=True)]
            received = ((RECEIVED_PARTS, self.gemm.out), (RECEIVED_FLAGS, I32))
            peers = [Parameter(PEERS + name, dtype, is_pointer=True, of_ranks=True) for name, dtype in received]
            return (starts, *sent, *peers)
        return (starts, Parameter(SHARD_FLAGS, I32, is_pointer=True)) if self.arriving else ()

    @property
    def shard_numbers(self) -> tuple[Parameter, ...]:
        """The numbers of a kernel that shares its work with other ranks."""
        across = self.split_k is SplitK.RANKS
        names = (SHARDS, OWN_RANK, MOST_ROWS) if across else (SHARDS, OWN_ROW) if self.arriving else ()
        return tuple(Parameter(one.name, I32) for one in names)

    @property
    def group_sizes(self) -> str:
        """What tells the sizes of groups on the device: where they end, or how many rows they have."""
        return GROUP_COUNTS if self.problems is Problems.COUNTED_M else GROUP_ENDS

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The launch arguments in order: those of one problem, what tells several apart, then the tensor maps; or the
        table of problems and what they share."""
        if self.problems is Problems.LISTED:
            table = Parameter(PROBLEMS, I64, words=PASSED_WORDS)
            return (table, *(one for one in self.arguments if one.dtype is F32 and not one.is_pointer))
        maps = [Parameter(m.name, MBARRIER, tensor_map=m.box_of(self.problem)) for m in self.maps]
        return (*self.arguments, *self.batching, *maps)

    @property
    def workspace(self) -> tuple[Parameter, ...]:
        """The pointers to what items that add up in order need beside the operands: `partial_elements` for each block's
        tile, and `FLAGS_OF_A_TILE` flags."""
        if self.split_k is not SplitK.ORDERED:
            return ()
        sums = Parameter(PARTIAL_SUMS, self.gemm.accumulate, is_pointer=True)
        return (sums, Parameter(TILE_FLAGS, I32, is_pointer=True))

    def workspace_tiles(self, blocks: int, launched: int) -> int:
        """Tiles of blocks that the workspace has room for. blocks: of the grid; launched: that are started of them."""
        return min(blocks, 2 * launched) if self.whole_waves else blocks

    @property
    def guard_flags(self) -> tuple[Parameter, ...]:
        """The pointers to the flags that say whether the kernel runs."""
        return tuple(Parameter(name, F32, is_pointer=True) for name in GUARD_FLAGS) if self.variant.guard else ()

    @property
    def batching(self) -> tuple[Parameter, ...]:
        """What tells problems apart: elements from problem to problem, of each operand that has several matrices, how
        many problems there are, which of all groups is the first, and how many rows one has room for."""
        count = GROUPS if self.problems.has_groups else BATCH
        names = [matrix.name for matrix in self.problem.matrices if is_stepped(self.problems, matrix)]
        counted = (Parameter(count.name, I32),) if names else ()
        first = (Parameter(FIRST_GROUP.name, I32),) if self.problems.along_m else ()
        room = (Parameter(CAPACITY.name, I32),) if self.problems is Problems.COUNTED_M else ()
        return (*(Parameter(step_of(name), I64) for name in names), *counted, *first, *room)

    @property
    def columns(self) -> tuple[Parameter, ...]:
        """What a row of the table of problems holds, a 64-bit word each."""
        return tuple(p for p in self.arguments if p.is_pointer or p.dtype is not F32)

    @property
    def maps(self) -> tuple[TensorMap, ...]:
        """What TMA is told of the matrices, in order of first use."""
        found = (stmt.map for _, stmt in walk(self.body) if isinstance(stmt, (TmaLoad, TmaPrefetch, TmaStore)))
        return tuple(dict.fromkeys(found))

    def check_beta(self, beta: float) -> None:
        """Raise ProblemError for a beta that the variant rules out."""
        if self.variant.overwrites and beta != 0:
            raise ProblemError(
                f"Kernel {self.name!r} was built for beta = 0 and does not read C, and beta is {beta:g}.",
                hint="build it for a problem with that beta: Gemm(..., beta=...).",
            )

    def global_buffer(self, name: str) -> Buffer:
        dtype = next(matrix.dtype for matrix in self.problem.matrices if matrix.name == name)
        return Buffer(name, Space.GLOBAL, dtype, ())


def is_stepped(problems: Problems, operand: Matrix) -> bool:
    """Whether each problem has a matrix of its own of an operand, a step behind the last one's."""
    is_vector = isinstance(operand, Operand) and operand.is_vector
    is_own = isinstance(operand, Operand) and operand.is_own
    match problems:
        case Problems.STRIDED:
            return not is_vector or is_own
        case Problems.GROUPED_M | Problems.COUNTED_M:  # what lies along the rows of all groups is one
            return is_own if is_vector else operand.name in FACTORS and piece_of(operand.name)[0] == "B"
        case Problems.GROUPED_K:
            return is_own if is_vector else operand.name not in FACTORS
        case _:
            return False


def guarded(kernel: Kernel, guard: Guard) -> Kernel:
    """The kernel, run on a condition: threads that wait for the kernels before ask then; one whose threads do not wait
    begins with that. What stands before the wait, such as asking the L2 for an operand, is done either way."""

    def ask(stmt: Stmt) -> Body | None:
        return (WaitPreviousGrid(guard),) if isinstance(stmt, WaitPreviousGrid) else None

    first = () if kernel.overlapped else (StartNextGrid(), WaitPreviousGrid(guard))
    body = (*first, *rewrite(kernel.body, ask))
    return replace(kernel, variant=replace(kernel.variant, guard=guard), body=body, overlapped=True)


def step_of(operand: str) -> str:
    """The name of the argument that holds the elements from one matrix to the next."""
    return f"{operand}_step"
