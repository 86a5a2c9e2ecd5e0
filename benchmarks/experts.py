"""Grouped products of experts beside PyTorch's: bf16 beside `torch._grouped_mm`, FP8 beside `torch._scaled_grouped_mm`.

    python benchmarks/experts.py --out experts.jsonl
    python benchmarks/experts.py --only fp8 --problems "64 x 64" --seconds 50 --out experts.jsonl

Groups of 8 x 1024 rows, uneven ones, 64 x 64 and 128 x 16, b K-major; FP8 with scales of rows and columns, promoted and
fast, and with scales of blocks (1 x 128 by 128 x 128), which PyTorch does not have for groups: those beside its product
with scales of rows. In bf16 also what stands around: gathered rows (`rows=`, beside `_grouped_mm(x[rows], ...)`), the
weighted sum of two rows a token (`combine_rows`, beside `(y[rows] * weights).sum(1)`), and groups that use 8 of
128 rows (`counts=`, beside `torch.bmm` of all).

Operands are rotated through more than four times the L2, calls captured into CUDA graphs that are replayed in turn.
Rows of every group are compared with float64 first (what stands around, with PyTorch's): ours above the bound is an
error, and the exit status is 1. One JSON line a row; the first tells device, date and command. No problem is begun
after --seconds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from pages.markdown import kept_up_to_date, table, with_part
from recording import Budget, Row, origin_of, recorded, runs_in, where

from tilewright import combine_rows, extras, grouped_matmul, scaled_grouped_matmul
from tilewright.dtypes import BF16, E4M3
from tilewright.frontend.libraries import library_of
from tilewright.frontend.ragged import words_of_groups
from tilewright.frontend.scaled import scaled_options
from tilewright.frontend.scaled_groups import words_of_scaled_groups
from tilewright.problem.gemm import Gemm
from tilewright.problem.tolerance import relative_bound
from tilewright.runtime.driver import open_gpu
from tilewright.suite.gpu import TorchTimer
from tilewright.suite.peers import over
from tilewright.suite.stacks import GROUPED, Grouped
from tilewright.suite.timing import interleaved

KINDS = ("bf16", "fp8 rows", "fp8 rows fast", "fp8 blocks")
PROBLEMS = {
    "8 x 1024": GROUPED[0],
    "uneven": GROUPED[1],
    "64 x 64": GROUPED[2],
    "128 x 16": GROUPED[3],
}
ROTATED_BYTES = 240_000_000
MOST_COPIES = 24
CHECKED = 16
"""Rows of each group, and groups, that are compared with float64."""

AROUND = ("bf16 rows", "bf16 combine", "bf16 counts")
"""What stands around the products of experts."""

ROOM, USED, MOST_ROOM_BYTES = 128, 8, 4 << 30
"""Rows that each group has room for, and uses; bytes of the matrices B of groups with counts, at most."""

OURS, PEER = "ours", "peer"


class Bench:
    """What is timed on a GPU."""

    def __init__(self, torch: Any) -> None:
        self.torch, self.timer = torch, TorchTimer(torch)
        self.generator = torch.Generator(device="cuda").manual_seed(0)

    def drawn(self, fp8: bool, *shape: int) -> Any:
        values = self.torch.randn(*shape, generator=self.generator, device="cuda", dtype=self.torch.bfloat16)
        return values.to(self.torch.float8_e4m3fn) if fp8 else values

    def factors(self, *shape: int) -> Any:
        return self.torch.rand(*shape, generator=self.generator, device="cuda") * 3 + 0.25

    def rows(self, name: str, problem: Grouped, kinds: list[str]) -> Iterator[dict[str, Any]]:
        """A row for each kind."""
        tokens, groups, n, k = sum(problem.rows), len(problem.rows), problem.n, problem.k
        ends = self.torch.tensor(list(accumulate(problem.rows)), dtype=self.torch.int32, device="cuda")
        for fp8 in (False, True):
            asked = [kind for kind in kinds if kind.startswith("fp8") is fp8]
            if not asked:
                continue
            self.torch.cuda.empty_cache()
            size = (tokens + groups * n) * k * (1 if fp8 else 2)
            copies = max(1, min(MOST_COPIES, -(-ROTATED_BYTES // size)))
            pairs = [(self.drawn(fp8, tokens, k), self.drawn(fp8, groups, n, k).mT) for _ in range(copies)]
            plain = self.factors(tokens), self.factors(groups, n)
            depth = -(-k // 128)
            blocks = self.factors(depth, tokens).T, self.factors(groups, -(-n // 128), depth).mT
            for kind in asked:
                scales = blocks if kind.endswith("blocks") else plain
                fast = kind.endswith("fast")
                ours, theirs = self._ours(kind, scales, ends, fast), self._theirs(kind, plain, ends, fast)
                row: dict[str, Any] = {"problem": name, "sizes": str(problem), "kind": kind}
                row["of_bound"] = self._of_bound(ours(*pairs[0]), pairs[0], scales, ends, kind)
                calls = {OURS: over(ours, pairs)}
                try:
                    row["peer_of_bound"] = self._of_bound(theirs(*pairs[0]), pairs[0], plain, ends, kind)
                    calls[PEER] = over(theirs, pairs)
                except (AttributeError, NotImplementedError, RuntimeError, ValueError) as refused:
                    row["refused"] = str(refused).splitlines()[0][:80]
                times = interleaved(self.timer, calls, copies=len(pairs))
                own = times[OURS].median_us
                row |= {"us": round(own, 2), "tflops": round(problem.flops / own / 1e6)}
                if PEER in times:
                    row["of_peer"] = round(times[OURS].share_of(times[PEER]), 3)
                yield row | {"kernel": self._words(kind, pairs[0], scales, ends, fast)}

    def around(self, name: str, problem: Grouped, kinds: list[str]) -> Iterator[dict[str, Any]]:
        """A row for each kind of `AROUND`."""
        torch, tokens, groups = self.torch, sum(problem.rows), len(problem.rows)
        for kind in kinds:
            torch.cuda.empty_cache()
            ours, theirs, size, flops = self._pair(kind, problem)
            copies = max(1, min(MOST_COPIES, -(-ROTATED_BYTES // size)))
            given = [self._given(kind, problem) for _ in range(copies)]
            found, expected = ours(*given[0]), theirs(*given[0])
            if kind.endswith("counts"):
                found, expected = found[:, :USED], expected[:, :USED]
            apart = float((found.double() - expected.double()).norm() / expected.double().norm())
            row = {"problem": name, "sizes": f"{problem} ({tokens} rows, {groups} groups)", "kind": kind}
            calls = {OURS: over(ours, given), PEER: over(theirs, given)}
            times = interleaved(self.timer, calls, copies=copies)
            own = times[OURS].median_us
            row |= {"us": round(own, 2), "of_peer": round(times[OURS].share_of(times[PEER]), 3)}
            row["gb_per_s" if not flops else "tflops"] = round(flops / own / 1e6 if flops else size / own / 1e3)
            yield row | {"of_bound": round(apart / 2**-7, 3)}

    def _given(self, kind: str, problem: Grouped) -> tuple[Any, ...]:
        """The matrices of a call of `AROUND`."""
        tokens, groups, n, k = sum(problem.rows), len(problem.rows), problem.n, problem.k
        if kind.endswith("combine"):
            return (self.drawn(False, tokens, k),)
        rows = (groups, ROOM, k) if kind.endswith("counts") else (tokens, k)
        return self.drawn(False, *rows), self.drawn(False, groups, n, k).mT

    def _pair(self, kind: str, problem: Grouped) -> tuple[Callable[..., Any], Callable[..., Any], int, float]:
        """Our call and PyTorch's of a kind of `AROUND`, the bytes of its matrices, and its operations; 0 for none."""
        torch, tokens, groups, n, k = self.torch, sum(problem.rows), len(problem.rows), problem.n, problem.k
        if kind.endswith("combine"):
            places = torch.randperm(tokens, generator=self.generator, device="cuda").reshape(-1, 2)
            weights, wide, of_rows = self.factors(tokens // 2, 2), places.long(), 3 * tokens * k
            narrow = places.int()
            return (
                lambda y: combine_rows(y, narrow, weights),
                lambda y: (y[wide] * weights.unsqueeze(-1)).sum(1).to(y.dtype),
                *(of_rows, 0.0),
            )
        if kind.endswith("counts"):
            counts = torch.full((groups,), USED, dtype=torch.int32, device="cuda")
            return (
                lambda a, b: grouped_matmul(a, b, counts=counts, expected_rows=USED),
                torch.bmm,
                *(2 * groups * (ROOM + n) * k, 2.0 * groups * USED * n * k),
            )
        ends = torch.tensor(list(accumulate(problem.rows)), dtype=torch.int32, device="cuda")
        rows = torch.randint(0, tokens, (tokens,), generator=self.generator, device="cuda")
        named = rows.int()
        return (
            lambda a, b: grouped_matmul(a, b, offsets=ends, rows=named),
            lambda a, b: torch._grouped_mm(a[rows], b, offs=ends),
            *(2 * (tokens + groups * n) * k, problem.flops),
        )

    def _ours(self, kind: str, scales: tuple[Any, Any], ends: Any, fast: bool) -> Callable[[Any, Any], Any]:
        if kind == "bf16":
            return lambda a, b: grouped_matmul(a, b, offsets=ends)
        return lambda a, b: scaled_grouped_matmul(a, b, *scales, offsets=ends, fast_accumulation=fast)

    def _theirs(self, kind: str, scales: tuple[Any, Any], ends: Any, fast: bool) -> Callable[[Any, Any], Any]:
        torch = self.torch
        if kind == "bf16":
            return lambda a, b: torch._grouped_mm(a, b, offs=ends)
        given = {"offs": ends, "out_dtype": torch.bfloat16, "use_fast_accum": fast}
        return lambda a, b: torch._scaled_grouped_mm(a, b, *scales, **given)

    def _of_bound(self, c: Any, pair: tuple[Any, Any], scales: tuple[Any, Any], ends: Any, kind: str) -> float:
        """The largest error of the elements that are looked at, as a share of their bound."""
        (a, b), worst = pair, 0.0
        groups, k = b.shape[:2]
        dtype, every = (BF16, 0) if kind == "bf16" else (E4M3, 0 if kind.endswith("fast") else 128)
        allowed = relative_bound(Gemm(8, 8, k, dtype, out=BF16), promote_every=every) * 1.01
        begins = [0, *ends.tolist()]
        for group in range(0, groups, max(1, groups // CHECKED)):
            rows = slice(begins[group], min(begins[group + 1], begins[group] + CHECKED))
            left, right = a[rows].double(), b[group].double()
            of_a, of_b = self._spread(scales, rows, group, kind, left.shape, right.shape)
            exact = (left * of_a) @ (right * of_b)
            wide = [x.abs().clamp(min=dtype.tiny) * (x != 0) for x in (left, right)]
            bound = allowed * ((wide[0] * of_a) @ (wide[1] * of_b)) + BF16.tiny
            if exact.numel():
                worst = max(worst, float(((c[rows].double() - exact).abs() / bound).max()))
        return float(f"{worst:.3g}")

    def _spread(self, scales: Any, rows: slice, group: int, kind: str, left: Any, right: Any) -> tuple[Any, Any]:
        """The scale of each element of the rows and of the matrix of a group."""
        if kind == "bf16":
            return 1.0, 1.0
        of_a, of_b = scales[0][rows].double(), scales[1][group].double()
        if of_a.dim() == 1:
            return of_a[:, None], of_b
        of_b = of_b.repeat_interleave(128, 0)[: right[0]].repeat_interleave(128, 1)[:, : right[1]]
        return of_a.repeat_interleave(128, 1)[:, : left[1]], of_b

    def _words(self, kind: str, pair: tuple[Any, Any], scales: tuple[Any, Any], ends: Any, fast: bool) -> str:
        if kind == "bf16":
            return words_of_groups(*pair, ends)
        return words_of_scaled_groups(library_of(pair[0]), (*pair, *scales, ends), scaled_options(None, fast))


def _has_room(problem: Grouped, kind: str) -> bool:
    """Whether tokens come in pairs, and the matrices of groups with counts are not too large to be rotated."""
    if kind.endswith("combine"):
        return sum(problem.rows) % 2 == 0
    return not kind.endswith("counts") or 2 * len(problem.rows) * problem.n * problem.k <= MOST_ROOM_BYTES


def section(records: Sequence[Path]) -> str:
    """A row for each problem and kind, a table for each record."""
    return "\n\n".join(_table(one) for one in records)


def _table(records: Path) -> str:
    ((origin, rows),) = runs_in(records)
    cells = [(row["problem"], row["kind"], row["us"], row.get("tflops", ""), row["of_peer"]) for row in rows]
    lines = table(("groups", "kind", "us:", "TFLOP/s:", "of PyTorch's speed:"), cells)
    return "\n".join([*lines, "", where(origin)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="*", default=list(PROBLEMS), choices=list(PROBLEMS))
    parser.add_argument("--only", default="", help="kinds that begin so: bf16, fp8, ...")
    parser.add_argument("--seconds", type=float, default=50.0, help="no problem is begun after this")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--records", type=Path, nargs="+", help="with --write or --check; a table for each")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--write", type=Path, metavar="PAGE")
    how.add_argument("--check", type=Path, metavar="PAGE")
    asked = parser.parse_args()
    if asked.records is not None:
        kept_up_to_date(
            asked.write,
            asked.check,
            lambda text: with_part(text, "experts", section(asked.records), what="the records of experts"),
            f"python benchmarks/experts.py --records {' '.join(map(str, asked.records))} --write",
        )
        return 0
    if asked.out is None:
        parser.error("--out or --records")
    torch: Any = extras.require("torch", "Timing torch._grouped_mm")
    gpu = open_gpu(torch.cuda.current_device())
    bench, budget = Bench(torch), Budget(asked.seconds)
    kinds = [kind for kind in KINDS if kind.startswith(asked.only)]

    def rows() -> Iterator[Row]:
        for name in filter(budget.allows, asked.problems):
            problem = PROBLEMS[name]
            yield from bench.rows(name, problem, kinds)
            beside = [kind for kind in AROUND if kind.startswith(asked.only) and _has_room(problem, kind)]
            yield from bench.around(name, problem, beside)

    found = recorded(origin_of(torch, gpu.name), rows(), asked.out)
    return int(max((row["of_bound"] for row in found), default=0.0) > 1)


if __name__ == "__main__":
    sys.exit(main())
