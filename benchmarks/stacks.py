"""Batched and grouped products beside `torch.bmm` and `torch._grouped_mm`, and the plans that were not chosen.

    python benchmarks/stacks.py --plans 4 --sample 6 --seconds 100 --out stacks.jsonl
    python benchmarks/stacks.py --format tf32 --only groups --out groups_tf32.jsonl      # group by group in PyTorch

Of each problem: the library's call and PyTorch's, checked against float64, captured into CUDA graphs over rotated
operands and replayed in turn; with them the plans that the cost model prices next, each of another tile, so that a
wrong choice is seen beside the right one. Processes compile all plans before anything is measured. A line of the
record: problem, microseconds of PyTorch and of the library, what ran, and microseconds of the other plans.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, replace
from itertools import cycle, islice
from math import exp, log
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from named_problems import request_of

from tilewright.bench.records import Origin, command, commit, now
from tilewright.device.spec import DeviceSpec
from tilewright.errors import TilewrightError
from tilewright.planning.assembly import Request, plan_of
from tilewright.planning.dispatch import dispatcher
from tilewright.planning.estimates import estimated
from tilewright.planning.kernels import Kernels
from tilewright.planning.on_paper import PaperKernels, alignment_of_rows, launches_of
from tilewright.planning.packing import Groups
from tilewright.planning.plan import Plan
from tilewright.planning.ragged import ragged_plan, ranked_ragged
from tilewright.runtime.cubin_cache import CubinCache
from tilewright.runtime.driver import open_gpu
from tilewright.runtime.nvrtc import compile_cuda, compiler_version
from tilewright.runtime.probe import probe
from tilewright.suite.contests import Contest, contest
from tilewright.suite.gpu import TorchTimer
from tilewright.suite.peers import true_to_formats
from tilewright.suite.stacks import BATCHED, GROUPED, Batched, Grouped, random_batched, random_grouped
from tilewright.suite.timing import interleaved
from tilewright.winners.plan_config import PlanConfig

Problem = Batched | Grouped
OURS, PEER = "tilewright", "torch"

_LOOKED_AT = 200
"""Plans among which others than the first are looked for."""


def request_for(problem: Problem) -> Request:
    """What the library asks for, of tight operands."""
    if isinstance(problem, Batched):
        return request_of(problem)
    gemm, along = problem.gemm, "k" if problem.gradient else "m"
    groups = Groups(len(problem.rows), along, problem.n * problem.k)
    return Request(gemm, alignment_of_rows(gemm), groups=groups)


def configs_of(problem: Problem, spec: DeviceSpec, count: int) -> list[PlanConfig]:
    """The plans that are priced best, no two of one tile and cluster; the first is what runs."""
    request = request_for(problem)
    ranked: Iterable[PlanConfig] = estimated(request, spec) if request.groups is None else ranked_ragged(request, spec)
    found: dict[Any, PlanConfig] = {}
    for config in islice(ranked, _LOOKED_AT):
        kernel = config.kernel
        names = ("tile", "consumers", "ping_pong", "swap_ab", "cluster", "persistent")
        found.setdefault((kernel.kind, *(getattr(kernel, name, None) for name in names)), config)
        if len(found) == count:
            break
    return list(found.values())


def made(kernels: Kernels, request: Request, config: PlanConfig) -> Plan:
    return plan_of(kernels, request, config) if request.groups is None else ragged_plan(kernels, request, config)


def compiled(problem: Problem, spec: DeviceSpec, arch: str, count: int) -> list[str]:
    """Compiles the plans of a problem into the cache; what could not be compiled."""
    failed, cache = [], CubinCache()
    for config in configs_of(problem, spec, count):
        try:
            for launch in launches_of(made(PaperKernels(spec), request_for(problem), config)):
                compile_cuda(launch.source, arch, cache=cache)
        except TilewrightError as failure:
            failed.append(f"{config}: {failure.headline}")
    return failed


def caller(torch: Any, plan: Plan, problem: Problem, rounds: Contest) -> Callable[[], Any]:
    """A call of a plan with the next operands."""
    turn = cycle(rounds.operands)
    shape = (
        (problem.batch, problem.m, problem.n)
        if isinstance(problem, Batched)
        else (len(problem.rows), problem.k, problem.n)
        if problem.gradient
        else (sum(problem.rows), problem.n)
    )
    scratch = torch.empty(max(16, plan.scratch_bytes), dtype=torch.uint8, device="cuda")

    def call() -> Any:
        a, b, *ends = next(turn)
        out = torch.empty(shape, dtype=a.dtype, device="cuda")
        at_ends = ends[0].data_ptr() if ends else 0
        addresses = (a.data_ptr(), b.data_ptr(), out.data_ptr(), 0, 0, scratch.data_ptr(), at_ends)
        plan.run(torch.cuda.current_stream().cuda_stream, addresses)
        return out

    return call


def row_of(torch: Any, problem: Problem, spec: DeviceSpec, count: int) -> dict[str, Any]:
    """One problem, checked and timed."""
    true_to_formats(torch, problem.gemm)
    torch.cuda.empty_cache()
    rounds = contest(torch, problem)
    failed: list[str] = []
    error = rounds.check(OURS, rounds.ours())
    rounds.check(PEER, rounds.peer())
    calls: dict[str, Callable[[], Any]] = {OURS: rounds.ours, PEER: rounds.peer}
    kernels = dispatcher(0).kernels
    for config in configs_of(problem, spec, count):
        try:
            plan = made(kernels, request_for(problem), config)
            rounds.check(str(config), caller(torch, plan, problem, rounds)())
            calls[str(config)] = caller(torch, plan, problem, rounds)
        except TilewrightError as failure:
            failed.append(f"{config}: {failure.headline}")
    times = interleaved(TorchTimer(torch), calls, copies=rounds.copies)
    return {
        "problem": str(problem),
        "share": round(times[OURS].share_of(times[PEER]), 4),
        "us": round(times[OURS].median_us, 2),
        "peer_us": round(times[PEER].median_us, 2),
        "error": float(f"{error:.2g}"),
        "ran": rounds.ran(),
        "plans": {name: round(one.median_us, 2) for name, one in times.items() if name not in (OURS, PEER)},
        **({"failed": failed} if failed else {}),
    }


def told(row: dict[str, Any]) -> str:
    """A row for people."""
    lines = [f"{row['share']:.3f}  {row['problem']}: {row['us']} us, torch {row['peer_us']}; {row['ran']}"]
    lines += [f"         {us} us {name}" for name, us in sorted(row["plans"].items(), key=lambda one: one[1])]
    return "\n".join([*lines, *(f"         failed: {one}" for one in row.get("failed", ()))])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plans", type=int, default=4, help="of each problem, beside the library's own call")
    parser.add_argument("--sample", type=int, default=6, help="drawn problems of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=100.0)
    parser.add_argument("--only", default="", help="problems whose names contain this")
    parser.add_argument("--format", default="bf16", help="of all problems: bf16, f16, tf32, f32")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    import torch

    began, gpu = time.monotonic(), open_gpu(0)
    drawn = (*random_batched(asked.sample, asked.seed, ["bf16"]), *random_grouped(asked.sample, asked.seed))
    every = (replace(one, format=asked.format) for one in (*GROUPED, *BATCHED, *drawn))
    problems: Sequence[Problem] = [one for one in every if asked.only in str(one)]
    spec, arch = probe(gpu), gpu.arch
    with ProcessPoolExecutor(os.cpu_count() or 2, mp_context=get_context("spawn")) as pool:
        for task in as_completed([pool.submit(compiled, one, spec, arch, asked.plans) for one in problems]):
            task.result()
    print(f"compiled in {time.monotonic() - began:.0f} s", flush=True)
    software = gpu.driver_version, compiler_version(), f"torch {torch.__version__}"
    shares = []
    with asked.out.open("a", encoding="utf-8") as file:
        print(json.dumps({"origin": asdict(Origin(gpu.name, *software, commit(), command(), now()))}), file=file)
        for problem in problems:
            if time.monotonic() - began > asked.seconds:
                print("the time is spent")
                break
            try:
                row = row_of(torch, problem, spec, asked.plans)
            except (TilewrightError, RuntimeError) as failure:
                row = {"problem": str(problem), "failure": str(failure)[:500]}
                print(f"FAILED {problem}: {failure}", flush=True)
            else:
                shares.append(row["share"])
                print(told(row), flush=True)
            print(json.dumps(row, separators=(",", ":")), file=file, flush=True)
    mean = exp(sum(map(log, shares)) / max(1, len(shares)))
    print(f"{len(shares)} problems in {time.monotonic() - began:.0f} s: geometric mean {mean:.3f}, least {min(shares)}")


if __name__ == "__main__":
    main()
