"""Rungs timed at sizes that the model has not seen, to judge it: no term is chosen on these figures.

    python benchmarks/rung_sizes.py --sizes 896 1111 2304 4096x512x1024 --out benchmarks/results/rung_sizes_h100.json

Kernels are compiled in as many processes as there are cores, then the rungs of one problem are timed in turn. Results
are not checked: `tilewright ladder` does that. A rung that cannot run at a size is left out, and the record says why.
What the model reads from machine code is recorded as well, as another compiler moves loads to other places.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple
from pathlib import Path
from typing import Any

from tilewright.bench.clocks import ClockLog
from tilewright.bench.ladder import launcher
from tilewright.bench.protocol import RotatedOperands, measure
from tilewright.bench.records import this_run
from tilewright.device.spec import DeviceSpec
from tilewright.errors import TilewrightError
from tilewright.ladders import LADDERS, find_rung
from tilewright.prediction.counting import work_of
from tilewright.prediction.waits import with_waits
from tilewright.problem.gemm import Gemm
from tilewright.problem.reference import make_operands
from tilewright.runtime.cubin_cache import CubinCache
from tilewright.runtime.driver import Gpu, open_gpu
from tilewright.runtime.nvrtc import compiler_version
from tilewright.runtime.probe import probe
from tilewright.toolchain import Build, build, check_launchable

Size = tuple[int, int, int]


def size_of(text: str) -> Size:
    """
    >>> size_of("896"), size_of("4096x512x1024")
    ((896, 896, 896), (4096, 512, 1024))
    """
    numbers = [int(part) for part in text.split("x")]
    m, n, k = numbers * 3 if len(numbers) == 1 else numbers
    return m, n, k


def built_at(name: str, size: Size, spec: DeviceSpec) -> Build:
    rung = find_rung(name)
    return build(rung.gemm(*size), rung.on(spec))


def compiled(name: str, size: Size, spec: DeviceSpec) -> str:
    """Why a rung cannot run at a size; "" if it can, and its cubin is in the cache."""
    try:
        built = built_at(name, size, spec)
        check_launchable(built, spec, built.gemm)
        built.compile(spec.arch, cache=CubinCache())
    except TilewrightError as refused:
        return str(refused).splitlines()[0]
    return ""


def read_from_code(name: str, size: Size, spec: DeviceSpec) -> list[float]:
    """Blocks an SM, rounds of loads, and what `WarpStep` has, of the machine code of a rung at a size."""
    built = built_at(name, size, spec)
    cubin = built.compile(spec.arch, cache=CubinCache())
    work = with_waits(work_of(built), built, cubin, spec)
    blocks = built.occupancy(spec, cubin).blocks_per_sm
    step = () if work.read is None else astuple(work.read)
    return [round(float(number), 3) for number in (blocks, work.load_groups, *step)]


def timed(gpu: Gpu, spec: DeviceSpec, size: Size, names: Iterable[str], rounds: int, graph_ms: float) -> dict[str, Any]:
    """Microseconds of rungs at a size, and the clock meanwhile."""
    problems: dict[Gemm, dict[str, Build]] = {}
    for name in names:
        built = built_at(name, size, spec)
        problems.setdefault(built.gemm, {})[name] = built
    found: dict[str, float] = {}
    with ClockLog(gpu.uuid) as log:
        for gemm, sharing in problems.items():
            operands = RotatedOperands.of(gpu, make_operands(gemm), spec)
            launches = {name: launcher(built, gpu, CubinCache()) for name, built in sharing.items()}
            times = measure(gpu, launches, operands, rounds=rounds, graph_ms=graph_ms)
            found |= {name: round(one.median_us, 2) for name, one in times.items()}
            operands.close()
    return {"clock_mhz": log.median_clock_mhz, "us": found}


def record(origin: Mapping[str, Any], names: Sequence[str], sizes: Mapping[str, Mapping[str, Any]]) -> str:
    """The file: microseconds of each size, and what was read from machine code, in the order of `rungs`; null where a
    rung cannot run."""
    lines = []
    for size, told in sizes.items():
        in_order = {**told, **{what: [told[what].get(name) for name in names] for what in ("us", "code")}}
        lines.append(f"{json.dumps(size)}:{json.dumps(in_order, separators=(',', ':'))}")
    head = json.dumps({"origin": origin, "rungs": list(names)}, separators=(",", ":"))
    return head[:-1] + ',"sizes":{\n' + ",\n".join(lines) + "\n}}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=size_of, required=True, metavar="N|MxNxK")
    parser.add_argument("--ladders", nargs="+", choices=sorted(LADDERS), default=list(LADDERS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--graph-ms", type=float, default=4.0)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    gpu = open_gpu()
    spec = probe(gpu)
    names = [rung.name for ladder in given.ladders for rung in LADDERS[ladder]]
    cases = [(name, size) for size in given.sizes for name in names]
    with ProcessPoolExecutor() as pool:
        why = list(pool.map(compiled, *zip(*cases, strict=True), [spec] * len(cases), chunksize=4))
        refused = {case: told for case, told in zip(cases, why, strict=True) if told}
        kept = [case for case in cases if case not in refused]
        code = dict(zip(kept, pool.map(read_from_code, *zip(*kept, strict=True), [spec] * len(kept)), strict=True))
    origin: Mapping[str, Any] = {
        "device": gpu.name,
        "driver": gpu.driver_version,
        "compiler": compiler_version(),
        **this_run(),
    }
    sizes: dict[str, Any] = {}
    for size in given.sizes:
        can = [name for name in names if (name, size) not in refused]
        told = timed(gpu, spec, size, can, given.rounds, given.graph_ms)
        left_out = {name: refused[name, size] for name in names if (name, size) in refused}
        told["code"] = {name: code[name, size] for name in can}
        sizes["x".join(map(str, size))] = told | ({"left_out": left_out} if left_out else {})
        given.out.write_text(record(origin, names, sizes), encoding="utf-8")
        print(size, len(told["us"]), "rungs", told["clock_mhz"], flush=True)


if __name__ == "__main__":
    main()
