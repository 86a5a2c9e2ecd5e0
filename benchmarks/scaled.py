"""Products of FP8 operands with scales beside `torch._scaled_mm`: burst, and sustained where asked.

    python benchmarks/scaled.py --out benchmarks/results/scaled_h200.jsonl
    python benchmarks/scaled.py --write docs/fp8.md --records benchmarks/results/scaled_h200.jsonl ...   (no GPU)
    python benchmarks/scaled.py --shapes 4096x4096x4096 --kinds row "1x128 by 128x128" --candidates --out out.jsonl

Scales of tensors and of rows and columns, fast and promoted, beside the same call of PyTorch; scales of blocks beside
what PyTorch has for them, and beside its product with scales of tensors and promoted sums. e4m3 in, bf16 out, b with k
contiguous. Operands are rotated through more than four times the L2, calls captured into CUDA graphs that are replayed
in turn; sustained: stretches of a quarter of a second (`stretches.py`). Results are compared with the peer's
first: a relative distance above 1 % is an error, and the exit status is 1.
One JSON line a row; the first tells device, date and command. No size is begun after --seconds.

With --candidates, kernels stand beside what the library runs, with the peer in the same rounds: those named behind it,
by default those of CANDIDATES, and as many as --estimated of those that the estimates put first. A name is a tile and
words: co3 (three cooperative consumers), pp (two in ping-pong), c2x1 (a cluster of two blocks along m), s4 (stages;
else as many as fit), sub32 (columns of an epilogue subtile; sub0: per-thread stores), swap, one (a block a tile).
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pages.markdown import kept_up_to_date, table, with_part
from recording import Budget, Row, origin_of, recorded, runs_in, where
from stretches import ROUNDS, WARM_S, Stretch, stretches_of

from tilewright import extras, scaled_matmul
from tilewright.errors import ProblemError, TilewrightError
from tilewright.frontend.libraries import library_of
from tilewright.frontend.scaled import request_of, scaled_options, views_of_scaled, words_of_scaled
from tilewright.kernels.wgmma import WgmmaConfig, deepest_ring, subtile_of
from tilewright.kernels.wgmma_steps import SWIZZLE_ATOM_BYTES
from tilewright.planning.assembly import Request, plan_of
from tilewright.planning.dispatch import Dispatcher, dispatcher
from tilewright.planning.estimates import estimates
from tilewright.problem.gemm import Gemm
from tilewright.runtime.driver import open_gpu
from tilewright.suite.gpu import TorchTimer
from tilewright.suite.peers import over
from tilewright.suite.timing import Times, interleaved
from tilewright.winners.plan_config import PlanConfig

SHAPES = ("2048x2048x2048", "4096x4096x4096", "8192x8192x8192", "4096x14336x4096", "8192x8192x512")
KINDS = ("tensor fast", "tensor", "row fast", "row", "1x128 by 128x128", "1x128 by 1x128")
ROTATED_BYTES = 240_000_000
MOST_COPIES = 24
MOST_DISTANCE = 0.01
"""Of results in bf16; sums that are not promoted lose more than that in a sum of 8192, and both lose it alike."""

SLOW = 0.95
"""Shares of the peer below which a problem counts as slow."""

MARKER = "scaled"
OURS, PEER, TENSORWISE = "ours", "peer", "tensorwise"


CANDIDATES = (
    *("128x256-co2-c2x1", "128x256-co2", "128x192-pp-c2x1", "128x184-pp-c2x1", "256x128-co2-c2x1", "192x192-co3-c2x1"),
    *("128x128-co2", "128x128-co2-c2x1", "128x128-co2-c1x2", "128x160-co2-c2x1", "128x192-co2-c2x1", "128x208-co2"),
    *("192x128-co3-c2x1", "192x128-co3-c1x2", "128x192-co3-c2x1-swap", "256x96-co2-c2x1", "64x192-pp-c2x1"),
    *("64x128-pp-c2x1", "208x128-co2-c1x2-swap", "152x128-co2-c1x2-swap"),
)
"""Tiles that the estimates put near the front, of products with and without promotion; laws leave out the others."""


def configuration(name: str, gemm: Gemm, every: int) -> WgmmaConfig:
    """The kernel of a name. every: elements of k after which its sums are promoted.

    >>> from tilewright.dtypes import BF16, E4M3
    >>> from tilewright.problem.gemm import Order
    >>> one = configuration("128x192-co3-c2x1-s4-swap", Gemm(8, 8, 8, E4M3, out=BF16, b=Order.COL), 128)
    >>> one.tile, one.consumers, one.cluster, one.stages, one.swap_ab, one.subtile
    ((128, 192, 128), 3, (2, 1), 4, True, 64)
    """
    tile, *words = name.split("-")
    m, n = (int(part) for part in tile.split("x"))
    one = WgmmaConfig(
        (m, n, SWIZZLE_ATOM_BYTES // gemm.dtype.bytes), 1, raster_rows=16, promote_every=every, subtile=-1
    )
    stages = 0
    for word in words:
        kind, rest = word.rstrip("0123456789x"), word.lstrip("abcdefghijklmnopqrstuvwyz")
        match kind:
            case "co":
                one = replace(one, consumers=int(rest))
            case "pp":
                one = replace(one, consumers=2, ping_pong=True)
            case "c":
                along_m, along_n = (int(part) for part in rest.split("x"))
                one = replace(one, cluster=(along_m, along_n))
            case "s":
                stages = int(rest)
            case "sub":
                one = replace(one, subtile=int(rest))
            case "swap":
                one = replace(one, swap_ab=True)
            case "one":
                one = replace(one, persistent=False)
            case _:
                raise ProblemError(f"{name!r} has a word {word!r} that names nothing of a kernel.")
    if one.subtile < 0:
        one = replace(one, subtile=int(subtile_of(one, gemm)))
    return replace(one, stages=stages or int(deepest_ring(one, 1, gemm)))


class Bench:
    """What is timed on a GPU."""

    def __init__(self, torch: Any, stretches: int = ROUNDS) -> None:
        self.torch, self.timer, self.stretches = torch, TorchTimer(torch), stretches
        self.warm_s = WARM_S
        self.generator = torch.Generator(device="cuda").manual_seed(0)

    def codes(self, rows: int, columns: int) -> Any:
        drawn = self.torch.randn(rows, columns, generator=self.generator, device="cuda")
        return drawn.to(self.torch.float8_e4m3fn)

    def factors(self, *shape: int) -> Any:
        return self.torch.rand(*shape, generator=self.generator, device="cuda") * 3 + 0.25

    def scales(self, kind: str, m: int, n: int, k: int) -> tuple[Any, Any]:
        if kind.startswith("tensor"):
            return self.factors(1), self.factors(1)
        if kind.startswith("row"):
            return self.factors(m, 1), self.factors(1, n)
        depth = -(-k // 128)
        wide = kind.endswith("128x128")
        return self.factors(depth, m).T, self.factors(-(-n // 128), depth).T if wide else self.factors(depth, n)

    def rows(self, shape: str, kinds: Sequence[str], *, sustained: bool) -> Iterator[dict[str, Any]]:
        """A row for each kind of scales."""
        m, n, k = (int(part) for part in shape.split("x"))
        self.torch.cuda.empty_cache()
        pairs = self._pairs(m, n, k)
        whole = self.factors(1), self.factors(1)
        for kind in kinds:
            fast, blocks = kind.endswith("fast"), kind.startswith("1x")
            scales = self.scales(kind, m, n, k)
            calls = {OURS: over(self._ours(scales, fast), pairs), PEER: over(self._theirs(scales, fast), pairs)}
            row: dict[str, Any] = {"problem": shape, "scales": kind}
            try:
                row["apart"] = self._apart(pairs[0], scales, fast)
            except RuntimeError as refused:  # this PyTorch has no such scales
                if not blocks:
                    raise
                row["refused"] = str(refused).splitlines()[0][:80]
                del calls[PEER]
            if blocks:
                calls[TENSORWISE] = over(self._theirs(whole, fast=False), pairs)
            times = interleaved(self.timer, calls, copies=len(pairs))
            own = times[OURS].median_us
            row |= {"us": round(own, 2), "tflops": round(2 * m * n * k / own / 1e6)}
            row |= {f"of_{name}": round(times[OURS].share_of(times[name]), 3) for name in calls if name != OURS}
            if sustained:
                peer = next(name for name in calls if name != OURS)
                held = self._held(calls, times, peer)
                row |= {f"sustained_of_{n}": round(held[n].us / held[OURS].us, 3) for n in calls if n != OURS}
                row["sustained_tflops"] = round(2 * m * n * k / held[OURS].us / 1e6)
            yield row | {"kernel": self._words(pairs[0], scales, fast)}

    def _held(
        self, calls: Mapping[str, Callable[[], object]], times: Mapping[str, Times], peer: str
    ) -> dict[str, Stretch]:
        """Stretches of calls; those of the problem before have warmed the card up."""
        gpu = open_gpu(self.torch.cuda.current_device())
        found = stretches_of(self.timer, calls, times, peer, gpu.uuid, rounds=self.stretches, warm_s=self.warm_s)
        self.warm_s = WARM_S / 4
        return found

    def _pairs(self, m: int, n: int, k: int) -> list[tuple[Any, Any]]:
        copies = max(1, min(MOST_COPIES, -(-ROTATED_BYTES // ((m + n) * k))))
        return [(self.codes(m, k), self.codes(n, k).T) for _ in range(copies)]

    # -- candidates -------------------------------------------------------------------------------------------------

    def compared(
        self, shape: str, kinds: Sequence[str], names: Sequence[str], estimated: int
    ) -> Iterator[dict[str, Any]]:
        """A row for each kind of scales: the shares of the peer's time over those of candidates, the best first."""
        m, n, k = (int(part) for part in shape.split("x"))
        self.torch.cuda.empty_cache()
        pairs, whole = self._pairs(m, n, k), (self.factors(1), self.factors(1))
        for kind in kinds:
            fast, scales = kind.endswith("fast"), self.scales(kind, m, n, k)
            ours = self._ours(scales, fast)
            expected = ours(*pairs[0])
            peer = self._theirs(whole if kind.startswith("1x") else scales, fast and not kind.startswith("1x"))
            calls = {PEER: over(peer, pairs), OURS: over(ours, pairs)}
            refused: dict[str, str] = {}
            worst = 0.0
            for name, config in self._named(pairs[0], scales, fast, names, estimated, refused):
                try:
                    multiply = self._planned(pairs[0], scales, fast, config)
                except TilewrightError as failure:
                    refused[name] = failure.headline[:100]
                    continue
                worst = max(worst, _distance(multiply(*pairs[0]), expected))
                calls[name] = over(multiply, pairs)
            times = interleaved(self.timer, calls, copies=len(pairs))
            shares = {name: round(times[name].share_of(times[PEER]), 3) for name in calls if name != PEER}
            best = dict(sorted(shares.items(), key=lambda one: -one[1]))
            tflops = {name: round(2 * m * n * k / times[name].median_us / 1e6) for name in (PEER, *best)}
            row: dict[str, Any] = {"problem": shape, "scales": kind, "apart": float(f"{worst:.2g}"), "of_peer": best}
            yield row | {"tflops": tflops, "runs": self._words(pairs[0], scales, fast), "refused": refused}

    def _named(
        self,
        pair: tuple[Any, Any],
        scales: tuple[Any, Any],
        fast: bool,
        names: Sequence[str],
        estimated: int,
        refused: dict[str, str],
    ) -> Iterator[tuple[str, PlanConfig]]:
        """Candidates that a problem can have, by name; why others cannot."""
        request = self._request(pair, scales, fast)
        for name in names:
            config = configuration(name, request.gemm, request.promote_every)
            reasons = config.reasons_against(request.gemm)
            if reasons:
                refused[name] = reasons[0][:100]
            else:
                yield name, PlanConfig(config)
        for number, (_, plan) in zip(range(estimated), estimates(request, self._dispatcher.spec), strict=False):
            yield f"estimate {number + 1}: {plan}", plan

    @property
    def _dispatcher(self) -> Dispatcher:
        return dispatcher(self.torch.cuda.current_device())

    def _request(self, pair: tuple[Any, Any], scales: tuple[Any, Any], fast: bool) -> Request:
        views = views_of_scaled(library_of(pair[0]), (*pair, *scales, None, None))
        request = request_of(views, scaled_options(None, fast))
        assert request is not None
        return request

    def _planned(
        self, pair: tuple[Any, Any], scales: tuple[Any, Any], fast: bool, config: PlanConfig
    ) -> Callable[[Any, Any], Any]:
        """Products by one kernel, into one result."""
        torch, request = self.torch, self._request(pair, scales, fast)
        with self._dispatcher.gpu.as_current():
            plan = plan_of(self._dispatcher.kernels, request, config)
        c = torch.empty(request.gemm.m, request.gemm.n, dtype=torch.bfloat16, device="cuda")
        scratch = torch.empty(max(plan.scratch_bytes, 16), dtype=torch.uint8, device="cuda")
        factors = tuple(one.data_ptr() for one in scales)

        def multiply(a: Any, b: Any) -> Any:
            addresses = (a.data_ptr(), b.data_ptr(), c.data_ptr(), 0, 0, scratch.data_ptr(), 0, 0, *factors)
            plan.run(torch.cuda.current_stream().cuda_stream, addresses)
            return c

        return multiply

    # -- calls ------------------------------------------------------------------------------------------------------

    def _ours(self, scales: tuple[Any, Any], fast: bool) -> Callable[[Any, Any], Any]:
        return lambda a, b: scaled_matmul(a, b, *scales, fast_accumulation=fast)

    def _theirs(self, scales: tuple[Any, Any], fast: bool) -> Callable[[Any, Any], Any]:
        out = self.torch.bfloat16
        return lambda a, b: self.torch._scaled_mm(a, b, *scales, out_dtype=out, use_fast_accum=fast)

    def _apart(self, pair: tuple[Any, Any], scales: tuple[Any, Any], fast: bool) -> float:
        return float(f"{_distance(self._ours(scales, fast)(*pair), self._theirs(scales, fast)(*pair)):.2g}")

    def _words(self, pair: tuple[Any, Any], scales: tuple[Any, Any], fast: bool) -> str:
        return words_of_scaled(library_of(pair[0]), (*pair, *scales, None, None), scaled_options(None, fast))


def _distance(one: Any, other: Any) -> float:
    """Relative, of two results."""
    return float((one.double() - other.double()).norm() / other.double().norm())


def section(records: Sequence[Path]) -> str:
    """The shares of each problem and kind of scales, a table for each record."""
    return "\n\n".join(_table(one) for one in records)


def _table(records: Path) -> str:
    ((origin, rows),) = runs_in(records)
    columns = ("M x N x K", "scales", "TFLOP/s, burst:", "of the same by PyTorch:")
    columns += ("of its promoted product of tensors:", "TFLOP/s, sustained:", "of the same:")
    cells = []
    for row in rows:
        same, other = row.get("of_peer", ""), row.get("of_tensorwise", "")
        held = row.get("sustained_tflops", ""), row.get("sustained_of_peer", row.get("sustained_of_tensorwise", ""))
        cells.append((row["problem"].replace("x", " x "), row["scales"], row["tflops"], same, other, *held))
    return "\n".join([*table(columns, cells), "", where(origin)])


def drawn_section(records: Path) -> str:
    """Shares of drawn problems, a row for each kind of scales and sums; of a sweep, its problems, each with the
    microseconds of the peer, of what was chosen then and of the best that was measured."""
    ((origin, rows),) = runs_in(records)
    kinds: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        kinds.setdefault(" ".join(row["p"].split()[3:]), []).append(row)
    columns = ("scales, sums", "problems:", "of the same by PyTorch, geometric mean:", "below 0.95:", "least:")
    cells = []
    for kind, found in sorted(kinds.items()):
        chosen, best = ([row["cublas"] / row[which] for row in found] for which in ("choice", "best"))
        below = sum(share < SLOW for share in chosen) / len(chosen)
        mean = statistics.geometric_mean
        figures = f"{mean(chosen):.3f}", f"{below:.1%}", f"{min(chosen):.3f}", f"{mean(best):.3f}"
        cells.append((kind, len(found), *figures))
    return "\n".join([*table((*columns, "the best measured:"), cells), "", where(origin)])


def measured(asked: argparse.Namespace) -> int:
    torch: Any = extras.require("torch", "Timing torch._scaled_mm")
    gpu = open_gpu(torch.cuda.current_device())
    bench, budget = Bench(torch, asked.stretches), Budget(asked.seconds)

    def rows() -> Iterator[Row]:
        for shape in filter(budget.allows, asked.shapes):
            if asked.candidates is None:
                yield from bench.rows(shape, asked.kinds, sustained=shape in asked.sustained)
            else:
                yield from bench.compared(shape, asked.kinds, asked.candidates or CANDIDATES, asked.estimated)

    found = recorded(origin_of(torch, gpu.name), rows(), asked.out)
    return int(max((row.get("apart", 0.0) for row in found), default=0.0) > MOST_DISTANCE)


def _with_sections(text: str, asked: argparse.Namespace) -> str:
    text = with_part(text, MARKER, section(asked.records), what="the records of FP8 products")
    if asked.drawn is None:
        return text
    return with_part(text, f"{MARKER} drawn", drawn_section(asked.drawn), what="the sweep of FP8 products")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="*", default=list(SHAPES), metavar="MxNxK")
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=KINDS, metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--candidates", nargs="*", metavar="NAME", help="kernels that are timed beside each other")
    parser.add_argument("--estimated", type=int, default=4, help="and so many that the estimates put first")
    parser.add_argument("--sustained", nargs="*", default=["8192x8192x8192"], metavar="MxNxK")
    parser.add_argument("--stretches", type=int, default=ROUNDS, help="of each call, of a quarter of a second")
    parser.add_argument("--seconds", type=float, default=100.0, help="no size is begun after this")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--records", type=Path, nargs="+", help="with --write or --check; a table for each")
    parser.add_argument("--drawn", type=Path, help="of a sweep, with --records")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--write", type=Path, metavar="PAGE")
    how.add_argument("--check", type=Path, metavar="PAGE")
    asked = parser.parse_args()
    if asked.out:
        return measured(asked)
    try:
        kept_up_to_date(
            asked.write,
            asked.check,
            lambda text: _with_sections(text, asked),
            "python benchmarks/scaled.py --write",
        )
    except TilewrightError as wrong:
        sys.exit(str(wrong))
    return 0


if __name__ == "__main__":
    sys.exit(main())
