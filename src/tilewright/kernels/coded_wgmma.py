"""Products with a weight in codes of 4 or 8 bits, by wgmma: 64 columns of the weight are the rows of its operand A,
which comes from registers; rows of the activations are the columns of its operand B (swap-AB).

A warpgroup of its own loads codes, scales and activations by TMA into a ring of stages. Each other warpgroup has 64
columns: its lanes read their codes from shared memory as they lie, unpack them into a fragment, and start MMAs while
they unpack the next. Each code is unpacked once in a block. The sum of each group is multiplied by its scale in f32
when it is added to the sum of all. Warpgroups of a block, and blocks of a cluster, may share out k; their sums are
added in their order, so no order depends on what runs first.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.device.arch import Feature, arch
from tilewright.device.spec import DeviceSpec
from tilewright.dtypes import F32
from tilewright.ir.expr import Const
from tilewright.ir.expr import ceil_div as ceil_div_of
from tilewright.ir.kernel import MAX_SHARED_BYTES, SIZES, WIDEST_BYTES, Kernel, Variant
from tilewright.ir.register_budgets import budgets
from tilewright.kernels.coded_wgmma_body import ATOM, SUMS_PAD, CodedWgmmaBody, needed_registers
from tilewright.kernels.coded_wgmma_tile import CodedWgmmaTile
from tilewright.kernels.statements import verified
from tilewright.problem.coded_product import TILE, CodedProduct

MOST_ROWS = 128
_MOST_CONSUMERS = 4
_MOST_BOX = 256
"""Elements along a side of a TMA box. Source: CUDA driver API, cuTensorMapEncodeTiled."""
_BARRIER_BYTES = 1024
"""Room for mbarriers and the alignment of buffers."""
_LARGEST_OFFSET = 2**31 - 1
_CLUSTERS = (1, 2, 4)


@dataclass(frozen=True, slots=True)
class CodedWgmmaConfig(CodedWgmmaTile):
    """A kernel: its memory, its laws, its statements."""

    def shared_bytes(self, problem: CodedProduct) -> int:
        """Shared memory of a block."""
        sums = self.groups_k * self.owned_rows * (self.columns + SUMS_PAD) * F32.bytes
        parts = self.rows * self.columns * self.groups_k * F32.bytes if self.cluster > 1 else 0
        return self.stages * self.stage_bytes(problem) + sums + parts + _BARRIER_BYTES

    def reasons_against(self, problem: CodedProduct, spec: DeviceSpec | None = None) -> tuple[str, ...]:
        """Why this kernel cannot compute it, in words; empty if it can."""
        return (*self._of_tile(problem), *self._of_problem(problem), *self._of_device(spec))

    def _of_tile(self, problem: CodedProduct) -> list[str]:
        found: list[str] = []
        weight = problem.weight
        if self.rows % 8 or not 0 < self.rows <= MOST_ROWS:
            found.append(f"{self.rows} rows of A are not a multiple of 8 up to {MOST_ROWS}")
        if self.cluster not in _CLUSTERS or self.rows % (8 * self.cluster):
            found.append(f"{self.cluster} blocks of a cluster do not share {self.rows} rows in multiples of 8")
        if self.own_k % max(weight.unit, weight.group, ATOM) or self.own_k > _MOST_BOX:
            found.append(f"{self.own_k} of k are not whole units of {weight.unit} in groups of {weight.group}")
        elif (weight.group or self.own_k) // TILE % self.steps:
            found.append(f"{self.steps} steps of {TILE} of k do not divide groups of {weight.group or self.own_k}")
        if weight.group and self.stage_k // weight.group * TILE > _MOST_BOX:
            found.append(f"{self.stage_k // weight.group} groups of a stage are more than one TMA box holds")
        if not 0 < self.consumers <= _MOST_CONSUMERS:
            found.append(f"{self.consumers} warpgroups that multiply are not 1 to {_MOST_CONSUMERS}")
        elif budgets(self.threads)[1] < needed_registers(self.rows, weight.codes):
            found.append(f"{self.rows} rows of A take more registers than {self.consumers} warpgroups have")
        if self.shared_bytes(problem) > MAX_SHARED_BYTES:
            found.append(f"{self.shared_bytes(problem)} bytes of shared memory are more than {MAX_SHARED_BYTES}")
        return found

    def _of_problem(self, problem: CodedProduct) -> list[str]:
        found: list[str] = []
        if problem.lda % (WIDEST_BYTES // problem.dtype.bytes):
            found.append(f"rows of A are {problem.lda} elements apart, no multiple of 16 bytes")
        if problem.ldc % self.vector or problem.n % self.vector or self.vector * problem.out.bytes > WIDEST_BYTES:
            found.append(f"rows of {problem.n} elements, {problem.ldc} apart, are not stored {self.vector} at a time")
        if max(problem.weight.words, problem.storage_elements("A"), problem.storage_elements("C")) > _LARGEST_OFFSET:
            found.append("offsets do not fit in 31 bits")
        return found

    def _of_device(self, spec: DeviceSpec | None) -> list[str]:
        if spec is None or arch(spec.arch).has(Feature.WGMMA):
            return []
        return [f"{spec.name} has no wgmma"]

    def kernel(self, problem: CodedProduct) -> Kernel:
        """The kernel for the formats, groups and epilogue of a problem; sizes are arguments."""
        body = CodedWgmmaBody(self, problem)
        tile = f"{self.rows}x{self.columns}_{self.groups_n}x{self.groups_k}_{self.own_k}x{self.stages}"
        shape = f"{tile}_{self.cluster}_{self.steps}_{self.vector}"
        group = problem.weight.group or "column"
        return verified(
            Kernel(
                f"coded_wgmma_{problem.weight.codes}_{group}_{problem.dtype}_{shape}",
                problem,
                Variant(alignment_bytes=WIDEST_BYTES, near=True, result_bytes=self.vector * problem.out.bytes),
                (ceil_div_of(SIZES["n"], self.columns) * self.cluster, ceil_div_of(SIZES["m"], self.rows), Const(1)),
                (self.threads, 1, 1),
                body.shared,
                body.body(),
                {},
                cluster=self.cluster,
                overlapped=self.overlapped,
            )
        )
