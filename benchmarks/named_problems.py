"""Products, and batches of them, by the names that records give them."""

from __future__ import annotations

from tilewright.planning.assembly import Request
from tilewright.planning.on_paper import alignment_of_rows
from tilewright.suite.problems import Problem
from tilewright.suite.stacks import Batched


def problem_named(text: str) -> Problem | Batched:
    """The product, or the batch of them, that a text names.

    >>> problem_named("8x16x48 bf16 TN"), str(problem_named("2 x 8x16x48 f32"))
    (Problem(m=8, n=16, k=48, format='bf16', orders='TN', scales='', fast=False), '2 x 8x16x48 f32')
    """
    if " x " not in text:
        return Problem.of(text)
    batch, _, shape, word = text.split()
    return Batched(int(batch), *map(int, shape.split("x")), word)


def request_of(problem: Problem | Batched) -> Request:
    """What the library asks for where operands are tight and aligned."""
    gemm = problem.gemm
    if isinstance(problem, Batched):
        return Request(gemm, alignment_of_rows(gemm), problem.stack)
    return Request(gemm, alignment_of_rows(gemm), promote_every=problem.promote_every)
