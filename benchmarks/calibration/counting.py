"""What the simulator counts, held against the hardware counters that Nsight Compute reads.

Address-level counts are a pure function of the addresses and must be equal: requests and sectors of global memory,
requests and wavefronts of shared memory. The kernel is compiled with merging of shared loads switched off, so that each
instruction that was counted is one that runs (docs/decisions/0002).
"""

from __future__ import annotations

import hashlib
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import ncu

from calibration.records import METRICS, SOURCE_PAGE, Calibration, Comparison
from tilewright.artifacts import CudaSource
from tilewright.bench import records
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
from tilewright.simulator import Counters, counting
from tilewright.toolchain import Build, arguments, build, grid_of, run_on_simulator

_COMMAND = Path(__file__).parents[1] / "calibrate.py"


def simulated(rung: Rung, size: int) -> dict[str, float]:
    """The simulator's counts of a rung at a cubic size, by our names."""
    gemm = rung.gemm(size, size, size)
    _, run = run_on_simulator(build(gemm, rung), make_operands(gemm), detectors=False, arithmetic=counting())
    return counts_of(run.counters)


def counts_of(counters: Counters) -> dict[str, float]:
    """The counts that Nsight Compute has too, by our names; as it does, ldmatrix and cp.async apart."""
    loads, stores = counters.shared_loads, counters.shared_stores
    by_copies = counters.where(lambda line: not line.opcodes).shared_stores
    executed = counters.instructions

    def executions(*opcodes: str) -> int:
        return sum(count for opcode, count in executed.items() if opcode.partition(".")[0] in opcodes)

    # Nsight Compute has no count of what wgmma reads; it adds it to the wavefronts of loads and stores.
    operands = counters.operand_wavefronts
    memory = executions("LDG", "STG", "LDS", "STS", "LDSM", "STSM", "LDGSTS", "SHFL")
    return {
        "global_load_requests": counters.global_loads.requests,
        "global_load_sectors": counters.global_loads.sectors,
        "global_store_requests": counters.global_stores.requests,
        "global_store_sectors": counters.global_stores.sectors,
        "shared_load_requests": _requests(counters, "LDS"),
        "shared_store_requests": _requests(counters, "STS"),
        "ldmatrix_requests": executions("LDSM"),
        "async_copy_requests": executions("LDGSTS"),
        "shared_wavefronts": loads.wavefronts + stores.wavefronts + operands,
        "shared_wavefronts_ideal": loads.ideal_wavefronts + stores.ideal_wavefronts + operands,
        "hardware_shared_load_wavefronts": loads.wavefronts,
        "hardware_shared_store_wavefronts": stores.wavefronts - by_copies.wavefronts,
        "fma_instructions": sum(line.lane_executions * dict(line.opcodes).get("FFMA", 0) for line in counters.lines),
        "lsu_pipe_instructions": memory,
        "fma_pipe_instructions": executions("FFMA", "FMUL", "FADD"),
        "tensor_pipe_instructions": executions(*(opcode for opcode in executed if opcode.endswith("MMA"))),
        "all_instructions": sum(executed.values()),
    }


def _simulated_by_name(name: str, size: int) -> dict[str, float]:
    """For another process: a rung holds functions, which do not travel."""
    return simulated(find_rung(name), size)


def _requests(counters: Counters, opcode: str) -> int:
    """Requests of the lines of shared memory that are this instruction, of any width."""
    lines = (line for line in counters.lines if line.space is Space.SHARED and line.opcodes)
    return sum(line.requests for line in lines if all(name.partition(".")[0] == opcode for name, _ in line.opcodes))


def source_digest(built: Build) -> str:
    """Of the kernel as it is counted: whether a rung is still the one of a record."""
    return hashlib.sha256(_counted_source(built).text.encode()).hexdigest()[:16]


def _counted_source(built: Build) -> CudaSource:
    return print_cuda(built.kernel, merge=False)


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
    command = [sys.executable, str(_COMMAND), rung.name, "--size", str(size), "--launch"]
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
    earlier: Calibration | None = None,
) -> Calibration:
    """Compare rungs on the GPU at hand. The simulator runs in processes of its own while ncu counts.

    keep: is given what there is after each rung, so that a run that is stopped loses none. earlier: what is there
    already, to go on with: rungs whose kernels it has are simulated, and not counted again. Raises LaunchError where
    there is no GPU or no ncu. A rung that fails is told in `failed`; the others go on.
    """
    gpu = open_gpu()
    spec = probe(gpu)
    chip = ncu.chip_of(gpu.compute_capability)
    ncu.metric_listing(chip)  # raises where ncu is missing, before anything is simulated
    origin: Any = {"driver": gpu.driver_version, "compiler": compiler_version(), "commit": records.commit()}
    found = Calibration(gpu.name, records.now(), records.command(), size, (), **origin)
    if earlier is not None:
        found = _going_on(found, earlier)
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
                    built = build(rung.gemm(size, size, size), rung)
                    digest = source_digest(built)
                    if found.sources.get(rung.name) == digest:
                        rows = recounted(found.of_rung(rung.name), ours.result())
                    else:
                        rows = compare(rung, size, {**ours.result(), **estimated(built, spec)}, chip=chip)
                    found = found.with_rung(rung.name, digest, rows)
                except TilewrightError as error:
                    found = found.without(rung.name)
                    found = replace(found, failed={**found.failed, rung.name: str(error)})
                keep(found)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    return found


def _going_on(begun: Calibration, earlier: Calibration) -> Calibration:
    """What was counted earlier, under today's date. Raises TilewrightError where it was counted on something else."""
    for name in ("device", "size", "driver", "compiler"):
        was, today = getattr(earlier, name), getattr(begun, name)
        if was != today:
            raise TilewrightError(
                f"This run cannot go on with that record: its {name} is {was}, and here it is {today}.",
                hint="give --record a file that is not there yet.",
            )
    command = begun.command if begun.command == earlier.command else f"{earlier.command}; {begun.command}"
    return replace(earlier, date=begun.date, commit=begun.commit, command=command)


def recounted(rows: Sequence[Comparison], ours: Mapping[str, float]) -> list[Comparison]:
    """Rows with other simulated counts, as far as there are some: what was measured and estimated stays."""
    return [replace(row, simulated=ours.get(row.count, row.simulated)) for row in rows]


# -- the launch that ncu watches ------------------------------------------------------------------------------


def launch(rung: Rung, size: int) -> None:
    """Run a rung once on the GPU, compiled for counting."""
    gemm = rung.gemm(size, size, size)
    built = build(gemm, rung)
    gpu = open_gpu()
    source = _counted_source(built)
    kernel = load(gpu, compile_cuda(source, gpu.arch, cache=CubinCache()), source)
    operands = make_operands(gemm)
    arrays = [DeviceArray.of(gpu, host) for host in (operands.a, operands.b, operands.c)]
    args = arguments(gemm, [array.pointer for array in arrays])
    kernel.launch(gpu.stream, grid_of(built.kernel, gemm), built.kernel.block, args)
    gpu.synchronize()
