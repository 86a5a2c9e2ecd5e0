"""What a block of a product with a weight in codes computes by wgmma, and how its threads share that."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.problem.coded_product import TILE, CodedProduct

COLUMNS = 64
"""Of C, of a warpgroup: the rows of wgmma."""

GROUP_THREADS = 128
"""Of a warpgroup."""


@dataclass(frozen=True, slots=True)
class CodedWgmmaTile:
    """rows: of the activations of a block, a multiple of 8. groups_n, groups_k: warpgroups that share out columns, 64
    each, and the k of a stage. own_k: elements of k of a warpgroup in a stage, whole groups. stages: of the ring.
    cluster: blocks that share out all of k. steps: of 16 of k that are unpacked and multiplied at a time. vector:
    elements of C that a thread stores at once; C and the bias begin at multiples of it. overlapped: it starts under
    the kernel before it."""

    rows: int = 64
    groups_n: int = 2
    groups_k: int = 1
    own_k: int = 128
    stages: int = 4
    cluster: int = 1
    steps: int = 2
    vector: int = 1
    overlapped: bool = False

    @property
    def consumers(self) -> int:
        return self.groups_n * self.groups_k

    @property
    def threads(self) -> int:
        """Of a block: those of the warpgroup that loads stand behind all others."""
        return (self.consumers + 1) * GROUP_THREADS

    @property
    def block_tiles(self) -> int:
        return self.columns // TILE

    @property
    def columns(self) -> int:
        """Of C, of a block."""
        return self.groups_n * COLUMNS

    @property
    def stage_k(self) -> int:
        return self.own_k * self.groups_k

    @property
    def owned_rows(self) -> int:
        """Of C, that a block of a cluster finishes."""
        return self.rows // self.cluster

    def stage_bytes(self, problem: CodedProduct) -> int:
        """Of shared memory."""
        weight = problem.weight
        a, codes = self.rows * problem.dtype.bytes, self.columns * weight.codes.bits // 8
        scales = self.stage_k // weight.group * self.columns * weight.scale_dtype.bytes if weight.group else 0
        return self.stage_k * (a + codes) + scales
