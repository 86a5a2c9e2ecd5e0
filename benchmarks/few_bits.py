"""Products with weights of 4 and 8 bits beside cuBLAS's of bf16: skinny activations, cold weights.

    python benchmarks/few_bits.py --out few_bits.jsonl
    python benchmarks/few_bits.py --rows 1 16 64 --codes int4 --sweep --out few_bits_sweep.jsonl
    python benchmarks/few_bits.py --write docs/few_bits.md --records benchmarks/results/few_bits_h200.jsonl     (no GPU)

Activations of m x k in bf16 times a weight of k x n: int4 and e4m3 in groups of 128, beside `torch.mm` of the weight in
bf16. Weights are rotated through more than four times the L2, calls captured into CUDA graphs and replayed in turn.
Results are checked first: against the codes in float64 in some columns, and against the product of the weight itself in
all; a wrong one gives status 1, and no time. --sweep: the kernels of `SWEPT` and `SWEPT_WGMMA` as well, each for
itself, beside the same peer; they are compiled in processes of their own before anything is timed.
One JSON line a row; the first tells device, date and command. No case is begun after --seconds.
--write and --check: a table of rows in a page, which names those of kernels that are chosen today.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import cycle
from multiprocessing import get_context
from os import cpu_count
from pathlib import Path
from typing import Any

import numpy as np
from pages.markdown import kept_up_to_date, table, with_part
from recording import Budget, Row, origin_of, recorded, runs_in

from tilewright import extras, matmul, quantize_weight
from tilewright.codegen import print_cuda
from tilewright.device.catalog import device
from tilewright.dtypes import BF16
from tilewright.errors import TilewrightError
from tilewright.frontend.options import PLAIN
from tilewright.frontend.weights import QuantizedWeight
from tilewright.kernels.coded import EIGHT, MOST_ROWS, CodedConfig
from tilewright.kernels.coded_wgmma import CodedWgmmaConfig
from tilewright.planning.coded import chosen_config, coded_plan, words_of
from tilewright.planning.dispatch import dispatcher
from tilewright.planning.plan import Place
from tilewright.problem.coded_product import TILE, CodedProduct, CodedWeight
from tilewright.problem.weight_codes import CODES
from tilewright.runtime.cubin_cache import CubinCache
from tilewright.runtime.driver import open_gpu
from tilewright.runtime.nvrtc import compile_cuda
from tilewright.suite.gpu import TorchTimer
from tilewright.suite.peers import over
from tilewright.suite.timing import Times, interleaved

SHAPES = ("4096x14336", "8192x28672")
ROWS = (1, 4, 16, 64)
BITS = {"int4": 4, "e4m3": 8}
GROUP = 128
ROTATED_BYTES = 240_000_000
MOST_COPIES = 12
CHECKED_COLUMNS = 512
MOST_DISTANCE = {"int4": 0.15, "e4m3": 0.04}
"""Of a result from that of the weight itself, by norms: what rounding normal numbers to codes costs, and some more."""

FAMILIES = ("mma", "wgmma")
"""Of kernels: by mma.sync, and by wgmma."""

MARKER = "few_bits"
OURS, PEER = "ours", "peer"

SWEPT: dict[int, tuple[tuple[int, ...], ...]] = {
    EIGHT: (
        *((8, 7, 1, 8, 64, stages) for stages in (2, 3, 4)),
        *((8, 7, 1, 4, 128, stages) for stages in (2, 4)),
        *((8, 7, 1, 16, 64, 2), (8, 7, 1, 4, 64, 5), (8, 7, 1, 4, 64, 8)),
        *((8, 7, 2, 4, 64, 4), (8, 7, 2, 8, 64, 2), (8, 7, 2, 4, 128, 2)),
        *((8, 1, 7, 2, 256, 2), (8, 1, 7, 2, 256, 4), (8, 1, 7, 4, 128, 3)),
        *((8, 1, 7, 2, 128, stages) for stages in (4, 5, 6)),
        (8, 2, 7, 2, 128, 4),
    ),
    TILE: (
        *((16, 7, 1, 8, 64, stages) for stages in (2, 3)),
        *((16, 7, 1, 4, 128, 3), (16, 7, 1, 4, 64, 4), (16, 7, 1, 4, 64, 6)),
        *((16, 7, 2, 4, 64, 3), (16, 7, 2, 4, 64, 4)),
        *((16, 1, 7, 2, 256, stages) for stages in (2, 3, 4)),
        *((16, 1, 7, 2, 128, stages) for stages in (4, 6)),
        *((16, 1, 7, 4, 128, 3), (16, 2, 7, 2, 128, 3), (16, 2, 7, 2, 128, 4)),
    ),
    MOST_ROWS: (
        *((64, 2, 7, 1, 128, 4), (64, 2, 7, 1, 64, 6), (64, 2, 8, 1, 128, 3), (64, 2, 8, 1, 64, 5)),
        *((64, 2, 4, 2, 128, 3), (64, 2, 4, 2, 64, 5), (64, 1, 7, 2, 128, 3), (64, 1, 14, 1, 128, 4)),
        *((32, 2, 7, 2, 128, 3), (32, 2, 7, 2, 64, 4), (32, 2, 14, 1, 128, 3), (32, 2, 14, 1, 64, 6)),
        *((32, 4, 7, 1, 128, 3), (32, 4, 4, 2, 128, 2), (32, 2, 8, 2, 128, 2)),
    ),
}
"""What a sweep tries of mma.sync, as arguments of `CodedConfig`, by the largest number of rows that it is tried for."""

SWEPT_WGMMA: dict[int, tuple[tuple[int, ...], ...]] = {
    EIGHT: (
        *((8, 2, 1, 128, stages, 1, 2, 4) for stages in (5, 6, 8)),
        *((8, 2, 2, 128, stages, 1, 2, 4) for stages in (3, 5)),
        *((8, 1, 2, 128, 5, 1, 2, 4), (8, 4, 1, 128, 5, 1, 2, 4), (8, 1, 4, 128, 3, 1, 2, 4)),
    ),
    TILE: (
        *((16, 2, 2, 128, stages, 1, 2, 4) for stages in (3, 5, 6)),
        *((16, 4, 1, 128, stages, 1, 2, 4) for stages in (5, 6)),
        *((16, 4, 1, 128, 6, 2, 2, 4), (16, 2, 1, 128, 6, 2, 2, 4)),
        *((16, 2, 1, 128, stages, 1, 2, 4) for stages in (5, 6)),
    ),
    32: (
        *((32, 2, 2, 128, stages, 1, 2, 4) for stages in (3, 4)),
        *((32, 4, 1, 128, stages, 1, 2, 4) for stages in (5, 6)),
        *((32, 2, 1, 128, stages, 1, 2, 4) for stages in (4, 6)),
    ),
    MOST_ROWS: (
        *((64, 4, 1, 128, stages, 1, 2, 4) for stages in (3, 4)),
        *((64, 2, 2, 128, 3, 1, 2, 4), (64, 4, 1, 128, 3, 2, 2, 4)),
        *((64, 2, 1, 128, stages, 1, 2, 4) for stages in (3, 4, 5)),
        *((32, 4, 1, 128, 5, 1, 2, 4), (32, 2, 1, 128, 4, 1, 2, 4), (32, 2, 2, 128, 4, 1, 2, 4)),
    ),
    128: (
        *((128, 2, 1, 128, stages, 1, 2, 4) for stages in (3, 4)),
        *((64, 4, 1, 128, 4, 1, 2, 4), (64, 2, 2, 128, 3, 1, 2, 4), (64, 2, 1, 128, 3, 1, 2, 4)),
        (128, 2, 1, 128, 3, 2, 2, 4),
    ),
}
"""What a sweep tries of wgmma, as arguments of `CodedWgmmaConfig`, likewise."""


class Bench:
    """What is timed on a GPU."""

    def __init__(self, torch: Any) -> None:
        self.torch, self.timer = torch, TorchTimer(torch)
        self.generator = torch.Generator(device="cuda").manual_seed(0)

    def drawn(self, *shape: int) -> Any:
        return self.torch.randn(*shape, generator=self.generator, device="cuda", dtype=self.torch.bfloat16)

    def weights(self, k: int, n: int) -> list[Any]:
        copies = max(1, -(-ROTATED_BYTES // (2 * k * n)))
        return [self.drawn(k, n) for _ in range(copies)]

    def coded(self, weights: list[Any], codes: str) -> list[QuantizedWeight]:
        k, n = weights[0].shape
        copies = max(1, min(MOST_COPIES, -(-ROTATED_BYTES // (k * n * BITS[codes] // 8))))
        kept = cycle(weights)
        return [quantize_weight(next(kept), bits=BITS[codes], group=GROUP) for _ in range(copies)]

    def row(self, weights: list[Any], coded: list[QuantizedWeight], codes: str, m: int) -> dict[str, Any]:
        """The chosen kernel."""
        a = self.drawn(m, weights[0].shape[0])
        wrong = Exact.of(self.torch, a, weights[0], coded[0]).wrong(matmul(a, coded[0]))
        calls = {} if wrong else {OURS: in_turn(lambda w: matmul(a, w), coded)}
        row, times = self.timed(calls, a, weights, coded)
        words = {"kernel": coded[0].words_of(a, PLAIN)}
        return {**row, "codes": codes, **self.figures(wrong, times, OURS, row, coded[0]), **words}

    def timed(
        self, calls: dict[str, Callable[[], object]], a: Any, weights: list[Any], coded: list[QuantizedWeight]
    ) -> tuple[dict[str, Any], dict[str, Times]]:
        """The sizes, and the times of calls and of the peer."""
        (m, k), n = a.shape, weights[0].shape[1]
        peer = {PEER: in_turn(lambda w: self.torch.mm(a, w), weights)}
        return {"k": k, "n": n, "m": m}, interleaved(
            self.timer, {**calls, **peer}, copies=max(len(coded), len(weights))
        )

    def figures(
        self, wrong: str, times: dict[str, Times], name: str, sizes: dict[str, Any], coded: QuantizedWeight
    ) -> dict[str, Any]:
        if wrong:
            return {"wrong": wrong}
        m, n, k = (sizes[size] for size in "mnk")
        us, bytes_read = times[name].median_us, coded.nbytes + 2 * m * (k + n)
        found = {"us": round(us, 2), "peer_us": round(times[PEER].median_us, 2)}
        found |= {"tflops": round(2 * m * n * k / us / 1e6, 1), "gb_per_s": round(bytes_read / us / 1e3)}
        return found | {"of_cublas": round(times[name].share_of(times[PEER]), 3)}

    def swept(
        self, weights: list[Any], coded: list[QuantizedWeight], codes: str, m: int, families: Sequence[str]
    ) -> Iterator[dict[str, Any]]:
        """The kernels of a sweep, in turn; the fastest first."""
        k, n = coded[0].shape
        a, out = self.drawn(m, k), self.torch.empty(m, n, device="cuda", dtype=self.torch.bfloat16)
        exact = Exact.of(self.torch, a, weights[0], coded[0])
        planner = dispatcher(self.torch.cuda.current_device())
        problem = CodedProduct(m, coded[0]._kind)
        calls: dict[str, Callable[[], object]] = {}
        wrong: dict[str, str] = {}
        for config in swept_configs(problem, families):
            words = words_of(config, problem)
            plan = coded_plan(planner.kernels, problem, config)
            out.fill_(float("nan"))
            self.run(plan, a, coded[0], out)
            wrong[words] = exact.wrong(out)
            if not wrong[words]:
                calls[words] = in_turn(lambda w, plan=plan: self.run(plan, a, w, out), coded)
        sizes, times = self.timed(calls, a, weights, coded)
        for words in sorted(wrong, key=lambda one: times[one].median_us if one in times else 0.0):
            yield {**sizes, "codes": codes, **self.figures(wrong[words], times, words, sizes, coded[0]), "swept": words}

    def run(self, plan: Any, a: Any, weight: QuantizedWeight, out: Any) -> None:
        base = weight._memory.data_ptr()
        places = {Place.A: a.data_ptr(), Place.B: base, Place.SCALE_B: base + weight._scales_at}
        places[Place.OUT] = out.data_ptr()
        plan.run(self.torch.cuda.current_stream().cuda_stream, [places.get(place, 0) for place in Place])


@dataclass(frozen=True)
class Exact:
    """What a product is held to. of_weight: the product of the weight itself. of_codes, bound: that of the codes of the
    first columns in float64, and how far a result may be from it."""

    codes: str
    of_weight: Any
    of_codes: Any
    bound: Any

    @classmethod
    def of(cls, torch: Any, a: Any, weight: Any, coded: QuantizedWeight) -> Exact:
        values, wide = torch.from_numpy(values_of(coded, CHECKED_COLUMNS)).cuda(), a.double()
        of_codes, sizes = wide @ values, wide.abs() @ values.abs()
        bound = BF16.unit_roundoff * of_codes.abs() + 1e-5 * sizes
        return cls(coded._kind.codes.name, (a.float() @ weight.float()).double(), of_codes, bound)

    def wrong(self, found: Any) -> str:
        """How far off a product is, in words; empty if it is right."""
        wide = found.double()
        apart = float((wide - self.of_weight).norm() / self.of_weight.norm())
        columns = self.of_codes.shape[1]
        worst = float(((wide[:, :columns] - self.of_codes).abs() / self.bound).max())
        right = apart <= MOST_DISTANCE[self.codes] and worst <= 1.0
        return "" if right else f"{worst:.3g} of the bound, {apart:.3g} apart from the product in bf16"


def swept_configs(problem: CodedProduct, families: Sequence[str]) -> list[CodedConfig | CodedWgmmaConfig]:
    """What a sweep tries for a problem, of what can compute it."""
    made: list[CodedConfig | CodedWgmmaConfig] = []
    if "mma" in families:
        made += [CodedConfig(*arguments) for arguments in tried(SWEPT, problem.m)]
    if "wgmma" in families:
        made += [CodedWgmmaConfig(*arguments) for arguments in tried(SWEPT_WGMMA, problem.m)]
    return [config for config in made if not config.reasons_against(problem)]


def tried(swept: dict[int, tuple[tuple[int, ...], ...]], m: int) -> tuple[tuple[int, ...], ...]:
    return swept[min((rows for rows in swept if m <= rows), default=MOST_ROWS)]


def compile_swept(config: CodedConfig | CodedWgmmaConfig, problem: CodedProduct, arch: str) -> None:
    """Leaves the kernel in the cache on disk, for another process."""
    compile_cuda(print_cuda(config.kernel(problem)), arch, cache=CubinCache())


def compile_ahead(asked: argparse.Namespace, overlapped: bool, arch: str) -> None:
    """Every kernel of a sweep; sizes are arguments of kernels, so one shape is enough."""
    k, n = (int(part) for part in asked.shapes[0].split("x"))
    with ProcessPoolExecutor(cpu_count(), mp_context=get_context("spawn")) as pool:
        problems = [
            CodedProduct(m, CodedWeight(n, k, CODES[codes], GROUP)) for codes in asked.codes for m in asked.rows
        ]
        tasks = [
            pool.submit(compile_swept, replace(config, overlapped=overlapped), problem, arch)
            for problem in problems
            for config in swept_configs(problem, asked.families)
        ]
        for task in tasks:
            task.result()


def values_of(coded: QuantizedWeight, columns: int) -> Any:
    """What codes and scales of the first columns stand for, (k, columns), float64."""
    kind = coded._kind
    part = CodedWeight(min(columns, kind.n), kind.k, kind.codes, kind.group)
    memory = coded._memory.cpu().numpy()
    scales = memory[kind.words :].view(kind.scale_dtype.numpy)[: part.scale_elements]
    spread = np.repeat(part.read_scales(scales), kind.k // kind.groups, axis=1)
    return (part.unpack(memory[: part.words].view(np.int32)).astype(np.float64) * spread).T.copy()


def in_turn(multiply: Callable[[Any], Any], weights: list[Any]) -> Callable[[], object]:
    """A call that takes the next weight each time; each was multiplied by before."""
    for weight in weights:
        multiply(weight)
    return over(multiply, [(weight,) for weight in weights])


def section(records: Path) -> str:
    """The rows of records, each of the run whose line is before it, and which kernels are today's choices."""
    runs = runs_in(records)
    rows = [(row, number) for number, (_, found) in enumerate(runs, 1) for row in found]
    spec = device(runs[0][0]["device"])
    lines = []
    for row, run in sorted(rows, key=lambda one: (BITS[one[0]["codes"]], one[0]["m"], one[0]["k"], one[0]["us"])):
        problem = CodedProduct(row["m"], CodedWeight(row["n"], row["k"], CODES[row["codes"]], GROUP))
        words, codes = row.get("swept") or row["kernel"], row["codes"]
        chosen = words_of(chosen_config(problem, spec), problem) == words
        cells = [
            row["m"],
            f"{row['k']} x {row['n']}",
            codes,
            words.removeprefix(f"{codes} "),
            "yes" if chosen else "no",
        ]
        lines.append([*cells, row["us"], row["gb_per_s"], row["peer_us"], f"{row['of_cublas']:.2f}", run])
    told = [
        f"{number}. {one['device']}, torch {one['torch']}, {one['date'][:10]}, {one['commit']}: `{one['command']}`"
        for number, (one, _) in enumerate(runs, 1)
    ]
    columns = ("m:", "k x n", "codes", "kernel", "chosen", "µs:", "GB/s:", "cuBLAS, bf16, µs:", "of cuBLAS:", "run:")
    return "\n".join([*table(columns, lines), "", "Runs:", "", *told])


def measured(asked: argparse.Namespace) -> int:
    torch: Any = extras.require("torch", "Timing torch.mm")
    gpu = open_gpu(torch.cuda.current_device())
    budget = Budget(asked.seconds)
    if asked.sweep:
        compile_ahead(asked, dispatcher(torch.cuda.current_device()).kernels.overlaps, gpu.arch)
        print(f"compiled in {asked.seconds - budget.left:.1f} s", file=sys.stderr)
    found = recorded(origin_of(torch, gpu.name), rows_of(Bench(torch), asked, budget), asked.out)
    wrong = [row for row in found if "wrong" in row]
    return int(bool(wrong))


def rows_of(bench: Bench, asked: argparse.Namespace, budget: Budget) -> Iterator[Row]:
    for shape in asked.shapes:
        k, n = (int(part) for part in shape.split("x"))
        bench.torch.cuda.empty_cache()
        weights = bench.weights(k, n)
        for codes in asked.codes:
            coded = bench.coded(weights, codes)
            for m in asked.rows:
                if budget.allows(f"{shape}, {codes}, m = {m}"):
                    yield bench.row(weights, coded, codes, m)
                    if asked.sweep:
                        yield from bench.swept(weights, coded, codes, m, asked.families)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="*", default=list(SHAPES), metavar="KxN", help="of the weight")
    parser.add_argument("--rows", nargs="*", type=int, default=list(ROWS), metavar="M")
    parser.add_argument("--codes", nargs="*", default=list(BITS), choices=list(BITS))
    parser.add_argument("--sweep", action="store_true", help="the kernels of SWEPT and SWEPT_WGMMA as well")
    parser.add_argument("--families", nargs="*", default=list(FAMILIES), choices=FAMILIES, help="of a sweep")
    parser.add_argument("--seconds", type=float, default=90.0, help="no case is begun after this")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--records", type=Path, help="with --write or --check")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--write", type=Path, metavar="PAGE")
    how.add_argument("--check", type=Path, metavar="PAGE")
    asked = parser.parse_args()
    try:
        if not asked.records:
            return measured(asked)
        kept_up_to_date(
            asked.write,
            asked.check,
            lambda text: with_part(text, MARKER, section(asked.records), what="the records of weights in few bits"),
            f"python benchmarks/few_bits.py --records {asked.records} --write",
        )
    except TilewrightError as wrong:
        sys.exit(str(wrong))
    return 0


if __name__ == "__main__":
    sys.exit(main())
