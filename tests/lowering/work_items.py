"""Runs of kernels whose work items have a problem, or a range of k, of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.dtypes import Array
from tilewright.ir.work import Problems, SplitK
from tilewright.ladders.rung import Rung
from tilewright.problem import Gemm, check, make_operands
from tilewright.problem.reference import Operands, view
from tilewright.schedule import Schedule
from tilewright.toolchain import Build, build

_VECTOR = 8
"""Matrices begin at multiples of so many elements, as TMA and vectors need."""


def stacked(matrices: list[Array], *, shared: bool) -> Array:
    """Flat matrices one behind the other, or only the first."""
    padded = [np.concatenate([one, np.zeros(-one.size % _VECTOR, one.dtype)]) for one in matrices]
    return padded[0] if shared else np.concatenate(padded)


def check_batch(
    gemm: Gemm,
    schedule: Schedule | Rung,
    count: int,
    *,
    shared: str = "",
    part_of_k: int = 0,
    **options: Any,
) -> Build:
    """Simulate `count` strided problems in one launch, and hold each against its reference. shared: operands that all
    problems have in common. part_of_k: split k into partial sums of so many products."""
    split_k = SplitK.PARTIALS if part_of_k else SplitK.NONE
    built = replace(build(gemm, schedule), problems=Problems.STRIDED, split_k=split_k)
    each = [make_operands(gemm, seed=seed) for seed in range(count)]
    storages = [stacked([getattr(one, n) for one in each], shared=n.upper() in shared) for n in "abc"]
    steps = [0 if n in shared else s.size // count for n, s in zip("ABC", storages, strict=True)]
    batching = {**{f"{n}_step": step for n, step in zip("ABC", steps, strict=True)}, "batch": count}
    parts = -(-gemm.k // part_of_k) if part_of_k else 1
    if part_of_k:
        storages[2] = np.full(count * parts * gemm.m * gemm.ldc, np.nan, np.float32)
    launch = {"listeners": (), "batching": batching, "part_of_k": part_of_k, **options}
    run = built.simulate(Operands(gemm, *storages), **launch)
    for number, one in enumerate(each):
        own = replace(one, **{n.lower(): getattr(each[0], n.lower()) for n in shared})
        if part_of_k:
            result = run.c.reshape(count, parts, gemm.m, gemm.ldc)[number, :, :, : gemm.n].sum(0, dtype=np.float32)
        else:
            result = gemm.out.decode(view(gemm, "C", run.c[number * steps[2] :][: one.c.size]))
        verdict = check(own, result)
        assert verdict.ok, (number, verdict.message)
    return built
