"""What the model of overlap predicts: the tables of docs/distributed.md, printed, written or checked; and what the
plans take on the GPUs of a host, beside the product alone, and NCCL and cuBLAS in turn.

python benchmarks/overlap.py [--write | --check]
torchrun --nproc-per-node=2 benchmarks/overlap.py --measure [--shapes 2048x3584x8192,...] [--no-graphs] [--out FILE]
torchrun --nproc-per-node=2 benchmarks/overlap.py --drawn 40 --seed 1 [--out FILE]
python benchmarks/overlap.py --kernels [--shapes 2048x3584x8192,...] [--out FILE]

--kernels takes one GPU: what the kernel that waits for rows costs where they are there, beside plain ones.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from overlap_costs import alone_us, in_turn_us
from overlap_ways import drawn_problems, measure, measure_kernels
from pages.markdown import table

from tilewright.device.catalog import H200, device
from tilewright.device.links import NETWORK_400, NVLINK_4, Link
from tilewright.distributed.overlap import Costs, Work
from tilewright.distributed.plans import chosen, plan_us

PAGE = Path(__file__).parents[1] / "docs" / "distributed.md"
BEGIN, END = "<!-- overlap: begin -->\n", "<!-- overlap: end -->\n"

SHAPES = (
    (64, 14336, 4096), (512, 14336, 4096), (2048, 3584, 8192),
    (4096, 14336, 4096), (8192, 14336, 4096), (8192, 28672, 8192),
)  # fmt: skip

RECORDS = Path(__file__).parent / "results"
RECORD, DRAWN = RECORDS / "overlap_h200x2.json", RECORDS / "overlap_drawn_h200x2.json"
"""What `--measure` and `--drawn` wrote."""


def record(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def measured_ways() -> list[str]:
    """The chosen plan beside the product alone, and beside NCCL and cuBLAS in turn; and whence the figures are."""
    columns = ("M x N x K", "", "alone", "in turn: eager", "graph", "chosen: eager", "graph", "over alone")
    columns += ("of in turn: eager", "graph", "plan", "fastest plan, graph")
    found, cells = record(RECORD), []
    for one in found["times"]:
        eager, graph = one["eager"], one["graph"]
        alone = min(graph["alone"], graph["torch.mm alone"])
        plans = {name: us for name, us in graph.items() if name.startswith(one["kind"])}
        fastest = min(plans, key=lambda name: plans[name])
        cells.append((
            " x ".join(map(str, one["shape"])), one["kind"], f"{alone:.0f}",
            f"{eager['in turn']:.0f}", f"{graph['in turn']:.0f}", f"{eager['chosen']:.0f}", f"{graph['chosen']:.0f}",
            f"{graph['chosen'] / alone:.2f}", f"{eager['chosen'] / eager['in turn']:.2f}",
            f"{graph['chosen'] / graph['in turn']:.2f}", one["plan"], f"{fastest}: {plans[fastest]:.0f}",
        ))  # fmt: skip
    return [*table(columns, cells), "", _whence(found["origin"])]


def drawn_summary() -> list[str]:
    """The chosen plan over NCCL and cuBLAS in turn, of problems that were drawn."""
    found, cells = record(DRAWN), []
    for kind, issue in (("gather", "eager"), ("gather", "graph"), ("scatter", "eager"), ("scatter", "graph")):
        some = [one for one in found["times"] if one["kind"] == kind]
        ratios = {tuple(one["shape"]): one[issue]["chosen"] / one[issue]["in turn"] for one in some}
        worst = max(ratios, key=lambda shape: ratios[shape])
        slower = sum(ratio > 1 for ratio in ratios.values())
        slowest = f"{ratios[worst]:.2f} ({' x '.join(map(str, worst))})"
        mean = f"{geometric_mean(ratios.values()):.2f}"
        cells.append((f"{kind}, {issue}", mean, slowest, f"{slower} of {len(ratios)}"))
    columns = ("drawn problems, chosen of in turn", "geometric mean", "slowest", "slower")
    return [*table(columns, cells), "", _whence(found["origin"])]


def _whence(origin: dict[str, Any]) -> str:
    return (
        f"{origin['ranks']} x {origin['gpu']}, driver {origin['driver']}, torch {origin['torch']}, "
        f"{origin['date'][:10]}, {origin['commit']}: `{origin['command']}`"
        + (f". {origin['note'][0].upper()}{origin['note'][1:]}." if "note" in origin else "")
    )


def work_of(shape: tuple[int, int, int], gathers: bool, ranks: int) -> Work:
    """M x N x K over a group: an all-gather splits N, a reduce-scatter K."""
    m, n, k = shape
    rows = (m // ranks,) * ranks
    return Work(rows, k, n // ranks) if gathers else Work(rows, k // ranks, n)


def against_measurements() -> list[str]:
    """Predictions beside the record, whose figures are of calls in CUDA graphs."""
    found = record(RECORD)
    costs = Costs(device(found["origin"]["gpu"]))
    cells = []
    for one in found["times"]:
        gathers, graph = one["kind"] == "gather", one["graph"]
        work = work_of(tuple(one["shape"]), gathers, found["origin"]["ranks"])
        predicted = alone_us(work, costs), in_turn_us(gathers, work, costs), predicted_us(gathers, work, costs)
        measured = min(graph["alone"], graph["torch.mm alone"]), graph["in turn"], graph["chosen"]
        pairs = [f"{us:.0f}" for pair in zip(measured, predicted, strict=True) for us in pair]
        cells.append((" x ".join(map(str, one["shape"])), one["kind"], *pairs))
    columns = ("M x N x K", "", "alone: measured", "predicted", "in turn: measured", "predicted", "chosen: measured")
    return table((*columns, "predicted"), cells)


def predicted_us(gathers: bool, work: Work, costs: Costs) -> float:
    return plan_us(chosen(gathers, work, costs), work, costs)


def by_ranks(link: Link) -> list[str]:
    costs = Costs(H200, link)
    counts = (2, 4, 8)
    lines = []
    for shape in SHAPES:
        for gathers in (True, False):
            cells = []
            for count in counts:
                work = work_of(shape, gathers, count)
                plan, alone = chosen(gathers, work, costs), alone_us(work, costs)
                overlapped, turn = plan_us(plan, work, costs) / alone, in_turn_us(gathers, work, costs) / alone
                cells.append(f"{turn:.2f} → {overlapped:.2f} ({plan})")
            kind = "gather" if gathers else "scatter"
            lines.append((" x ".join(map(str, shape)), kind, *cells))
    return table((f"M x N x K, {link.name}", "", *(f"{count} GPUs" for count in counts)), lines)


def tables() -> str:
    parts = (measured_ways(), drawn_summary(), against_measurements(), by_ranks(NVLINK_4), by_ranks(NETWORK_400))
    return "\n\n".join("\n".join(lines) for lines in parts) + "\n"


def written(page: str) -> str:
    """A page with the tables between its markers."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}{tables()}{END}{tail}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--measure", action="store_true", help="under torchrun, one process a GPU")
    parser.add_argument("--drawn", type=int, default=0, help="so many problems, by the plan that is chosen")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-graphs", action="store_true", help="only calls one by one")
    parser.add_argument("--kernels", action="store_true", help="on one GPU")
    parser.add_argument("--shapes", default=",".join("x".join(map(str, shape)) for shape in SHAPES))
    parser.add_argument("--out", default="", help="a JSON file of what was measured")
    asked = parser.parse_args()
    if asked.drawn:
        problems = drawn_problems(asked.drawn, asked.seed, int(os.environ["WORLD_SIZE"]))
        return measure(problems, asked.out, every=False, graphs=not asked.no_graphs)
    if asked.measure or asked.kernels:
        m_n_k = [tuple(map(int, shape.split("x"))) for shape in asked.shapes.split(",")]
        shapes = [(m, n, k) for m, n, k in m_n_k]
        if asked.kernels:
            return measure_kernels(shapes, asked.out)
        problems = [(kind, shape) for shape in shapes for kind in ("gather", "scatter")]
        return measure(problems, asked.out, every=True, graphs=not asked.no_graphs)
    page = PAGE.read_text(encoding="utf-8")
    if asked.write:
        PAGE.write_text(written(page), encoding="utf-8")
    elif asked.check:
        if page != written(page):
            print(f"{PAGE.name} is not what the model says: python benchmarks/overlap.py --write", file=sys.stderr)
            return 1
    else:
        print(tables())
    return 0


if __name__ == "__main__":
    sys.exit(main())
