"""When m or n is so small that reading the other matrix is all the time: which GEMV kernel, and how long it takes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import log
from typing import Any

from tilewright.device.spec import DeviceSpec
from tilewright.dtypes import F32, FP8_FORMATS, TF32
from tilewright.ir.kernel import Kernel
from tilewright.ir.work import Problems
from tilewright.kernels.gemv import MOST_ROWS, GemvConfig
from tilewright.kernels.gemv_body import gemv_kernel
from tilewright.kernels.gemv_space import Facts, blocks_of, blocks_that_fit, fitting, shared_bytes, starts_early
from tilewright.kernels.skinny import is_k_major, long_of, short_of
from tilewright.lowering.variants import MAX_INDEX
from tilewright.planning.cost.gemv import (
    LEAST_OF_PARTS_SECONDS,
    NOMINAL,
    dram_seconds,
    gemv_seconds,
    least_plan_seconds,
    overlapped,
    sm_seconds,
    times_of_memory,
)
from tilewright.planning.packing import Alignment, Stack
from tilewright.problem.epilogue import PLAIN
from tilewright.problem.gemm import Gemm
from tilewright.toolchain import arguments, grid_of
from tilewright.units import ceil_div, round_up

MOST_ROWS_NARROW = 4
"""Of 2-byte formats, which come twice as fast and must be unpacked; beyond, tensor cores are faster."""

_LEAST_LONG, _LEAST_DEPTH = 64, 1024
"""Columns, or products of a result, below which a problem is not long, only small."""

_LEAST_PART = 256
"""Products that are worth a part of their own."""

_WAVES = (1, 2)
"""Of blocks that a sum is split into, as many as SMs have room for in each: where outputs are too few, and where the
last wave of their blocks leaves SMs idle. A block an SM is tried as well."""

_STEPS_OF_TIME = 20
"""Times whose logarithms, this many times, round to one number are taken as equal: some 5 %."""

_SHARED_STEP_BYTES = 128
"""In which an SM hands out shared memory. Source: CUDA occupancy calculator, compute capability 9.0."""


@dataclass(frozen=True, slots=True)
class Start:
    """How a kernel starts. spare_bytes: of shared memory that a launch takes and no thread uses."""

    early: bool = False
    spare_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Skinny:
    """A GEMV kernel for a problem. problem: what the kernel computes; its partial sums, where k is split. parts: of k,
    in the workspace, of part_of_k products each."""

    config: GemvConfig
    problem: Gemm
    parts: int
    part_of_k: int
    stack: Stack | None = None

    @property
    def whole(self) -> bool:
        """Whether C is written at once, without a workspace."""
        return self.parts == 1

    @property
    def key(self) -> Any:
        """What the kernel is made for."""
        formats = (getattr(self.problem, name) for name in ("dtype", "out", "a", "b", "c", "epilogue"))
        long = long_of(self.problem)
        return replace(self.config, split_k=min(self.parts, 2)), *formats, long, self.stack is not None

    def kernel(self, early: bool = False) -> Kernel:
        """The kernel for every problem of the same `key`."""
        config = replace(self.config, split_k=min(self.parts, 2))
        problems = Problems.ONE if self.stack is None else Problems.STRIDED
        return gemv_kernel(config, self.problem, problems=problems, early=early)

    def start(self, spec: DeviceSpec) -> Start:
        """How the kernel starts on a device. In one wave each SM has room for its share of the blocks and for no more:
        else those that find SMs on which the kernel before has ended crowd there."""
        count = 1 if self.stack is None else self.stack.count
        early = starts_early(self.config, self.problem, spec, count)
        each = ceil_div(blocks_of(self.config, self.problem, count), spec.sm_count)
        if not early or each > blocks_that_fit(self.config, self.problem, spec):
            return Start(early)
        room_bytes = spec.shared_bytes_per_sm // (each + 1) - spec.reserved_shared_bytes_per_block
        own_bytes = shared_bytes(self.config, self.problem)
        return Start(early, max(0, round_up(room_bytes + 1 - own_bytes, _SHARED_STEP_BYTES)))

    def grid(self, kernel: Kernel) -> tuple[int, int, int]:
        """Blocks along x, y, z."""
        batch = 1 if self.stack is None else self.stack.count
        return grid_of(kernel, self.problem, part_of_k=self.part_of_k, batch=batch)

    def arguments(self, flags: int = 0) -> tuple[Any, ...]:
        """Of the launch, with no addresses yet. flags: that it is told beside the matrices."""
        nowhere = (0,) * (len(self.problem.matrices) + flags)
        given = arguments(self.problem, nowhere, part_of_k=0 if self.whole else self.part_of_k)
        if self.stack is None:
            return given
        return (*given, self.stack.a, self.stack.b, self.stack.c, *self.stack.added, self.stack.count)

    def __str__(self) -> str:
        return "gemv" + (f", k in {self.parts} parts" if self.parts > 1 else "")


def skinny_for(
    gemm: Gemm, alignment: Alignment, spec: DeviceSpec | None, stack: Stack | None = None, *, parts: int = 0
) -> Skinny | None:
    """The GEMV kernel for a problem or a stack of them; None where it is not skinny, or another format is asked for.

    parts: of k; 0 for as many as are fastest on the device, which must be known then. The shape of the kernel follows
    from the problem and the parts alone, so that a plan is the same on every device. Operands that may be rounded to
    tf32 are not: that would win no time here.
    """
    if gemm.dtype in FP8_FORMATS:
        return None
    most = MOST_ROWS if gemm.dtype is F32 else MOST_ROWS_NARROW
    few, many = min(gemm.m, gemm.n), max(gemm.m, gemm.n)
    if not 1 <= few <= most or (many < _LEAST_LONG and gemm.k < _LEAST_DEPTH):
        return None
    if gemm.accumulate is not F32 or gemm.product not in (None, gemm.dtype, TF32) or not gemm.k:
        return None
    exact = replace(gemm, product=None)
    if parts:
        return _shaped(exact, alignment, stack, parts)
    assert spec is not None
    whole = _shaped(exact, alignment, stack, 1)
    if whole is None or stack is not None:  # problems of a batch fill the GPU together
        return whole
    whole_seconds = gemv_seconds(whole.config, exact, spec)
    if whole_seconds - least_plan_seconds(exact, spec) < LEAST_OF_PARTS_SECONDS:
        return whole
    blocks = ceil_div(many, whole.config.outputs_of_block(k_major=is_k_major(gemm)))
    room = blocks_that_fit(whole.config, exact, spec)
    splits = {spec.sm_count // blocks, *(waves * room * spec.sm_count // blocks for waves in _WAVES)}
    shaped = (_shaped(exact, alignment, stack, split) for split in sorted(splits) if 1 < split <= gemm.k // _LEAST_PART)
    return min((whole, *(one for one in shaped if one)), key=lambda one: gemv_seconds(one.config, exact, spec))


@lru_cache(maxsize=4096)
def _shaped(gemm: Gemm, alignment: Alignment, stack: Stack | None, split: int) -> Skinny | None:
    """The kernel for a split, as it is fastest on an H200."""
    facts = Facts(alignment.of(long_of(gemm)), alignment.of(short_of(gemm)), _reach(gemm, split) <= MAX_INDEX)
    count = 1 if stack is None else stack.count
    candidates = list(fitting(gemm, facts, split))
    if not candidates:
        return None
    dram = dram_seconds(gemm, NOMINAL, count)

    def rank(one: GemvConfig) -> tuple[int, int, float]:
        """Of kernels that are about as fast the one whose blocks read the skinny operand least often."""
        busy = sm_seconds(one, gemm, count=count)
        told = round(_STEPS_OF_TIME * log(overlapped(dram * times_of_memory(one, gemm), busy)))
        return told, -one.outputs_of_block(k_major=is_k_major(gemm)), busy

    best = min(candidates, key=rank)
    parts = best.parts(gemm)
    if parts == 1:
        return Skinny(best, gemm, 1, 0, stack)
    partial = replace(gemm, out=F32, ldc=gemm.n, alpha=1.0, beta=0.0, epilogue=PLAIN, ld_added=(), numbers=())
    return Skinny(best, partial, parts, best.part_of_k(gemm), stack)


def _reach(gemm: Gemm, split: int) -> int:
    """An offset that no thread's exceeds."""
    operands = max(gemm.storage_elements(matrix.name) for matrix in gemm.matrices)
    return max(operands + gemm.lda + gemm.ldb, split * gemm.m * gemm.n) + MOST_BEYOND


MOST_BEYOND = 1 << 16
"""Elements by which blocks at an edge count beyond a matrix, at most."""
