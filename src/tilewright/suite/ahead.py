"""Kernels compiled before anything is measured, by several processes at once: each makes some calls and ends.

What they leave is the cache of cubins, so that the run itself finds every kernel compiled. A process that fails says
nothing: the run meets the same failure and reports it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Any

from tilewright.suite.problems import Problem

MOST_PROCESSES = 8
"""Each has a context of its own on the GPU, and imports PyTorch."""


def processes() -> int:
    """Half the cores: ptxas works in threads of its own process, and PyTorch is imported meanwhile."""
    return max(1, min(MOST_PROCESSES, (os.cpu_count() or 2) // 2))


def shared_out(problems: Sequence[Problem], count: int) -> list[tuple[Problem, ...]]:
    """Problems of one format and order stay together, as they share kernels; the rest is dealt evenly.

    >>> [len(part) for part in shared_out([Problem(8, 8, 8, f, o) for f in ("f32", "bf16") for o in ("NN", "NT")], 2)]
    [2, 2]
    """
    groups: dict[tuple[str, str], list[Problem]] = {}
    for problem in problems:
        groups.setdefault((problem.format, problem.orders), []).append(problem)
    parts: list[list[Problem]] = [[] for _ in range(count)]
    for group in sorted(groups.values(), key=len, reverse=True):
        for piece in _pieces(group, max(1, count // len(groups))):
            min(parts, key=len).extend(piece)
    return [tuple(part) for part in parts if part]


def _pieces(group: Sequence[Problem], count: int) -> list[Sequence[Problem]]:
    return [group[first::count] for first in range(min(count, len(group)))]


def compile_ahead(
    problems: Sequence[Problem],
    *,
    count: int | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    executor: Callable[[int], Any] | None = None,
    prepared: bool = False,
) -> None:
    """Make one call of every problem in other processes. prepared: with a prepared weight."""
    parts = shared_out(problems, count or processes())
    make = executor or (lambda workers: ProcessPoolExecutor(workers, mp_context=get_context("spawn")))
    with make(len(parts)) as pool:
        tasks: list[Future[int]] = [pool.submit(call_each, part, prepared) for part in parts]
        done = 0
        for task in as_completed(tasks):
            done += len(parts[tasks.index(task)])
            if progress is not None:
                progress("compiling kernels", done, len(problems))


def call_each(problems: Sequence[Problem], prepared: bool = False) -> int:
    """One call of each problem, whatever its result; how many did not fail. prepared: of b."""
    import torch

    from tilewright.errors import TilewrightError
    from tilewright.frontend import matmul, prepare
    from tilewright.problem.gemm import Order

    good = 0
    for problem in problems:
        gemm = problem.gemm
        dtype = getattr(torch, gemm.dtype.array_name)

        def matrix(rows: int, columns: int, order: Order, dtype: Any = dtype) -> Any:
            if order is Order.COL:
                return torch.empty(columns, rows, dtype=dtype, device="cuda").t()
            return torch.empty(rows, columns, dtype=dtype, device="cuda")

        try:
            a, b = matrix(gemm.m, gemm.k, gemm.a), matrix(gemm.k, gemm.n, gemm.b)
            matmul(a, prepare(b, precision=problem.precision) if prepared else b, precision=problem.precision)
            good += 1
        except (TilewrightError, RuntimeError):
            continue
    return good
