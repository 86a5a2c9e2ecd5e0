"""Random legal schedules, compiled and run on the GPU, each result held against float64.

    PYTHONPATH=src:. python benchmarks/fuzz_on_gpu.py --kind hopper --count 500 --seed 0

Prints `checked N, wrong W` and ends with 1 if any is wrong, 2 if there is no GPU. A kind and a seed name one problem,
schedule and variant; `tests/random_*schedules.py` draw them, as they do for the simulator's properties.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tests.random_hopper_schedules import random_hopper_gemm, random_hopper_schedule
from tests.random_schedules import random_gemm, random_schedule, random_variant
from tests.random_tensor_schedules import random_tensor_gemm, random_tensor_schedule
from tilewright.errors import LoweringError, TilewrightError
from tilewright.problem import make_operands
from tilewright.runtime.cubin_cache import CubinCache
from tilewright.runtime.driver import Gpu, gpu_problem, open_gpu
from tilewright.toolchain import Build, build, verify_on_gpu

KINDS = {
    "lanes": (random_gemm, random_schedule),
    "tensor": (random_tensor_gemm, random_tensor_schedule),
    "hopper": (random_hopper_gemm, random_hopper_schedule),
}
"""What multiplies: single lanes, warps by mma and wmma, warpgroups by wgmma."""


@dataclass(frozen=True)
class Case:
    """One drawing, compiled; `problem` says why it was not."""

    seed: int
    built: Build
    problem: str = ""


def drawn(kind: str, seed: int, arch: str, cache: CubinCache) -> Case | None:
    """The case of a seed, its code compiled into the cache; None where no device has the shared memory it needs."""
    rng = random.Random(seed)
    draw_gemm, draw_schedule = KINDS[kind]
    gemm = draw_gemm(rng)
    drawing = draw_schedule(rng, gemm)
    built = build(gemm, drawing.schedule, variant=random_variant(rng, drawing.program, gemm), name=f"random_{seed}")
    try:
        built.compile(arch, cache=cache)
    except LoweringError as error:
        return (
            None if error.headline.startswith(("The shared tiles take", "Rows of")) else Case(seed, built, str(error))
        )
    except TilewrightError as error:
        return Case(seed, built, str(error))
    return Case(seed, built)


def problem_of(case: Case, gpu: Gpu, cache: CubinCache) -> str:
    """What is wrong with a case; empty where its result is right."""
    if case.problem:
        return case.problem
    try:
        verdict = verify_on_gpu(case.built, gpu, make_operands(case.built.gemm, seed=case.seed), cache=cache)
    except TilewrightError as error:
        return str(error)
    return "" if verdict.ok else verdict.message


def compiled(kind: str, first: int, count: int, arch: str, cache: CubinCache, workers: int) -> Iterator[Case | None]:
    """The cases of `count` seeds in order, compiled by several threads at once."""
    with ThreadPoolExecutor(workers) as pool:
        yield from pool.map(lambda seed: drawn(kind, seed, arch, cache), range(first, first + count))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=KINDS, default="lanes")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--workers", type=int, default=16, help="compiler threads")
    asked = parser.parse_args()
    missing = gpu_problem()
    if missing is not None:
        print(missing)
        return 2
    start = time.perf_counter()
    checked = wrong = 0
    gpu, cache = open_gpu(), CubinCache()
    for case in compiled(asked.kind, asked.seed, asked.count, gpu.arch, cache, asked.workers):
        if case is None:
            continue
        checked += 1
        problem = problem_of(case, gpu, cache)
        if problem:
            wrong += 1
            print(f"seed {case.seed}: {problem}\n  {case.built.gemm!r} {case.built.variant.name}")
            print(case.built.schedule.text, flush=True)
    print(f"checked {checked}, wrong {wrong}, in {time.perf_counter() - start:.0f} s")
    return 1 if wrong or not checked else 0


if __name__ == "__main__":
    sys.exit(main())
