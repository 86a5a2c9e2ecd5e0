"""Whether a compiled kernel has the room on an SM that its estimate counts on."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from tilewright.artifacts import Cubin, CudaSource
from tilewright.device.spec import DeviceSpec
from tilewright.kernels.columns import Columns
from tilewright.kernels.mma import MmaConfig
from tilewright.kernels.simt import SimtConfig, shared_bytes
from tilewright.kernels.tile_sizes import warps_of
from tilewright.model.occupancy import blocks_that_fit
from tilewright.planning.cost.block_clocks import blocks_per_sm
from tilewright.planning.cost.exchange import filled_sms
from tilewright.planning.packing import as_read
from tilewright.planning.plan import Plan

MOST_PASSED_OVER = 3
"""Plans of a problem that are passed over for what the compiler made of them: the next ones are about as fast, and each
takes a second to compile."""

_FEW_SPILLED_BYTES = 64


def runs_as_counted(plan: Plan, cubins: Mapping[CudaSource, Cubin], spec: DeviceSpec) -> bool:
    """Whether a kernel of warps spills hardly a register, and as many blocks of a SIMT one run on an SM as its estimate
    counts on, as far as that is known; of other kernels, yes. cubins: of kernels, by their texts.

    Nothing tells before compiling what ptxas gives a thread: guards of single elements took up to 120 registers more
    than was thought. Of 154 choices 9 had fewer blocks, which took 1.29 of what was estimated, the others 0.998; five
    kernels that spill 340 bytes took 0.99 to 1.38 (f32, H200, benchmarks/results/choice_of_simt.json); seven of
    mma.sync that spill 128 to 276 took 1.13 to 3.1 of it (54 x 1454 x 7249 tf32 among others, H200). Blocks of
    stream-K that load fragments ahead may be one less: those that run share out all of k (docs/decisions/0098).
    """
    product = next((step for step in plan.steps if step.multiplied is not None), None)
    if not cubins or product is None or product.multiplied is None:
        return True
    cubin, config = cubins.get(product.launch.source), product.multiplied.config
    if cubin is None or not isinstance(config.kernel, SimtConfig | MmaConfig):
        return True
    given = cubin.resources
    if given.spill_store_bytes > _FEW_SPILLED_BYTES:
        return False
    if isinstance(config.kernel, MmaConfig):
        return True
    c, read = Columns.of([config.kernel], config.kernel.columns), as_read(product.multiplied.gemm, config)
    needed = np.ceil(prod(product.launch.grid) / filled_sms(c, spec))
    shared, registers = shared_bytes(c, read), np.array([given.registers])
    found = blocks_that_fit(spec, warps=warps_of(c), registers_per_thread=registers, shared_bytes=shared)
    shares = config.kernel.stream_k and config.kernel.double_buffered_fragments
    counted = blocks_per_sm("simt", c, read, spec) - shares
    return bool((found >= np.minimum(counted, needed))[0])
