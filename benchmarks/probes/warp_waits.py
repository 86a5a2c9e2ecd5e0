"""What warps of rungs wait for in a step, and at which clock they run: samples and counters of Nsight Compute.

    python benchmarks/probes/warp_waits.py --out benchmarks/results/warp_waits_h200.json

Each rung runs once, with caches flushed. The samples of an instruction that waits for scoreboards are those of the last
instructions that set them, by kind; clocks are samples as a share of all, times the clocks of a step. So they are of a
mean warp, and of all that it waits for there: an instruction that has its operands may wait for its turn.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
import ncu
from rung_sizes import Size, built_at, compiled, size_of

from tilewright.bench.ladder import launcher
from tilewright.bench.records import this_run
from tilewright.device.catalog import device
from tilewright.prediction.counting import work_of
from tilewright.problem.reference import make_operands
from tilewright.runtime.cubin_cache import CubinCache
from tilewright.runtime.driver import open_gpu
from tilewright.runtime.machine_code import Kind, MachineCode
from tilewright.runtime.memory import DeviceArray
from tilewright.runtime.nvrtc import compiler_version
from tilewright.runtime.probe import probe

RUNGS = [
    *(f"worklog/{rung}" for rung in (4, 5, 6, 7, 8, 9, 10, 12, "best")),
    *(f"hierarchy/{rung}" for rung in ("v04", "v05", "v06", "v06_double_buffered", "v07", "v07_double_buffered")),
    *(f"swizzle/{rung}" for rung in ("opt", "async_copy", "wmma_tf32", "stages_2", "stages_3")),
    *("te/3", "te/5", "ampere/1", "ampere/2", "ampere/3", "ampere/4", "ampere/6"),
]

SAMPLES = "group:smsp__pcsamp_warp_stall_reasons"
COUNTERS = ("sm__cycles_elapsed.max", "sm__cycles_active.max", "gpu__time_duration.sum")
_ITERATIONS = 2  # until scoreboards that an iteration leaves are known to the next


def launch(names: Sequence[str], sizes: Sequence[Size]) -> None:
    """Runs each rung once."""
    gpu = open_gpu()
    spec = probe(gpu)
    for size in sizes:
        for name in names:
            built = built_at(name, size, spec)
            operands = make_operands(built.gemm)
            arrays = [DeviceArray.of(gpu, one) for one in (operands.a, operands.b, operands.c)]
            launcher(built, gpu, CubinCache())([one.pointer for one in arrays])
            gpu.synchronize()
            for one in arrays:
                one.close()


def awaited_kinds(code: MachineCode, loop: tuple[int, int]) -> dict[int, set[Kind]]:
    """Of the instructions of a loop that wait for scoreboards, the kinds of those that set them."""
    setters: dict[int, Kind] = {}
    found: dict[int, set[Kind]] = {}
    for _ in range(_ITERATIONS):
        for at in range(loop[0], loop[1] + 1):
            one = code.instructions[at]
            for scoreboard in [number for number in setters if one.awaits >> number & 1]:
                found.setdefault(at, set()).add(setters.pop(scoreboard))
            if one.sets is not None:
                setters[one.sets] = one.kind
    return found


def told_of(name: str, size: Size, counters: ncu.LaunchCounters, source: ncu.LaunchSource) -> dict[str, Any]:
    """A line of the record."""
    spec = device("H200")
    built = built_at(name, size, spec)
    code = MachineCode.of(built.compile(spec.arch, cache=CubinCache()))
    elapsed, active, nanoseconds = (counters.values[counter] for counter in COUNTERS)
    told: dict[str, Any] = {"rung": name, "size": size[0], "mhz": round(1000 * elapsed / nanoseconds)}
    samples = [one.values.get(SAMPLES, 0.0) for one in source.instructions]
    if code.main_loop is None or len(samples) != len(code.instructions):
        return told
    step = active / work_of(built).steps
    waits: dict[str, float] = {}
    for at, kinds in awaited_kinds(code, code.main_loop).items():
        key = " or ".join(sorted(kind.value or "other" for kind in kinds))
        waits[key] = waits.get(key, 0.0) + samples[at] / sum(samples) * step
    return told | {"step_clocks": round(step), "waits": {key: round(clocks) for key, clocks in waits.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rungs", nargs="+", default=RUNGS)
    parser.add_argument("--sizes", nargs="+", type=size_of, default=[(960, 960, 960)])
    parser.add_argument("--launch", action="store_true", help="run the rungs once: what Nsight Compute watches")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.launch:
        launch(given.rungs, given.sizes)
        return
    cases = [(name, size) for size in given.sizes for name in given.rungs]
    with ProcessPoolExecutor() as pool:
        list(pool.map(compiled, *zip(*cases, strict=True), [device("H200")] * len(cases)))
    sizes = ["x".join(map(str, size)) for size in given.sizes]
    command = [sys.executable, __file__, "--launch", "--rungs", *given.rungs, "--sizes", *sizes]
    with tempfile.TemporaryDirectory() as folder:
        report = ncu.record(command, [*COUNTERS, SAMPLES, "inst_executed"], Path(folder) / "report")
        counters, sources = ncu.read_counters(report), ncu.read_source(report)
    lines = [told_of(*case, *both) for case, *both in zip(cases, counters, sources, strict=True)]
    head = {"device": "NVIDIA H200", "compiler": compiler_version(), **this_run()}
    rows = ",\n".join(json.dumps(line, separators=(",", ":")) for line in lines)
    given.out.write_text(f'{json.dumps(head)[:-1]}, "kernels": [\n{rows}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
