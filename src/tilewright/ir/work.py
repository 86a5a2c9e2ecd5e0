"""How the work of a grid is shared out: which problems, which part of k, how blocks come by their items, and which
start together as clusters and share what they load.

A work item is (problem, tile of C, range of k). These three choices compose with each other, with every raster order
and with clusters; `lowering/scheduler.py` makes the statements.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilewright.enums import Spelled


class Walk(Spelled):
    """How blocks come by their work items.

    ONE_TILE: block i has item i. PERSISTENT: a resident grid; block i has items i, i + blocks, i + 2 * blocks, ...
    STREAM_K: a resident grid; the k tiles of all tiles of C are one range, and each block has an equal part of it.
    HYBRID: a resident grid; whole waves have a tile per block, and in front of them the tiles that fill no whole wave,
    together with those of one wave, are one range of k tiles, as of STREAM_K.
    """

    ONE_TILE = "one tile per block"
    PERSISTENT = "persistent"
    STREAM_K = "stream-K"
    HYBRID = "whole waves behind stream-K"

    @property
    def streams(self) -> bool:
        """Whether blocks share out the k tiles of several tiles of C."""
        return self in (Walk.STREAM_K, Walk.HYBRID)


class Problems(Spelled):
    """How many problems one launch computes, and where they lie.

    ONE: a single one. STRIDED: strided batched; matrix i of each operand begins i steps (`A_step`, ... in elements)
    after the first. LISTED: grouped; addresses, sizes and leading dimensions of each problem are a row of 64-bit words
    of a table, which is an argument of the launch. GROUPED_M, GROUPED_K: grouped by offsets on the device, which say
    where each group ends along m (rows of A and C; each group has a matrix B) or along k (of A and B; each group has a
    matrix C). COUNTED_M: grouped along m by counts on the device; each group has room for as many rows of A and C, of
    which it uses the first.
    """

    ONE = "one"
    STRIDED = "strided batched"
    LISTED = "grouped, listed in the arguments"
    GROUPED_M = "grouped along m by offsets"
    GROUPED_K = "grouped along k by offsets"
    COUNTED_M = "grouped along m by counts"

    @property
    def has_groups(self) -> bool:
        """Whether the sizes of problems are known on the device only."""
        return self.along_m or self is Problems.GROUPED_K

    @property
    def along_m(self) -> bool:
        """Whether groups of rows have a matrix B each."""
        return self in (Problems.GROUPED_M, Problems.COUNTED_M)


class SplitK(Spelled):
    """What becomes of the partial sums of a tile of C whose range of k is shared out.

    NONE: one item sums all of k. PARTIALS: C is a workspace that holds the partial sums of each part, one matrix below
    the other; a second kernel adds them up. ORDERED: the items of a tile add up in the order of k, by flags; the grid
    is resident, and the last item of a tile runs the epilogue. CLUSTER: the blocks of a cluster share out the k of a
    tile in equal parts, and exchange their sums through distributed shared memory; each runs the epilogue of a slice.
    RANKS: the ranks of a group have a part of k each; a tile's sums go to the rank that keeps it, which adds them up in
    the order of ranks and runs the epilogue.
    """

    NONE = "none"
    PARTIALS = "partial sums"
    ORDERED = "added up in order"
    CLUSTER = "added up in a cluster"
    RANKS = "added up across ranks"

    @property
    def by_items(self) -> bool:
        """Whether work items share out k, and the length of their ranges is an argument of the launch."""
        return self in (SplitK.PARTIALS, SplitK.ORDERED)


@dataclass(frozen=True, slots=True)
class Clustered:
    """Neighbours along one or two grid loops run as a cluster, and share what they all read.

    loops: each with how many neighbours along it. The rank of a block counts along the first loop, then the second.
    """

    loops: tuple[tuple[str, int], ...]

    @property
    def size(self) -> int:
        """Blocks of a cluster."""
        return prod(size for _, size in self.loops)
