"""One problem as functions that compute the same, ours and PyTorch's: plain products beside `torch.mm`, FP8 beside
`torch._scaled_mm`, batches beside `torch.bmm`, groups beside `torch._grouped_mm` where it takes their format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.errors import TilewrightError
from tilewright.suite.operands import ROTATED_BYTES, checked, operands_of, scales_of
from tilewright.suite.peers import by_tilewright, by_torch, over, words_of_problem
from tilewright.suite.problems import Problem, precision_of
from tilewright.suite.stacks import Batched, Grouped

MATRICES_CHECKED = 8
"""Matrices of a batch whose results are compared with float64."""

MOST_STACKS = 64


@dataclass(frozen=True)
class Contest:
    """Functions that compute the same: ours and PyTorch's, with a check of one result against float64.

    operands: copies of what they take in turn, the arguments of one call each. ran: what ran of ours, after a call.
    scales: of FP8 operands, as `scales_of` makes them.
    """

    ours: Callable[[], Any]
    peer: Callable[[], Any]
    check: Callable[[str, Any], float]
    operands: Sequence[tuple[Any, ...]]
    ran: Callable[[], str]
    scales: Sequence[Any] = ()

    @property
    def copies(self) -> int:
        return len(self.operands)


def contest(torch: Any, problem: Problem | Batched | Grouped) -> Contest:
    """The functions of a problem over rotated random operands on the current GPU."""
    dtype = getattr(torch, problem.gemm.dtype.array_name)
    if isinstance(problem, Problem):
        return _plain(torch, problem, dtype)
    size_bytes = _operand_bytes(problem)
    copies = min(MOST_STACKS, max(2, -(-ROTATED_BYTES // size_bytes)))
    if isinstance(problem, Batched):
        return _batched(torch, problem, dtype, copies)
    return _grouped(torch, problem, dtype, copies)


def _plain(torch: Any, problem: Problem, dtype: Any) -> Contest:
    gemm = problem.gemm
    pairs, scales = operands_of(torch, gemm, dtype), scales_of(torch, gemm)
    a, b = pairs[0]

    def check(who: str, result: Any) -> float:
        return checked(torch, gemm, who, result, a, b, scales=scales, promote_every=problem.promote_every)

    return Contest(
        over(by_tilewright(problem, scales), pairs),
        over(by_torch(torch, problem, scales), pairs),
        check,
        pairs,
        lambda: words_of_problem(problem, a, b, scales),
        scales,
    )


def _operand_bytes(problem: Batched | Grouped) -> int:
    size = problem.gemm.dtype.bytes
    if isinstance(problem, Batched):
        return problem.batch * (problem.m * problem.k + problem.k * problem.n + problem.m * problem.n) * size
    rows, groups = sum(problem.rows), len(problem.rows)
    return (rows * problem.k + groups * problem.k * problem.n + rows * problem.n) * size


def _batched(torch: Any, problem: Batched, dtype: Any, copies: int) -> Contest:
    from tilewright.frontend import matmul
    from tilewright.frontend.compute import words_of
    from tilewright.frontend.options import options_asked

    precision = precision_of(problem.format)
    options = options_asked(1.0, None, None, precision, None, False, None, False)

    def made(*shape: int) -> list[Any]:
        return [torch.randn(shape, device="cuda", dtype=dtype) for _ in range(copies)]

    a, b = made(problem.batch, problem.m, problem.k), made(problem.batch, problem.k, problem.n)
    pairs = list(zip(a, b, strict=True))

    def check(who: str, result: Any) -> float:
        if not bool(torch.isfinite(result).all()):
            raise TilewrightError(f"{who} is wrong for {problem}: elements are not finite.")
        some = range(0, problem.batch, -(-problem.batch // MATRICES_CHECKED))
        return max(checked(torch, problem.gemm, who, result[i], a[0][i], b[0][i]) for i in some)

    return Contest(
        over(lambda a, b: matmul(a, b, precision=precision), pairs),
        over(torch.bmm, pairs),
        check,
        pairs,
        lambda: words_of(*pairs[0], options),
    )


def _grouped(torch: Any, problem: Grouped, dtype: Any, copies: int) -> Contest:
    from tilewright.frontend import grouped_matmul
    from tilewright.frontend.options import options_asked
    from tilewright.frontend.ragged import words_of_groups

    ends = torch.tensor(problem.rows).cumsum(0).to(device="cuda", dtype=torch.int32)
    sets = [(*_grouped_operands(torch, problem, dtype), ends) for _ in range(copies)]
    precision = precision_of(problem.format)
    options = options_asked(1.0, None, None, precision, None, False, None, False)

    def ours(a: Any, b: Any, offsets: Any) -> Any:
        return grouped_matmul(a, b, offsets=offsets, precision=precision)

    def peer(a: Any, b: Any, offsets: Any) -> Any:
        if problem.format == "bf16":
            return torch._grouped_mm(a, b, offs=offsets)
        return _group_by_group(torch, problem, a, b)

    def check(who: str, result: Any) -> float:
        (a, b, _), groups = sets[0], len(problem.rows)
        worst, first = 0.0, 0
        for group, count in enumerate(problem.rows):
            some = slice(first, first + count)
            first += count
            if not count or group % -(-groups // MATRICES_CHECKED):
                continue
            if problem.gradient:
                found = checked(torch, problem.gemm, who, result[group], a[:, some], b[some])
            else:
                found = checked(torch, problem.gemm, who, result[some], a[some], b[group])
            worst = max(worst, found)
        return worst

    return Contest(over(ours, sets), over(peer, sets), check, sets, lambda: words_of_groups(*sets[0], options))


def _group_by_group(torch: Any, problem: Grouped, a: Any, b: Any) -> Any:
    """The products of all groups, for formats that `torch._grouped_mm` does not take: the host knows the sizes."""
    if problem.gradient:
        parts = zip(a.split(problem.rows, 1), b.split(problem.rows), strict=True)
        return torch.stack([x @ y for x, y in parts])
    return torch.cat([x @ y for x, y in zip(a.split(problem.rows), b, strict=True)])


def _grouped_operands(torch: Any, problem: Grouped, dtype: Any) -> tuple[Any, Any]:
    """a and b as `grouped_matmul` takes them."""
    rows, groups = sum(problem.rows), len(problem.rows)

    def made(*shape: int) -> Any:
        return torch.randn(shape, device="cuda", dtype=dtype)

    if problem.gradient:
        return made(rows, problem.k).t(), made(rows, problem.n)
    return made(rows, problem.k), made(groups, problem.n, problem.k).transpose(1, 2)
