"""wgmma tiles beside cuBLAS: given problems x given tiles, each kernel checked, all timed in turn with torch.mm.

    python benchmarks/tile_space.py --seconds 500 --out benchmarks/results/tile_space_h200.jsonl
    python benchmarks/tile_space.py --problems 1000x1280x5120:NT:bf16 --tiles 128x80x2,cluster=m 64x160,pingpong

A tile is MxN, then x consumer warpgroups (default: one for each 64 rows, at most 2, or 3 of 192 rows), then options:

    pingpong          two consumers, each with a tile of its own
    cluster=m|n|m4    two blocks, or as many as are given, along m or n share the tile of B or A
    split=S           k in S parts, with a second kernel that adds them up
    swap              swap-AB: the rows of the instruction run along n
    once              one tile per block instead of a persistent grid
    subtile=C, cs=S   columns and stages of the epilogue in shared memory; subtile=0: stores from registers
    stages=S          of the ring; default: as many as fit

Results are compared with float64 rows before anything is timed. Each candidate is a CUDA graph of some milliseconds of
calls over rotated operands, replayed in turn with torch.mm. One JSON line a problem. A problem is not begun after
--seconds; kernels are compiled in parallel first, which is part of that time. What cannot be built is recorded as such.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tilewright import extras
from tilewright.bench.records import this_run
from tilewright.codegen import print_cuda
from tilewright.dtypes import F32
from tilewright.errors import TilewrightError
from tilewright.ir.kernel import MAX_SHARED_BYTES
from tilewright.ir.program import RasterOrder
from tilewright.ir.work import SplitK
from tilewright.kernels.reduce import ReduceConfig
from tilewright.kernels.wgmma_steps import WgmmaTile, loaded_by_tma, nest, staged, stored_in_subtiles, stored_per_thread
from tilewright.problem.formats import format_options
from tilewright.problem.gemm import Gemm, orders_of
from tilewright.problem.reduction import Reduction
from tilewright.runtime.driver import open_gpu
from tilewright.runtime.launch import load
from tilewright.runtime.nvrtc import compile_cuda
from tilewright.schedule import Cluster, DependentLaunch, Persist, Pipeline, Raster, Schedule, Specialize, Step
from tilewright.suite.gpu import TorchTimer, kernel_names
from tilewright.suite.operands import checked, operands_of
from tilewright.suite.peers import over
from tilewright.suite.timing import interleaved
from tilewright.toolchain import Build, arguments, build, grid_of
from tilewright.units import ceil_div, round_up

PROBLEMS = (
    "1000x1280x5120:NT:bf16",
    "1000x2112x7168:NT:bf16",
    "128x5120x27648:NT:bf16",
    "100x8192x28672:NT:bf16",
    "5120x5120x13824:NT:bf16",
    "8192x8192x512:NT:bf16",
    "4096x4096x4096:NT:bf16",
    "2048x3584x14336:NT:bf16",
)
"""Where finer tiles were faster than those of the library, and three squares."""

TILES = (
    "128x256x2",
    "128x256x2,cluster=m",
    "128x192,pingpong",
    "256x128x2,cluster=n",
    "256x160x2",
    "256x192x2",
    "256x192x2,cluster=n",
    "256x208x2",
    "192x128x3",
    "192x160x3",
    "128x80x2,cluster=m",
    "128x80,pingpong",
    "128x40,pingpong",
    "128x136x2,cluster=n",
    "128x160,pingpong",
    "128x160x2,cluster=m",
    "128x208x2,cluster=m",
    "128x224x2,cluster=m",
    "64x128x1",
    "64x128x1,cluster=n",
    "64x80x1,once",
    "64x136,once,split=2",
    "32x128,swap,once",
    "64x64,once,split=4,subtile=0",
)
RESERVED_BYTES = 2048
"""Of shared memory beside the ring and the epilogue: mbarriers, and what alignment takes."""

MOST_STAGES = 16
REGISTERS = {1: (24, 240), 2: (24, 240), 3: (32, 160)}
"""Of the producer and of each consumer, by consumers."""


@dataclass(frozen=True)
class Tile:
    """One kernel to try."""

    text: str
    m: int
    n: int
    groups: int
    options: dict[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Tile:
        shape, *options = text.split(",")
        m, n, *groups = (int(part) for part in shape.split("x"))
        given = {name: value or "1" for name, _, value in (option.partition("=") for option in options)}
        down = n if "swap" in given else m
        own = 1 if "pingpong" in given else 3 if down == 192 else min(2, max(1, down // 64))
        return cls(text, m, n, groups[0] if groups else own, given)

    def has(self, name: str) -> bool:
        return name in self.options

    def number(self, name: str, default: int) -> int:
        return int(self.options.get(name, default))

    def schedule(self, gemm: Gemm) -> Schedule:
        """The kernel's schedule, with the deepest ring that fits unless stages are given."""
        asked = self.number("stages", 0)
        return self._schedule(gemm, asked or self._deepest(gemm))

    def _deepest(self, gemm: Gemm) -> int:
        kernel = build(gemm, self._schedule(gemm, 2)).kernel
        by_name = {buffer.name: buffer for buffer in kernel.shared}
        ring_bytes = sum(by_name[name].size_bytes for name in ("A_tile", "B_tile")) // 2
        epilogue_bytes = by_name["C_tile"].size_bytes if "C_tile" in by_name else 0
        return min(MOST_STAGES, (MAX_SHARED_BYTES - RESERVED_BYTES - epilogue_bytes) // ring_bytes)

    def _schedule(self, gemm: Gemm, stages: int) -> Schedule:
        tiles = WgmmaTile(self.m, self.n, self.groups, swap_ab=self.has("swap"))
        ping_pong = 2 if self.has("pingpong") else 1
        once = self.has("once") or self.has("split")
        asked = self.options.get("cluster", "")
        along = {"m": "m_block", "n": "n_block"}.get(asked[:1])
        blocks = int(asked[1:] or 2) if asked else 1
        order: tuple[Step, ...] = (Raster(RasterOrder.GROUPED, group=16), Persist())
        if once:
            order = (Raster(RasterOrder.ROW),) if along else ()
        out: tuple[Step, ...]
        if self.has("split") or self.number("subtile", 1) == 0:
            out = stored_per_thread(gemm, tiles)
        else:
            subtile = self.number("subtile", 0)
            out = stored_in_subtiles(gemm, tiles, subtile=subtile, stages=self.number("cs", 2), owners=ping_pong)
        return Schedule(
            *nest(gemm, tiles),
            *staged(gemm, tiles),
            *loaded_by_tma(gemm),
            Pipeline("k_tile", stages),
            Specialize(registers=REGISTERS[self.groups], ping_pong=ping_pong),
            *order,
            *((Cluster(along, blocks),) if along else ()),
            DependentLaunch(),
            *out,
        )


@dataclass
class Candidate:
    """A tile for a problem: its launches, or why there are none."""

    tile: Tile
    kernels: list[tuple[Any, Any]] = field(default_factory=list)
    """Each a CUDA source and, once compiled, its machine code."""
    builds: list[Any] = field(default_factory=list)
    refused: str = ""
    registers: int = 0
    stages: int = 0


def problem(text: str) -> Gemm:
    shape, orders, dtype = text.split(":")
    m, n, k = (int(part) for part in shape.split("x"))
    a, b = orders_of(orders)
    return Gemm(m, n, k, a=a, b=b, **format_options(dtype))  # type: ignore[arg-type]


def prepared(gemm: Gemm, tile: Tile) -> Candidate:
    """The kernels of a tile, as text."""
    one = Candidate(tile)
    try:
        parts = tile.number("split", 1)
        if parts == 1:
            built = build(gemm, tile.schedule(gemm))
        else:
            partial = replace(gemm, out=F32, ldc=gemm.n)
            built = replace(build(partial, tile.schedule(partial)), split_k=SplitK.PARTIALS)
        one.builds = [built]
        one.kernels = [(built.source, None)]
        one.stages = built.program.pipelined.stages if built.program.pipelined else 0
        if parts > 1:
            reduction = Reduction.of(gemm, parts, gemm.n, gemm.m * gemm.n)
            kernel = ReduceConfig.of(reduction, 16).kernel(reduction)
            one.builds.append((reduction, kernel))
            one.kernels.append((print_cuda(kernel), None))
    except TilewrightError as failure:
        one.refused = str(failure).partition("\n")[0]
    return one


def compiled(one: Candidate, arch: str) -> Candidate:
    if not one.refused:
        try:
            one.kernels = [(source, compile_cuda(source, arch)) for source, _ in one.kernels]
            one.registers = one.kernels[0][1].resources.registers
        except TilewrightError as failure:
            one.refused = str(failure).partition("\n")[0]
    return one


def launcher(torch: Any, gpu: Any, gemm: Gemm, one: Candidate) -> Callable[[Any, Any, Any], None]:
    """launch(a, b, c) on PyTorch's current stream."""
    built: Build = one.builds[0]
    parts = one.tile.number("split", 1)
    length = round_up(ceil_div(gemm.k, parts), built.kernel.tile["k"]) if parts > 1 else 0
    loaded = [load(gpu, cubin, source) for source, cubin in one.kernels]
    grid = grid_of(built.kernel, built.gemm, part_of_k=length)
    first = loaded[0].prepare(grid, built.kernel.block, arguments(built.gemm, (0, 0, 0), part_of_k=length))
    if parts == 1:
        return lambda a, b, c: first.launch(_stream(torch), a.data_ptr(), b.data_ptr(), c.data_ptr())
    reduction, kernel = one.builds[1]
    partials = torch.empty(parts * gemm.m * gemm.n, device="cuda", dtype=torch.float32)
    nowhere = (0,) * len(reduction.matrices)
    second = loaded[1].prepare(grid_of(kernel, reduction), kernel.block, arguments(reduction, nowhere))

    def both(a: Any, b: Any, c: Any) -> None:
        first.launch(_stream(torch), a.data_ptr(), b.data_ptr(), partials.data_ptr())
        second.launch(_stream(torch), partials.data_ptr(), c.data_ptr())

    return both


def _stream(torch: Any) -> int:
    return int(torch.cuda.current_stream().cuda_stream)


def measured(torch: Any, gpu: Any, gemm: Gemm, candidates: list[Candidate]) -> dict[str, Any]:
    """Everything that is right, timed in turn with torch.mm. Times in microseconds, shares of torch.mm's speed."""
    torch.backends.cuda.matmul.allow_tf32 = gemm.multiplies_tf32
    torch.cuda.empty_cache()
    pairs = operands_of(torch, gemm, getattr(torch, gemm.dtype.array_name))
    a, b = pairs[0]
    results = [torch.empty(gemm.m, gemm.n, device="cuda", dtype=a.dtype) for _ in pairs]
    sets = [(*pair, result) for pair, result in zip(pairs, results, strict=True)]
    calls: dict[str, Callable[[], object]] = {}
    failed = {one.tile.text: one.refused for one in candidates if one.refused}
    for one in candidates:
        if one.refused:
            continue
        try:
            launch = launcher(torch, gpu, gemm, one)
            results[0].fill_(float("nan"))
            launch(a, b, results[0])
            torch.cuda.synchronize()
            checked(torch, gemm, one.tile.text, results[0], a, b)
        except (TilewrightError, RuntimeError) as failure:
            failed[one.tile.text] = str(failure).partition("\n")[0]
            continue
        calls[one.tile.text] = over(launch, sets)
    calls["cuBLAS"] = peer = over(lambda x, y, c: torch.mm(x, y, out=c), sets)
    times = interleaved(TorchTimer(torch), calls, copies=len(pairs))
    cublas = times["cuBLAS"]
    rows = [
        {
            "tile": one.tile.text,
            "us": round(times[one.tile.text].median_us, 3),
            "share": round(times[one.tile.text].share_of(cublas), 4),
            "registers": one.registers,
            "stages": one.stages,
        }
        for one in candidates
        if one.tile.text in times
    ]
    rows.sort(key=lambda row: float(row["us"]))  # type: ignore[arg-type]
    beside = {"cublas_us": round(cublas.median_us, 3), "cublas": kernel_names(torch, peer)}
    return {**beside, "tiles": rows, "failed": failed}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="+", default=list(PROBLEMS), metavar="MxNxK:ORDERS:FORMAT")
    parser.add_argument("--tiles", nargs="+", default=list(TILES))
    parser.add_argument("--seconds", type=float, default=500.0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--build-only", action="store_true", help="print registers for sm_90a; needs no GPU")
    asked = parser.parse_args()
    started, workers = time.monotonic(), max(1, (os.cpu_count() or 2) - 1)
    tiles = [Tile.parse(text) for text in asked.tiles]
    if asked.build_only:
        torch = gpu = None
    else:
        torch = extras.require("torch", "Timing cuBLAS")
        gpu = open_gpu(torch.cuda.current_device())
    with ThreadPoolExecutor(workers) as pool:
        for text in asked.problems:
            if time.monotonic() - started > asked.seconds:
                print(f"{text}: not begun after {asked.seconds:.0f} s", file=sys.stderr)
                continue
            gemm = problem(text)
            candidates = [prepared(gemm, tile) for tile in tiles]
            candidates = list(pool.map(lambda one: compiled(one, gpu.arch if gpu else "sm_90a"), candidates))
            if torch is None:
                for one in candidates:
                    said = one.refused or f"{one.registers} registers, {one.stages} stages"
                    print(f"{text} {one.tile.text}: {said}", flush=True)
                continue
            found = measured(torch, gpu, gemm, candidates)
            record = {"problem": text, **found, "device": gpu.name, "driver": gpu.driver_version, **this_run()}
            if asked.out:
                with asked.out.open("a") as file:
                    file.write(json.dumps(record) + "\n")
            best = found["tiles"][:6]
            print(f"{text}: cuBLAS {found['cublas_us']} us ({found['cublas']})", flush=True)
            for row in best:
                print(f"    {row['us']:9.2f} us  {row['share']:.3f}  {row['tile']}", flush=True)
            for name, why in found["failed"].items():
                print(f"    not run: {name}: {why}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
