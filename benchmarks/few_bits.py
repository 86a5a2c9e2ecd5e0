"""Products with weights of 4 and 8 bits beside cuBLAS's of bf16: skinny activations, cold weights.

    python benchmarks/few_bits.py --out few_bits.jsonl
    python benchmarks/few_bits.py --sweep 6 --codes int4 --out few_bits_sweep.jsonl

Activations of m x k in bf16 times a weight of k x n: int4 and e4m3 in groups of 128, beside `torch.mm` of the weight in
bf16. Weights are rotated through more than four times the L2, calls captured into CUDA graphs and replayed in turn.
Results are checked first: against the codes in float64 in some columns, and against the product of the weight itself in
all; a wrong one ends the run with status 1. --sweep: also that many of the kernels that the choice ranks first, each
for itself.
One JSON line a row; the first tells device, date and command. No case is begun after --seconds.
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

import numpy as np

from tilewright import extras, matmul, quantize_weight
from tilewright.bench.records import command, commit, now
from tilewright.dtypes import BF16
from tilewright.errors import TilewrightError
from tilewright.frontend.options import PLAIN
from tilewright.frontend.weights import QuantizedWeight
from tilewright.planning.coded import candidates, coded_plan, cost, words_of
from tilewright.planning.dispatch import dispatcher
from tilewright.planning.plan import Place
from tilewright.problem.coded_product import CodedProduct, CodedWeight
from tilewright.runtime.driver import open_gpu
from tilewright.suite.gpu import TorchTimer
from tilewright.suite.timing import interleaved

SHAPES = ("4096x14336", "8192x28672")
ROWS = (1, 4, 16, 64)
BITS = {"int4": 4, "e4m3": 8}
GROUP = 128
ROTATED_BYTES = 240_000_000
MOST_COPIES = 12
CHECKED_COLUMNS = 512
MOST_DISTANCE = {"int4": 0.15, "e4m3": 0.04}
"""Of a result from that of the weight itself, by norms: what rounding normal numbers to codes costs, and some more."""

OURS, PEER = "ours", "peer"


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
        k, n = weights[0].shape
        a = self.drawn(m, k)
        self.check(a, weights[0], coded[0], codes)
        calls = {OURS: in_turn(lambda w: matmul(a, w), coded), PEER: in_turn(lambda w: self.torch.mm(a, w), weights)}
        times = interleaved(self.timer, calls, copies=max(len(coded), len(weights)))
        us, bytes_read = times[OURS].median_us, coded[0].nbytes + 2 * m * (k + n)
        row = {"k": k, "n": n, "m": m, "codes": codes, "us": round(us, 2), "peer_us": round(times[PEER].median_us, 2)}
        row |= {"tflops": round(2 * m * n * k / us / 1e6, 1), "gb_per_s": round(bytes_read / us / 1e3)}
        return row | {"of_cublas": round(times[OURS].share_of(times[PEER]), 3), "kernel": coded[0].words_of(a, PLAIN)}

    def swept(self, coded: list[QuantizedWeight], codes: str, m: int, most: int) -> Iterator[dict[str, Any]]:
        """The kernels that the choice ranks first, in turn."""
        k, n = coded[0].shape
        a, out = self.drawn(m, k), self.torch.empty(m, n, device="cuda", dtype=self.torch.bfloat16)
        expected = matmul(a, coded[0])
        planner = dispatcher(self.torch.cuda.current_device())
        problem = CodedProduct(m, coded[0]._kind)
        ranked = sorted(candidates(problem, planner.spec), key=lambda one: cost(one, problem, planner.spec))[:most]
        calls: dict[str, Callable[[], object]] = {}
        for config in ranked:
            plan = coded_plan(planner.kernels, problem, config)
            calls[words_of(config, problem)] = in_turn(lambda w, plan=plan: self.run(plan, a, w, out), coded)
            self.run(plan, a, coded[0], out)
            if not self.torch.allclose(out.float(), expected.float(), rtol=0.02, atol=0.05 * k**0.5):
                sys.exit(f"{words_of(config, problem)} differs from the chosen kernel")
        for words, found in interleaved(self.timer, calls, copies=len(coded)).items():
            yield {"k": k, "n": n, "m": m, "codes": codes, "sweep": words, "us": round(found.median_us, 2)}

    def run(self, plan: Any, a: Any, weight: QuantizedWeight, out: Any) -> None:
        base = weight._memory.data_ptr()
        places = {Place.A: a.data_ptr(), Place.B: base, Place.SCALE_B: base + weight._scales_at}
        places[Place.OUT] = out.data_ptr()
        plan.run(self.torch.cuda.current_stream().cuda_stream, [places.get(place, 0) for place in Place])

    def check(self, a: Any, weight: Any, coded: QuantizedWeight, codes: str) -> None:
        """Ends the run where a product is wrong."""
        found = matmul(a, coded).double()
        exact = (a.float() @ weight.float()).double()
        apart = float((found - exact).norm() / exact.norm())
        values = self.torch.from_numpy(values_of(coded, CHECKED_COLUMNS)).cuda()
        wide = a.double()
        here, sizes = wide @ values, wide.abs() @ values.abs()
        bound = BF16.unit_roundoff * here.abs() + 1e-5 * sizes
        worst = float(((found[:, : values.shape[1]] - here).abs() / bound).max())
        if not (apart <= MOST_DISTANCE[codes] and worst <= 1.0):
            sys.exit(f"{codes}, m = {len(a)}: {worst:.3g} of the bound, {apart:.3g} apart from the product in bf16")


def values_of(coded: QuantizedWeight, columns: int) -> Any:
    """What codes and scales of the first columns stand for, (k, columns), float64."""
    kind = coded._kind
    part = CodedWeight(min(columns, kind.n), kind.k, kind.codes, kind.group)
    memory = coded._memory.cpu().numpy()
    scales = memory[kind.words :].view(kind.scale_dtype.numpy)[: part.scale_elements]
    spread = np.repeat(part.read_scales(scales), kind.k // kind.groups, axis=1)
    return (part.unpack(memory[: part.words].view(np.int32)).astype(np.float64) * spread).T.copy()


def in_turn(multiply: Callable[[Any], Any], weights: list[Any]) -> Callable[[], object]:
    turn = cycle(weights)
    for weight in weights:
        multiply(weight)
    return lambda: multiply(next(turn))


def measured(asked: argparse.Namespace) -> int:
    torch: Any = extras.require("torch", "Timing torch.mm")
    gpu = open_gpu(torch.cuda.current_device())
    origin = {"device": gpu.name, "torch": torch.__version__, "command": command(), "commit": commit(), "date": now()}
    lines, bench, began = [json.dumps(origin)], Bench(torch), time.monotonic()

    def told(row: dict[str, Any]) -> None:
        lines.append(json.dumps(row))
        print(lines[-1], flush=True)
        if asked.out:
            asked.out.write_text("\n".join(lines) + "\n", encoding="utf-8")

    for shape in asked.shapes:
        k, n = (int(part) for part in shape.split("x"))
        torch.cuda.empty_cache()
        weights = bench.weights(k, n)
        for codes in asked.codes:
            coded = bench.coded(weights, codes)
            for m in asked.rows:
                if time.monotonic() - began > asked.seconds:
                    print(f"{shape}, {codes}, m = {m}: left out", file=sys.stderr)
                    continue
                told(bench.row(weights, coded, codes, m))
                if asked.sweep:
                    for row in bench.swept(coded, codes, m, asked.sweep):
                        told(row)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="*", default=list(SHAPES), metavar="KxN", help="of the weight")
    parser.add_argument("--rows", nargs="*", type=int, default=list(ROWS), metavar="M")
    parser.add_argument("--codes", nargs="*", default=list(BITS), choices=list(BITS))
    parser.add_argument("--sweep", type=int, default=0, metavar="COUNT")
    parser.add_argument("--seconds", type=float, default=90.0, help="no case is begun after this")
    parser.add_argument("--out", type=Path)
    try:
        return measured(parser.parse_args())
    except TilewrightError as wrong:
        sys.exit(str(wrong))


if __name__ == "__main__":
    sys.exit(main())
