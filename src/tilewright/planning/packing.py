"""What is copied before a GEMM kernel, and where C goes first: how the kernel of a plan finds its problem, or many of
one launch, of one shape or of ragged sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from typing import Any, Literal, NamedTuple

from tilewright.dtypes import F32, DType
from tilewright.kernels.gemv import GemvConfig
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.kernels.wgmma_steps import reads_orders
from tilewright.layout.banks import LINE_BYTES
from tilewright.problem.epilogue import PLAIN
from tilewright.problem.gemm import Dim, Gemm, Operand, OperandName, Order
from tilewright.units import round_up
from tilewright.winners.plan_config import PlanConfig


@dataclass(frozen=True, slots=True)
class Stack:
    """Problems of one launch: how many, and elements from one to the next, of A, B, C and each matrix of the
    epilogue."""

    count: int
    a: int
    b: int
    c: int
    added: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Shards:
    """A product that ranks share: rows of each, and the number of the running one. summed: each rank has a part of k,
    and keeps its rows of the sum, of which others send their parts; else rows of A arrive from their ranks while the
    kernel runs."""

    rows: tuple[int, ...]
    rank: int
    summed: bool = False

    @property
    def starts(self) -> tuple[int, ...]:
        """The first row of each rank, and the one behind the last."""
        return tuple(accumulate(self.rows, initial=0))

    @property
    def numbers(self) -> tuple[int, ...]:
        """What a launch is told, as `Kernel.shard_numbers` orders it."""
        if not self.summed:
            return len(self.rows), self.starts[self.rank]
        return len(self.rows), self.rank, max(self.rows)


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups of ragged sizes whose ends lie on the GPU, so that the host knows their sum alone: how many, the dimension
    along which they are ragged, and elements from a group's own matrix to the next one's: of B along m, of C along k;
    added: of its own scales. capacity: rows that each group has room for, where it has a count; 0: groups have ends.
    expected: rows of a group that a kernel is chosen for; 0: as many as there may be.
    """

    count: int
    along: Literal["m", "k"]
    step: int
    added: tuple[int, ...] = ()
    capacity: int = 0
    expected: int = 0


TMA_BYTES = 16
"""What addresses and leading dimensions must be multiples of, for TMA."""

PACKABLE: tuple[OperandName, ...] = ("A", "B")


@dataclass(frozen=True, slots=True)
class Alignment:
    """Bytes that the address and the rows of each matrix are multiples of, at most 16."""

    a: int
    b: int
    c: int

    def of(self, name: str) -> int:
        return int(getattr(self, name[0].lower()))

    @property
    def least(self) -> int:
        return min(self.a, self.b, self.c)


class Packing(NamedTuple):
    """What is copied before a kernel; see `PlanConfig`."""

    packed: frozenset[OperandName] = frozenset()
    transposed: frozenset[OperandName] = frozenset()
    tile_multiples: bool = False


_K_MAJOR: Mapping[str, Order] = {"A": Order.ROW, "B": Order.COL}
_OTHER: Mapping[Order, Order] = {Order.ROW: Order.COL, Order.COL: Order.ROW}


def order_read(kind: str, packing: Packing | PlanConfig, gemm: Gemm, name: OperandName) -> Order:
    """How a kernel of a family finds A or B: K-major, what is packed where its instructions cannot read both as they
    lie."""
    own = gemm.operand(name).order
    if _needs_k_major(kind, gemm):
        return _K_MAJOR[name] if name in packing.packed else own
    return _OTHER[own] if name in packing.transposed else own


def _needs_k_major(kind: str, gemm: Gemm) -> bool:
    """Whether neither wgmma nor ldmatrix transposes operands of this format, and one of them is not K-major."""
    return not reads_orders(gemm) and (kind == "wgmma" or (kind == "mma" and gemm.dtype.bytes == 1))


def must_pack(kind: str, gemm: Gemm, alignment: Alignment) -> frozenset[OperandName]:
    """A and B, as far as a kernel of a family cannot read them as they lie."""
    unserved = _unserved(kind, alignment)
    return _across(gemm) | unserved if _needs_k_major(kind, gemm) else unserved


def _across(gemm: Gemm) -> frozenset[OperandName]:
    """The operands in which m or n is contiguous."""
    return frozenset(name for name in PACKABLE if gemm.operand(name).order is not _K_MAJOR[name])


def _unserved(kind: str, alignment: Alignment) -> frozenset[OperandName]:
    """The operands that TMA cannot load."""
    return _narrow(alignment) if kind == "wgmma" else frozenset()


def through_registers(kind: str, gemm: Gemm, alignment: Alignment) -> OperandName | None:
    """The operand in which m or n is contiguous that kernels of a family can read through registers, the larger of two:
    the other is packed. None where there is none."""
    if kind != "wgmma" or not gemm.multiplies_tf32 or gemm.pieces is not None or gemm.accumulators > 1:
        return None
    left = _across(gemm) - _unserved(kind, alignment)
    return max(left, key=lambda name: (gemm.m if name == "A" else gemm.n, name), default=None)


def worth_transposing(kind: str, gemm: Gemm) -> frozenset[OperandName]:
    """What a kernel of a family reads faster transposed: SIMT kernels transpose a column-major B on its way, element by
    element, in each of their blocks. A row-major A they transpose as well, and are hardly slower (NN and TN of
    `cost.SLOW_B`)."""
    transposes = kind == "simt" and gemm.dtype is F32 and gemm.b is Order.COL
    return frozenset(("B",)) if transposes else frozenset()


def ways_to_pack(kind: str, gemm: Gemm, alignment: Alignment) -> tuple[Packing, ...]:
    """What a kernel of a family needs packed; also what would make narrow loads wide, transposed where that is faster:
    of 25 problems none was the fastest without (f32, H100 and H200); with that what it would rather have transposed;
    and both operands padded to tile multiples, where edges would need guards."""
    needed, narrow = must_pack(kind, gemm, alignment), _narrow(alignment)
    transposed = worth_transposing(kind, gemm)
    held = through_registers(kind, gemm, alignment)
    ways = [] if held is None else [Packing(needed - {held})]
    if held is None or _copied_bytes(gemm, held) < _MOST_COPIED * gemm.compulsory_bytes:
        ways += [Packing(needed), Packing(needed | narrow, transposed & (needed | narrow))]
        ways.append(Packing(needed | narrow | transposed, transposed))
    if pads_to_tiles(kind, gemm):
        edges = any(gemm.size(dim) % some for dim, some in _WHOLE.items())
        if alignment.least < TMA_BYTES or edges:
            ways.append(Packing(frozenset(PACKABLE), fastest_transposed(gemm), tile_multiples=True))
    return tuple(dict.fromkeys(ways))


_MOST_COPIED = 1.5
"""Bytes that packing an operand moves, by those of the product, from which on it is read through registers as it lies:
where packing takes longer than a product that memory limits, that would have to be slow."""


def _copied_bytes(gemm: Gemm, name: OperandName) -> int:
    operand = gemm.operand(name)
    return 2 * gemm.dtype.bytes * gemm.size(operand.strided) * gemm.size(operand.contiguous)


_WHOLE: Mapping[Dim, int] = {"m": 128, "n": 128, "k": 16}
"""Multiples of these have no edges in some large tile."""


def pads_to_tiles(kind: str, gemm: Gemm) -> bool:
    """Whether a kernel of a family may be given tile multiples only. SIMT kernels gain: the compiler makes a slower
    loop where edges are guarded or C is stored element by element. Measured on the H200: 4096 x 4224 x 4096 TN 2652 us;
    with an odd ldc 2912; 4095 x 4097 x 4093 2970 (benchmarks/results/plans_h200.json)."""
    return kind == "simt" and gemm.dtype is F32 and gemm.k > 0


def fastest_transposed(gemm: Gemm) -> frozenset[OperandName]:
    """What is to be transposed where both operands are packed anyway: no tile is, on its way through shared memory."""
    lies = {"A": gemm.a is Order.ROW, "B": gemm.b is Order.COL}
    return frozenset(name for name in PACKABLE if lies[name])


def fitted(config: PlanConfig, gemm: Gemm, alignment: Alignment) -> PlanConfig:
    """A plan that was measured for a problem like this one, with the packing that this one needs, and no other."""
    kind = config.kernel.kind
    if config.tile_multiples:
        return replace(config, transposed=fastest_transposed(gemm))
    transposed = config.transposed & worth_transposing(kind, gemm)
    packed = must_pack(kind, gemm, alignment) | (config.packed & _narrow(alignment))
    kernel = config.kernel
    if isinstance(kernel, WgmmaConfig) and kernel.left_in_registers:
        left = kernel.steps_tile.left
        if left in _across(gemm) and left not in _unserved(kind, alignment):
            packed -= {left}
        else:
            config = replace(config, kernel=replace(kernel, left_in_registers=False))
    return replace(config, packed=packed | transposed, transposed=transposed)


def _narrow(alignment: Alignment) -> frozenset[OperandName]:
    return frozenset(name for name in PACKABLE if alignment.of(name) < TMA_BYTES)


def as_read(gemm: Gemm, config: PlanConfig) -> Gemm:
    """The problem as the kernel of a plan finds it, behind the packing."""
    read = as_packed(gemm, config)
    if not config.tile_multiples:
        return read
    return replace(gemm, k=read.k, a=read.a, b=read.b, lda=read.lda, ldb=read.ldb)


def as_packed(gemm: Gemm, config: PlanConfig) -> Gemm:
    """A problem as large as the copies of its operands, which tile multiples fill up with zeros."""
    if config.tile_multiples:
        assert not isinstance(config.kernel, GemvConfig)
        sizes = zip((gemm.m, gemm.n, gemm.k), config.kernel.tile, strict=True)
        m, n, k = (round_up(size, tile) for size, tile in sizes)
        plain: dict[str, Any] = {"beta": 0.0, "epilogue": PLAIN, "ld_added": (), "numbers": ()}
        gemm = replace(gemm, m=m, n=n, k=k, lda=0, ldb=0, ldc=0, **plain)
    return behind_packing(gemm, config.kernel.kind, config)


@lru_cache(maxsize=64)
def behind_packing(gemm: Gemm, kind: str, packing: Packing | PlanConfig) -> Gemm:
    """The problem with packed operands as a kernel of a family finds them."""
    lies: dict[str, Any] = {}
    for name in packing.packed:
        order = order_read(kind, packing, gemm, name)
        rows = Operand(name, gemm.dtype, order).contiguous
        lies |= {name.lower(): order, f"ld{name.lower()}": padded(gemm.size(rows), gemm.dtype)}
    return replace(gemm, **lies) if lies else gemm


def row_length(gemm: Gemm, name: OperandName) -> int:
    """Elements of a matrix that lie side by side."""
    return gemm.size(gemm.operand(name).contiguous)


_LONG_BYTES = 1024
"""From this length on, rows of a copy begin at whole lines of the L2: at most an eighth more memory. Measured on the
H200: 4095 x 4097 x 4093 in bf16, where rows of B are copied to 8208 bytes apart, 267 us for the product; to whole
lines, 252 (benchmarks/results/plans_h200.json)."""


def padded(length: int, dtype: DType) -> int:
    """Elements from row to row of a copy."""
    each = LINE_BYTES if length * dtype.bytes >= _LONG_BYTES else TMA_BYTES
    return round_up(max(length, 1), each // dtype.bytes)


def padded_bytes(lines: int, length: int, dtype: DType) -> int:
    """The size of a copy, rounded up to 256 bytes."""
    return round_up(lines * padded(length, dtype) * dtype.bytes, 256)


def whole_pieces(length: int, dtype: DType) -> int:
    """Elements of a row of a copy, with zeros to the end of 16 bytes."""
    return round_up(max(length, 1), TMA_BYTES // dtype.bytes)
