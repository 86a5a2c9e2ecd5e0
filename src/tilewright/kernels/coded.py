"""Products with a weight in codes of 4 or 8 bits, by mma.sync: the weight is the operand with 16 rows, A that with 8
columns (swap-AB), so a skinny A wastes little.

Codes, scales and A come by cp.async through a ring of stages; a warp reads its codes from shared memory 16 bytes a
lane, as they lie, unpacks them in registers and multiplies. The sum of each group is multiplied by its scale in f32
when it is added to the sum of all. Warps of a block share out tiles of columns and k; their sums are added through
shared memory in the order of the warps, so no order depends on what runs first.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.device.arch import SINCE, Feature
from tilewright.device.spec import DeviceSpec
from tilewright.dtypes import F32
from tilewright.ir.expr import Const
from tilewright.ir.expr import ceil_div as ceil_div_of
from tilewright.ir.kernel import MAX_SHARED_BYTES, SIZES, WIDEST_BYTES, Kernel, Variant
from tilewright.kernels.coded_body import PAD, CodedBody
from tilewright.kernels.statements import AFTER_PREVIOUS_GRID, WARP_LANES, against_overlap, together, verified
from tilewright.problem.coded_product import TILE, CodedProduct
from tilewright.units import ceil_div

EIGHT = 8
"""Rows of A of one multiplication."""

MOST_ROWS = 64

_LARGEST_OFFSET = 2**31 - 1


@dataclass(frozen=True, slots=True)
class CodedConfig:
    """rows: of A of a block, 8 or a multiple of 16. tiles: of 16 columns, of a warp. warps_n, warps_k: warps that share
    out tiles, and the k of a stage. own_k: elements of k of a warp in a stage, a multiple of the weight's unit. stages:
    of the ring. overlapped: it starts under the kernel before it."""

    rows: int = 8
    tiles: int = 1
    warps_n: int = 4
    warps_k: int = 2
    own_k: int = 128
    stages: int = 4
    overlapped: bool = False

    @property
    def threads(self) -> int:
        return self.warps_n * self.warps_k * WARP_LANES

    @property
    def block_tiles(self) -> int:
        return self.tiles * self.warps_n

    @property
    def columns(self) -> int:
        """Of C, of a block."""
        return self.block_tiles * TILE

    @property
    def stage_k(self) -> int:
        return self.own_k * self.warps_k

    def shared_bytes(self, problem: CodedProduct) -> int:
        """Shared memory of a block."""
        weight = problem.weight
        a = self.rows * (self.stage_k + PAD) * problem.dtype.bytes
        codes = self.columns * self.stage_k * weight.codes.bits // 8
        groups = ceil_div(self.stage_k, weight.group) if weight.group else 0
        scales = groups * self.columns * weight.scale_dtype.bytes
        return self.stages * (a + codes + scales) + self.warps_k * self.rows * (self.columns + PAD) * F32.bytes

    def reasons_against(self, problem: CodedProduct, spec: DeviceSpec | None = None) -> tuple[str, ...]:
        """Why this kernel cannot compute it, in words; empty if it can."""
        found: list[str] = []
        weight = problem.weight
        if self.rows % TILE and self.rows != EIGHT:
            found.append(f"{self.rows} rows of A are neither 8 nor a multiple of 16")
        if self.own_k % weight.unit or (weight.group and self.own_k % weight.group and weight.group % self.own_k):
            found.append(f"{self.own_k} of k are not whole units of {weight.unit} in groups of {weight.group}")
        if problem.lda % (WIDEST_BYTES // problem.dtype.bytes):
            found.append(f"rows of A are {problem.lda} elements apart, no multiple of 16 bytes")
        if self.threads > 1024:
            found.append(f"{self.threads} threads are more than a block may have")
        if self.shared_bytes(problem) > MAX_SHARED_BYTES:
            found.append(f"{self.shared_bytes(problem)} bytes of shared memory are more than {MAX_SHARED_BYTES}")
        if max(weight.words, problem.storage_elements("A"), problem.storage_elements("C")) > _LARGEST_OFFSET // 2:
            found.append("offsets do not fit in 31 bits")
        if spec is not None and spec.compute_capability < SINCE[Feature.MMA_BF16]:
            found.append(f"{spec.name} has neither cp.async nor bf16 on its tensor cores")
        return *found, *against_overlap(self.overlapped, spec)

    def kernel(self, problem: CodedProduct) -> Kernel:
        """The kernel for the formats, groups and epilogue of a problem; sizes are arguments."""
        body = CodedBody(self, problem)
        shape = f"{self.rows}x{self.columns}_{self.tiles}_{self.warps_n}x{self.warps_k}_{self.own_k}x{self.stages}"
        group = problem.weight.group or "column"
        return verified(
            Kernel(
                f"coded_{problem.weight.codes}_{group}_{problem.dtype}_{shape}",
                problem,
                Variant(alignment_bytes=WIDEST_BYTES, near=True, result_bytes=1),
                (ceil_div_of(SIZES["n"], self.columns), ceil_div_of(SIZES["m"], self.rows), Const(1)),
                (self.threads, 1, 1),
                body.shared,
                together(AFTER_PREVIOUS_GRID if self.overlapped else (), body.body()),
                {},
                overlapped=self.overlapped,
            )
        )
