"""Products of FP8 operands with scales beside `torch._scaled_mm`: burst, and sustained where asked.

    python benchmarks/scaled.py --out benchmarks/results/scaled_h200.jsonl
    python benchmarks/scaled.py --write docs/fp8.md --records benchmarks/results/scaled_h200.jsonl       (no GPU)

Scales of tensors and of rows and columns, fast and promoted, beside the same call of PyTorch; scales of blocks beside
what PyTorch has for them, and beside its product with scales of tensors and promoted sums. e4m3 in, bf16 out, b with k
contiguous. Operands are rotated through more than four times the L2, calls captured into CUDA graphs that are replayed
in turn; sustained: stretches of half a second (`tilewright.suite.stretches`). Results are compared with the peer's
first: a relative distance above 1 % is an error, and the exit status is 1.
One JSON line a row; the first tells device, date and command. No size is begun after --seconds.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

from tilewright import extras, scaled_matmul
from tilewright.bench.records import command, commit, now
from tilewright.cli.page_files import kept_up_to_date
from tilewright.errors import TilewrightError
from tilewright.frontend.libraries import library_of
from tilewright.frontend.scaled import scaled_options, words_of_scaled
from tilewright.report.markdown import with_part
from tilewright.runtime.driver import open_gpu
from tilewright.suite.gpu import TorchTimer
from tilewright.suite.stretches import stretches_of
from tilewright.suite.timing import interleaved

SHAPES = ("2048x2048x2048", "4096x4096x4096", "8192x8192x8192", "4096x14336x4096", "8192x8192x512")
KINDS = ("tensor fast", "tensor", "row fast", "row", "1x128 by 128x128", "1x128 by 1x128")
ROTATED_BYTES = 240_000_000
MOST_COPIES = 24
MOST_DISTANCE = 0.01
"""Of results in bf16; sums that are not promoted lose more than that in a sum of 8192, and both lose it alike."""

MARKER = "scaled"
OURS, PEER, TENSORWISE = "ours", "peer", "tensorwise"


class Bench:
    """What is timed on a GPU."""

    def __init__(self, torch: Any) -> None:
        self.torch, self.timer = torch, TorchTimer(torch)
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

    def rows(self, shape: str, *, sustained: bool) -> Iterator[dict[str, Any]]:
        """A row for each kind of scales."""
        m, n, k = (int(part) for part in shape.split("x"))
        self.torch.cuda.empty_cache()
        copies = max(1, min(MOST_COPIES, -(-ROTATED_BYTES // ((m + n) * k))))
        pairs = [(self.codes(m, k), self.codes(n, k).T) for _ in range(copies)]
        whole = self.factors(1), self.factors(1)
        for kind in KINDS:
            fast, blocks = kind.endswith("fast"), kind.startswith("1x")
            scales = self.scales(kind, m, n, k)
            calls = {OURS: _in_turn(self._ours(scales, fast), pairs), PEER: _in_turn(self._theirs(scales, fast), pairs)}
            row: dict[str, Any] = {"problem": shape, "scales": kind}
            try:
                row["apart"] = self._apart(pairs[0], scales, fast)
            except RuntimeError as refused:  # this PyTorch has no such scales
                if not blocks:
                    raise
                row["refused"] = str(refused).splitlines()[0][:80]
                del calls[PEER]
            if blocks:
                calls[TENSORWISE] = _in_turn(self._theirs(whole, fast=False), pairs)
            times = interleaved(self.timer, calls, copies=len(pairs))
            own = times[OURS].median_us
            row |= {"us": round(own, 2), "tflops": round(2 * m * n * k / own / 1e6)}
            row |= {f"of_{name}": round(times[OURS].share_of(times[name]), 3) for name in calls if name != OURS}
            if sustained:
                peer = next(name for name in calls if name != OURS)
                held = stretches_of(self.timer, calls, times, peer, self.torch.cuda.current_device())
                row |= {f"sustained_of_{n}": round(held[n].us / held[OURS].us, 3) for n in calls if n != OURS}
                row["sustained_tflops"] = round(2 * m * n * k / held[OURS].us / 1e6)
            yield row | {"kernel": self._words(pairs[0], scales, fast)}

    def _ours(self, scales: tuple[Any, Any], fast: bool) -> Callable[[Any, Any], Any]:
        return lambda a, b: scaled_matmul(a, b, *scales, fast_accumulation=fast)

    def _theirs(self, scales: tuple[Any, Any], fast: bool) -> Callable[[Any, Any], Any]:
        out = self.torch.bfloat16
        return lambda a, b: self.torch._scaled_mm(a, b, *scales, out_dtype=out, use_fast_accum=fast)

    def _apart(self, pair: tuple[Any, Any], scales: tuple[Any, Any], fast: bool) -> float:
        ours, theirs = self._ours(scales, fast)(*pair).double(), self._theirs(scales, fast)(*pair).double()
        return float(f"{float((ours - theirs).norm() / theirs.norm()):.2g}")

    def _words(self, pair: tuple[Any, Any], scales: tuple[Any, Any], fast: bool) -> str:
        return words_of_scaled(library_of(pair[0]), (*pair, *scales, None, None), scaled_options(None, fast))


def _in_turn(multiply: Callable[[Any, Any], Any], pairs: list[Any]) -> Callable[[], object]:
    turn = cycle(pairs)
    return lambda: multiply(*next(turn))


def section(records: Path) -> str:
    """The shares of each problem and kind of scales."""
    origin, *rows = (json.loads(line) for line in records.read_text(encoding="utf-8").splitlines())
    lines = [
        "| M x N x K | scales | TFLOP/s, burst | of the same by PyTorch | of its promoted product of tensors "
        "| TFLOP/s, sustained | of the same |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        same, other = row.get("of_peer", ""), row.get("of_tensorwise", "")
        held = row.get("sustained_of_peer", row.get("sustained_of_tensorwise", ""))
        cells = [row["problem"].replace("x", " x "), row["scales"], row["tflops"], same, other]
        lines.append(f"| {' | '.join(str(cell) for cell in [*cells, row.get('sustained_tflops', ''), held])} |")
    where = f"Recorded on {origin['device']}, torch {origin['torch']}, {origin['date'][:10]}: `{origin['command']}`."
    return "\n".join([*lines, "", where])


def measured(asked: argparse.Namespace) -> int:
    torch: Any = extras.require("torch", "Timing torch._scaled_mm")
    gpu = open_gpu(torch.cuda.current_device())
    origin = {"device": gpu.name, "torch": torch.__version__, "command": command(), "commit": commit(), "date": now()}
    lines, bench, began, worst = [json.dumps(origin)], Bench(torch), time.monotonic(), 0.0
    for shape in asked.shapes:
        if time.monotonic() - began > asked.seconds:
            print(f"{shape}: left out", file=sys.stderr)
            continue
        for row in bench.rows(shape, sustained=shape in asked.sustained):
            worst = max(worst, row.get("apart", 0.0))
            lines.append(json.dumps(row))
            print(lines[-1], flush=True)
            asked.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return int(worst > MOST_DISTANCE)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="*", default=list(SHAPES), metavar="MxNxK")
    parser.add_argument("--sustained", nargs="*", default=["8192x8192x8192"], metavar="MxNxK")
    parser.add_argument("--seconds", type=float, default=100.0, help="no size is begun after this")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--records", type=Path, help="with --write or --check")
    parser.add_argument("--write", type=Path, metavar="PAGE")
    parser.add_argument("--check", type=Path, metavar="PAGE")
    asked = parser.parse_args()
    if asked.out:
        return measured(asked)
    try:
        kept_up_to_date(
            asked.write,
            asked.check,
            lambda text: with_part(text, MARKER, section(asked.records), what="the records of FP8 products"),
            "python benchmarks/scaled.py",
        )
    except TilewrightError as wrong:
        sys.exit(str(wrong))
    return 0


if __name__ == "__main__":
    sys.exit(main())
