"""Every rung in every format under compute-sanitizer: memcheck, racecheck, initcheck and synccheck, each in processes
of its own.

    python benchmarks/sanitize.py --out benchmarks/results/sanitizers_h200.json [LADDER ...]
    python benchmarks/sanitize.py --out benchmarks/results/sanitizers_h200.json calls

`calls`: those of the library that `sanitized_calls.py` makes, through PyTorch, in place of a ladder, in a run of their
own, shared out to several processes of each tool. Not by initcheck, which does not see what TMA stores and takes each
result in new memory for unwritten: of a product in f16 that was right in every element too. In a ladder's C there are
values before.

The problem has edges in all three dimensions, and a C that is read. What a tool finds, it prints; the record says how
many kernels ran, how many results were wrong, and the summary of each tool.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from subprocess import PIPE
from typing import Any

import numpy as np
from sanitized_calls import watched_calls

from tilewright.bench.records import this_run
from tilewright.errors import LoweringError, ScheduleError, TilewrightError
from tilewright.ladders import LADDERS
from tilewright.problem import Gemm, Operands, Order, make_operands
from tilewright.problem.formats import FORMATS, format_name, format_options
from tilewright.runtime.cubin_cache import CubinCache
from tilewright.runtime.driver import gpu_problem, open_gpu
from tilewright.toolchain import Build, build, verify_on_gpu

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
CALLS = "calls"
SIZE = (131, 197, 77)
LARGE = (1537, 3072, 200)
"""More tiles of any rung than run at once on an H200: persistent blocks have several."""

ROW_BYTES = 16
"""Rows begin at multiples of this, which TMA requires."""


def kernels(ladders: list[str]) -> Iterator[Build]:
    """Each rung in each format that it multiplies, A and B row-major, or B column-major where a rung takes only that;
    where it copies elements of 2 bytes without TMA, also with unaligned leading dimensions of A and B and of A alone,
    and tile after tile where its blocks are persistent."""
    for rung in (rung for name in ladders if name != CALLS for rung in LADDERS[name]):
        for name in FORMATS:
            for b in (Order.ROW, Order.COL):
                odd = rung.gemm(*SIZE, alpha=0.5, beta=-1.0, **{**format_options(name), "b": b})
                try:
                    built = build(padded(odd), rung)
                    built.kernel  # noqa: B018  # lowering may refuse the format
                except (LoweringError, ScheduleError):
                    continue
                yield built
                if odd.dtype.bytes == 2 and not built.kernel.maps:
                    yield build(odd, rung)
                    yield build(replace(odd, ldb=padded(odd).ldb), rung)
                    large = build(rung.gemm(*LARGE, **{**format_options(name), "b": b}), rung)
                    if large.kernel.resident:
                        yield large
                break


def padded(gemm: Gemm) -> Gemm:
    each = {operand.leading: ROW_BYTES // operand.dtype.bytes for operand in gemm.operands}
    return replace(gemm, **{name: -(-getattr(gemm, name) // n) * n for name, n in each.items()})  # type: ignore[arg-type]


def whole_rows(operands: Operands) -> Operands:
    """Operands whose last row is as long in memory as the others.

    Of 16 bytes that cp.async may copy it reads only as many as it is told, and fills up with zeros; memcheck holds all
    16 against the allocation.
    """
    return replace(operands, **{name: _whole(getattr(operands, name)) for name in "abc"})


def _whole(stored: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.concatenate([stored, np.zeros(ROW_BYTES // stored.itemsize, stored.dtype)])


def run_all(ladders: list[str], share: int, shares: int) -> int:
    """What a tool watches: every kernel or call of a share once, its result held against float64."""
    gpu, cache, ran, wrong, began = open_gpu(), CubinCache(), 0, 0, time.monotonic()
    for built in islice(kernels(ladders), share, None, shares):
        try:
            verdict = verify_on_gpu(built, gpu, whole_rows(make_operands(built.gemm)), cache=cache)
            problem = "" if verdict.ok else verdict.message
        except TilewrightError as error:
            problem = str(error)
        ran += 1
        if problem:
            wrong += 1
            print(f"WRONG {built.name} {format_name(built.gemm)}: {problem}")
    for name, apart in watched_calls(share, shares) if CALLS in ladders else ():
        print(f"{time.monotonic() - began:.0f} s: {name}", flush=True)
        ran += 1
        if not apart <= 1:
            wrong += 1
            print(f"WRONG {name}: {apart:.3g} of what is allowed")
    print(json.dumps({"kernels": ran, "wrong": wrong}))
    return 1 if wrong else 0


def compile_all(ladders: list[str], arch: str) -> None:
    """Into the cache, so that no tool waits for the compiler. What it refuses, `run_all` tells."""

    def compiled(built: Build) -> None:
        with suppress(TilewrightError):
            built.compile(arch, cache=CubinCache())

    with ThreadPoolExecutor() as pool:
        list(pool.map(compiled, kernels(ladders)))


def watched(tool: str, ladders: list[str], seconds: float, shares: int) -> dict[str, Any]:
    """One tool over all kernels, or no tool, in so many processes at once."""
    with ThreadPoolExecutor(shares) as pool:
        found = list(pool.map(lambda share: _share_watched(tool, ladders, seconds, share, shares), range(shares)))
    summaries = sorted({one["summary"] for one in found})
    whole: dict[str, Any] = {"tool": tool, "summary": "; ".join(summaries), "clean": all(one["clean"] for one in found)}
    return whole | {name: sum(one.get(name, 0) for one in found) for name in ("kernels", "wrong")}


def _share_watched(tool: str, ladders: list[str], seconds: float, share: int, shares: int) -> dict[str, Any]:
    """One tool over a share of the kernels."""
    under = ["compute-sanitizer", "--tool", tool] if tool else []
    asked = [*under, sys.executable, __file__, "--run", *ladders, "--share", str(share), "--processes", str(shares)]
    try:
        running = subprocess.Popen(asked, stdout=PIPE, stderr=PIPE, text=True, start_new_session=True)
    except FileNotFoundError:
        return {"summary": "compute-sanitizer was not found", "clean": False}
    with running:
        try:
            output, errors = running.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)  # with the kernels, which run in a child of the tool
            print(f"--- {tool} {share} came to", *running.communicate()[0].splitlines()[-2:], sep="\n", flush=True)
            return {"summary": f"not finished after {seconds:.0f} s", "clean": False}
    lines = output.splitlines()
    summary = next((line.strip("= ") for line in reversed(lines) if "SUMMARY" in line), "no summary" if tool else "")
    counts = next((json.loads(line) for line in lines if line.startswith("{")), {})
    silent = not tool or " 0 " in f"{summary.replace(':', ' ')} "
    clean = running.returncode == 0 and counts.get("wrong") == 0 and silent
    if not clean:
        # The first finding is the one to read: a launch that failed breaks whatever comes after it.
        print(f"--- {tool} {share}", *lines[:60], "...", *lines[-5:], errors[-2000:], sep="\n", flush=True)
    return {"summary": summary, "clean": clean, **counts}


def keep(out: Path, record: dict[str, Any]) -> None:
    """Behind the earlier runs, but for those whose ladders have all run again."""
    earlier = json.loads(out.read_text(encoding="utf-8")) if out.exists() else []
    others = [run for run in earlier if not {*run["ladders"]} <= {*record["ladders"]}]
    out.write_text(json.dumps([*others, record], indent=1) + "\n", encoding="utf-8")


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("ladders", nargs="*", default=list(LADDERS), metavar="LADDER", help=", ".join([*LADDERS, CALLS]))
    asked.add_argument("--out", type=Path, help="the record, to which runs of other ladders belong too")
    asked.add_argument("--tools", nargs="+", choices=TOOLS, help=f"default: all; of {CALLS}, all but initcheck")
    asked.add_argument("--seconds", type=float, default=540.0, help="of each tool")
    asked.add_argument(
        "--processes",
        type=int,
        default=1,
        help="of each tool, among which kernels are shared out; if several, tools run one by one",
    )
    asked.add_argument("--run", action="store_true", help="run the kernels, with no tool")
    asked.add_argument("--share", type=int, default=0, help="with --run: of which process")
    told = asked.parse_args()
    if told.tools is None:
        told.tools = [tool for tool in TOOLS if tool != "initcheck" or CALLS not in told.ladders]
    if CALLS in told.ladders and ("initcheck" in told.tools or len(told.ladders) > 1):
        asked.error(f"{CALLS} go in a run of their own, without initcheck, which does not see what TMA stores")
    if (problem := gpu_problem()) is not None:
        asked.exit(2, f"{problem}\n")
    if told.run:
        return run_all(told.ladders, told.share, told.processes)
    compile_all(told.ladders, open_gpu().arch)
    if CALLS in told.ladders and not watched("", [CALLS], told.seconds, told.processes)["clean"]:
        asked.exit(1, "calls are wrong with no tool\n")
    # Processes of one tool fill the cores by themselves: those of several together did not end in 155 s, which each
    # tool alone does in 25.
    found: list[dict[str, Any]] = []
    device = open_gpu().name
    with ThreadPoolExecutor(len(told.tools) if told.processes == 1 else 1) as pool:
        # Each tool is recorded when it ends: what a later one does not live to tell leaves it there.
        for one in pool.map(lambda tool: watched(tool, told.ladders, told.seconds, told.processes), told.tools):
            found.append(one)
            print(json.dumps(one), flush=True)
            record = {"device": device, "ladders": told.ladders, "size": SIZE, "tools": found} | this_run()
            if told.out is not None:
                keep(told.out, record)
    return 0 if all(tool["clean"] for tool in found) else 1


if __name__ == "__main__":
    sys.exit(main())
