"""What the simulator counts, held against the hardware counters that Nsight Compute reads.

Address-level counts are a pure function of the addresses and must be equal: requests and sectors of global memory,
requests and wavefronts of shared memory. The kernel is compiled with merging of shared loads switched off, so that each
instruction that was counted is one that runs (docs/decisions/0002).

    python -m tilewright.bench.calibration launch worklog/6 512     one launch, for ncu to watch
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tilewright.bench import ncu
from tilewright.codegen import print_cuda
from tilewright.ladders import find_rung
from tilewright.ladders.rung import Rung
from tilewright.problem.reference import make_operands
from tilewright.runtime.driver import open_gpu
from tilewright.runtime.launch import load
from tilewright.runtime.memory import DeviceArray
from tilewright.runtime.nvrtc import compile_cuda
from tilewright.simulator import Counters
from tilewright.toolchain import arguments, build, grid_of, run_on_simulator

METRICS: dict[str, str] = {
    "global_load_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "global_load_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "global_store_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "global_store_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "shared_load_requests": "smsp__sass_inst_executed_op_shared_ld.sum",
    "shared_store_requests": "smsp__sass_inst_executed_op_shared_st.sum",
    "shared_wavefronts": "memory_l1_wavefronts_shared",
    "shared_wavefronts_ideal": "memory_l1_wavefronts_shared_ideal",
    "hardware_shared_load_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "hardware_shared_store_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    "l2_hit_rate_percent": "lts__t_sector_hit_rate.pct",
    "achieved_occupancy_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "fma_instructions": "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum",
}
"""Our name of each count, and the metric of Nsight Compute."""

SOURCE_PAGE = ("memory_l1_wavefronts_shared", "memory_l1_wavefronts_shared_ideal")
"""The metrics that Nsight Compute computes from addresses, instruction by instruction, on its source page."""

EXACT = (
    "global_load_requests",
    "global_load_sectors",
    "global_store_requests",
    "global_store_sectors",
    "shared_load_requests",
    "shared_store_requests",
    "shared_wavefronts",
)
"""The counts that must be equal."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One count of one rung: simulated, and measured (None where the counter could not be read)."""

    rung: str
    size: int
    count: str
    simulated: float | None
    measured: float | None

    @property
    def is_equal(self) -> bool:
        return self.simulated is not None and self.simulated == self.measured

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "metric": METRICS[self.count], "must_be_equal": self.count in EXACT}


def simulated(rung: Rung, size: int) -> dict[str, float]:
    """The simulator's counts of a rung at a cubic size, by our names."""
    gemm = rung.gemm(size, size, size)
    _, run = run_on_simulator(build(gemm, rung), make_operands(gemm), detectors=False)
    return counts_of(run.counters)


def counts_of(counters: Counters) -> dict[str, float]:
    """The counts that Nsight Compute has too, by our names."""
    loads, stores = counters.shared_loads, counters.shared_stores
    return {
        "global_load_requests": counters.global_loads.requests,
        "global_load_sectors": counters.global_loads.sectors,
        "global_store_requests": counters.global_stores.requests,
        "global_store_sectors": counters.global_stores.sectors,
        "shared_load_requests": loads.requests,
        "shared_store_requests": stores.requests,
        "shared_wavefronts": loads.wavefronts + stores.wavefronts,
        "shared_wavefronts_ideal": loads.ideal_wavefronts + stores.ideal_wavefronts,
        "hardware_shared_load_wavefronts": loads.wavefronts,
        "hardware_shared_store_wavefronts": stores.wavefronts,
        "fma_instructions": counters.fmas,
    }


def compare(rung: Rung, size: int) -> list[Comparison]:
    """Simulate a rung, run it under ncu, and lay the counts side by side."""
    ours = simulated(rung, size)
    command = [sys.executable, "-m", "tilewright.bench.calibration", "launch", rung.name, str(size)]
    wanted = list(METRICS.values())
    with tempfile.TemporaryDirectory(prefix="tilewright-calibration-") as folder:
        report = ncu.record(command, [*ncu.existing_metrics(wanted), *SOURCE_PAGE], Path(folder) / "report")
        counted = ncu.read_counters(report)[-1].values
        by_address = ncu.read_source(report)[-1]
    values = {**counted, **{metric: by_address.total(metric) for metric in SOURCE_PAGE}}
    return [Comparison(rung.name, size, name, ours.get(name), values.get(metric)) for name, metric in METRICS.items()]


def launch(name: str, size: int) -> None:
    """Run a rung once on the GPU, compiled for counting."""
    rung = find_rung(name)
    gemm = rung.gemm(size, size, size)
    built = build(gemm, rung)
    gpu = open_gpu()
    source = print_cuda(built.kernel, merge=False)
    kernel = load(gpu, compile_cuda(source, gpu.arch), source)
    operands = make_operands(gemm)
    arrays = [DeviceArray.of(gpu, host) for host in (operands.a, operands.b, operands.c)]
    args = arguments(gemm, [array.pointer for array in arrays])
    kernel.launch(gpu.stream, grid_of(built.kernel, gemm), built.kernel.block, args)
    gpu.synchronize()


def main(words: Sequence[str]) -> int:
    if len(words) == 3 and words[0] == "launch":
        launch(words[1], int(words[2]))
        return 0
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
