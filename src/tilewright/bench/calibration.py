"""What the simulator counts, held against the hardware counters that Nsight Compute reads.

Address-level counts are a pure function of the addresses and must be equal: requests and sectors of global memory,
requests and wavefronts of shared memory. The kernel is compiled with merging of shared loads switched off, so that each
instruction that was counted is one that runs (docs/decisions/0002).

    python -m tilewright.bench.calibration launch worklog/6 512     one launch, for ncu to watch
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, fields, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tilewright.bench import ncu, records
from tilewright.codegen import print_cuda
from tilewright.device.spec import WARP_THREADS, DeviceSpec
from tilewright.errors import TilewrightError
from tilewright.ir.buffer import Space
from tilewright.ladders import find_rung
from tilewright.ladders.rung import Rung
from tilewright.problem.reference import make_operands
from tilewright.runtime.cubin_cache import CubinCache
from tilewright.runtime.driver import open_gpu
from tilewright.runtime.launch import load
from tilewright.runtime.memory import DeviceArray
from tilewright.runtime.nvrtc import compile_cuda, compiler_version
from tilewright.runtime.probe import probe
from tilewright.simulator import Counters
from tilewright.toolchain import Build, arguments, build, grid_of, run_on_simulator

FORMAT = 1

METRICS: dict[str, str] = {
    "global_load_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "global_load_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "global_store_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "global_store_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "shared_load_requests": "smsp__sass_inst_executed_op_shared_ld.sum",
    "shared_store_requests": "smsp__sass_inst_executed_op_shared_st.sum",
    "ldmatrix_requests": "smsp__sass_inst_executed_op_ldsm.sum",
    "async_copy_requests": "smsp__sass_inst_executed_op_ldgsts.sum",
    "shared_wavefronts": "memory_l1_wavefronts_shared",
    "shared_wavefronts_ideal": "memory_l1_wavefronts_shared_ideal",
    "hardware_shared_load_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "hardware_shared_store_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    "fma_instructions": "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum",
    "lsu_pipe_instructions": "sm__inst_executed_pipe_lsu.sum",
    "fma_pipe_instructions": "sm__inst_executed_pipe_fma.sum",
    "tensor_pipe_instructions": "sm__inst_executed_pipe_tensor.sum",
    "all_instructions": "smsp__inst_executed.sum",
    "l2_hit_rate_percent": "lts__t_sector_hit_rate.pct",
    "achieved_occupancy_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
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


@dataclass(frozen=True, slots=True)
class Calibration:
    """What one run compared. failed: rungs that could not be counted, and why."""

    device: str
    date: str
    command: str
    size: int
    rows: tuple[Comparison, ...]
    driver: str = ""
    compiler: str = ""
    commit: str = ""
    failed: Mapping[str, str] = field(default_factory=dict)


def simulated(rung: Rung, size: int) -> dict[str, float]:
    """The simulator's counts of a rung at a cubic size, by our names."""
    gemm = rung.gemm(size, size, size)
    _, run = run_on_simulator(build(gemm, rung), make_operands(gemm), detectors=False)
    return counts_of(run.counters)


def counts_of(counters: Counters) -> dict[str, float]:
    """The counts that Nsight Compute has too, by our names; as it does, ldmatrix and cp.async apart."""
    loads, stores = counters.shared_loads, counters.shared_stores
    executed = counters.instructions

    def executions(*opcodes: str) -> int:
        return sum(count for opcode, count in executed.items() if opcode.partition(".")[0] in opcodes)

    memory = executions("LDG", "STG", "LDS", "STS", "LDSM", "STSM", "LDGSTS")
    return {
        "global_load_requests": counters.global_loads.requests,
        "global_load_sectors": counters.global_loads.sectors,
        "global_store_requests": counters.global_stores.requests,
        "global_store_sectors": counters.global_stores.sectors,
        "shared_load_requests": _requests(counters, "LDS"),
        "shared_store_requests": _requests(counters, "STS"),
        "ldmatrix_requests": executions("LDSM"),
        "async_copy_requests": executions("LDGSTS"),
        "shared_wavefronts": loads.wavefronts + stores.wavefronts,
        "shared_wavefronts_ideal": loads.ideal_wavefronts + stores.ideal_wavefronts,
        "hardware_shared_load_wavefronts": loads.wavefronts,
        "hardware_shared_store_wavefronts": stores.wavefronts,
        "fma_instructions": sum(line.lane_executions * dict(line.opcodes).get("FFMA", 0) for line in counters.lines),
        "lsu_pipe_instructions": memory,
        "fma_pipe_instructions": executions("FFMA", "FMUL", "FADD"),
        "tensor_pipe_instructions": executions("HMMA", "HGMMA"),
        "all_instructions": sum(executed.values()),
    }


def _simulated_by_name(name: str, size: int) -> dict[str, float]:
    """For another process: a rung holds functions, which do not travel."""
    return simulated(find_rung(name), size)


def _requests(counters: Counters, opcode: str) -> int:
    """Requests of the lines of shared memory that are this instruction, of any width."""
    lines = (line for line in counters.lines if line.space is Space.SHARED and line.opcodes)
    return sum(line.requests for line in lines if all(name.partition(".")[0] == opcode for name, _ in line.opcodes))


def estimated(built: Build, spec: DeviceSpec) -> dict[str, float]:
    """What follows from more than addresses: the L2 hit rate, where it can be estimated, and the occupancy.

    Occupancy is of the SMs that have blocks, with the grid spread evenly.
    """
    cubin = built.compile(spec.arch, cache=CubinCache())
    found, l2 = built.occupancy(spec, cubin), built.l2(spec, cubin)
    x, y, z = grid_of(built.kernel, built.gemm)
    resident = min(found.blocks_per_sm, -(-x * y * z // spec.sm_count))
    warps = resident * built.source.threads_per_block / WARP_THREADS
    occupancy = {"achieved_occupancy_percent": 100 * warps / spec.max_warps_per_sm}
    return occupancy if l2 is None else {**occupancy, "l2_hit_rate_percent": round(100 * l2.hit_rate, 2)}


def compare(
    rung: Rung, size: int, ours: Mapping[str, float] | None = None, *, chip: str = ncu.HOPPER
) -> list[Comparison]:
    """Simulate a rung (or take `ours`), run it under ncu, and lay the counts side by side."""
    counted_here = simulated(rung, size) if ours is None else ours
    command = [sys.executable, "-m", "tilewright.bench.calibration", "launch", rung.name, str(size)]
    wanted = list(METRICS.values())
    with tempfile.TemporaryDirectory(prefix="tilewright-calibration-") as folder:
        report = ncu.record(command, [*ncu.existing_metrics(wanted, chip), *SOURCE_PAGE], Path(folder) / "report")
        counted = ncu.read_counters(report)[-1].values
        by_address = ncu.read_source(report)[-1]
    values = {**counted, **{metric: by_address.total(metric) for metric in SOURCE_PAGE}}
    return [
        Comparison(rung.name, size, name, counted_here.get(name), values.get(metric))
        for name, metric in METRICS.items()
    ]


def calibrate(
    rungs: Sequence[Rung],
    size: int,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
    keep: Callable[[Calibration], None] = lambda so_far: None,
) -> Calibration:
    """Compare rungs on the GPU at hand. The simulator runs in processes of its own while ncu counts.

    keep: is given what there is after each rung, so that a run that is stopped loses none. Raises LaunchError where
    there is no GPU or no ncu. A rung that fails is told in `failed`; the others go on.
    """
    gpu = open_gpu()
    spec = probe(gpu)
    chip = ncu.chip_of(gpu.compute_capability)
    ncu.metric_listing(chip)  # raises where ncu is missing, before anything is simulated
    origin: Any = {"driver": gpu.driver_version, "compiler": compiler_version(), "commit": records.commit()}
    begun = Calibration(gpu.name, records.now(), records.command(), size, (), **origin)
    rows: list[Comparison] = []
    failed: dict[str, str] = {}
    ignoring: Any = {
        "initializer": signal.signal,
        "initargs": (signal.SIGINT, signal.SIG_IGN),
    }  # it is for this process
    with ProcessPoolExecutor(mp_context=get_context("spawn"), **ignoring) as pool:
        waiting = [pool.submit(_simulated_by_name, rung.name, size) for rung in rungs]
        try:
            for number, (rung, ours) in enumerate(zip(rungs, waiting, strict=True)):
                progress(rung.name, number, len(rungs))
                try:
                    model = estimated(build(rung.gemm(size, size, size), rung), spec)
                    rows += compare(rung, size, {**ours.result(), **model}, chip=chip)
                except TilewrightError as error:
                    failed[rung.name] = str(error)
                keep(replace(begun, rows=tuple(rows), failed=dict(failed)))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    return replace(begun, rows=tuple(rows), failed=failed)


# -- files ----------------------------------------------------------------------------------------------------


def write(path: Path, found: Calibration) -> None:
    """A calibration as JSON."""
    data = {name.name: getattr(found, name.name) for name in fields(Calibration) if name.name != "rows"}
    rows = [row.as_dict() for row in found.rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"format": FORMAT, **data, "rows": rows}, indent=1) + "\n", encoding="utf-8")


def read(path: Path) -> Calibration:
    """The calibration in a file. Raises TilewrightError where there is none, or of a newer format."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data.get("format", FORMAT) > FORMAT:
            raise TilewrightError(
                f"{path.name!r} is of a newer format: {data['format']}, and this tilewright reads {FORMAT}.",
                hint="python -m pip install --upgrade tilewright",
            )
        names = [field.name for field in fields(Comparison)]
        rows = tuple(Comparison(**{name: row[name] for name in names}) for row in data["rows"])
        known = {field.name for field in fields(Calibration)} - {"rows"}
        return Calibration(rows=rows, **{name: value for name, value in data.items() if name in known})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise TilewrightError(f"{path.name!r} is no calibration: {error}.") from None


def recorded() -> list[Calibration]:
    """The calibrations that ship with the package, oldest first."""
    found = [read(path) for path in sorted(records.recorded_folder().glob("calibration_*.json"))]
    return sorted(found, key=lambda one: one.date)


# -- the launch that ncu watches ------------------------------------------------------------------------------


def launch(name: str, size: int) -> None:
    """Run a rung once on the GPU, compiled for counting."""
    rung = find_rung(name)
    gemm = rung.gemm(size, size, size)
    built = build(gemm, rung)
    gpu = open_gpu()
    source = print_cuda(built.kernel, merge=False)
    kernel = load(gpu, compile_cuda(source, gpu.arch, cache=CubinCache()), source)
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
