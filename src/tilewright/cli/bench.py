"""`tilewright bench`: matmul against cuBLAS, cuBLASLt and torch.compile over a suite of shapes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.bench import records
from tilewright.cli import output
from tilewright.cli.bench_drawn import default_place, run_drawn, targets_of
from tilewright.errors import LaunchError, TilewrightError, UnknownName
from tilewright.problem.emulation import EMULATIONS
from tilewright.runtime.driver import gpu_problem
from tilewright.suite.outcomes import BUDGET_SPENT, Outcome
from tilewright.suite.problems import FORMATS, OPTIONAL_FORMATS, ORDERS, SHAPES, problems
from tilewright.suite.running import CUBLAS, PEERS, Plan, Turn, run, shares, turns_left

if TYPE_CHECKING:
    from tilewright.suite.gpu import TorchBench

EXAMPLES = (
    "tilewright bench --budget 480",
    "tilewright bench --size 4095x4097x4093 --dtype bf16 --order NN --peers cublas,compile",
    "tilewright bench --shapes layers.csv --tokens tokens.txt --dtype bf16 --sample 300",
    "tilewright bench --random 200 --dtype f32 --order NN --seed 7",
)

_WORTH_PROCESSES = 8
"""Problems to compile for; fewer are compiled in the time that processes take to start."""

_DTYPES = (*FORMATS, *OPTIONAL_FORMATS, *EMULATIONS, "of drawn problems also e4m3, e5m2")

_PEERS = dict(zip(("cublas", "cublaslt", "compile"), PEERS, strict=True))


def bench(
    size: Annotated[list[str] | None, typer.Option(metavar="MxNxK", help="May be repeated. Default: all.")] = None,
    dtype: Annotated[str, typer.Option(help=f"{', '.join(_DTYPES)}; several with commas.")] = ",".join(FORMATS),
    order: Annotated[
        str | None, typer.Option(help="NN, NT, TN: T is a transposed view. Default: all; NT for drawn problems.")
    ] = None,
    peers: Annotated[str, typer.Option(help="Whom to time beside tilewright.")] = ",".join(_PEERS),
    record: Annotated[Path | None, typer.Option(metavar="FILE", help="Where rows are added as they come.")] = None,
    budget: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="Begin no problem after so long.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Also what this commit has measured already.")] = False,
    shapes: Annotated[
        Path | None, typer.Option(metavar="CSV", help="Layers: model,out_features,in_features. Needs --tokens.")
    ] = None,
    tokens: Annotated[Path | None, typer.Option(metavar="TXT", help="Token counts to combine with --shapes.")] = None,
    random: Annotated[int, typer.Option(min=0, metavar="N", help="Random sizes of 8 .. 8192, log-uniform.")] = 0,
    batched: Annotated[bool, typer.Option("--batched", help="Batched products beside torch.bmm.")] = False,
    grouped: Annotated[bool, typer.Option("--grouped", help="Grouped products beside torch._grouped_mm.")] = False,
    sample: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="So many drawn problems of each format and order.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Names the drawing: the same seed draws the same problems.")] = 0,
) -> int:
    """Time tilewright.matmul and its peers in turn, every result checked first.

    A run that was stopped goes on where it was. Problems are measured without torch.compile first, whose tuning takes
    half a minute each, then again with it. The exit code is 1 if a result was wrong.
    """
    orders = [word.upper() for word in _words(order or ",".join(ORDERS))]
    if shapes is not None or tokens is not None or random or batched or grouped:
        if size:
            raise TilewrightError("--size names problems, --shapes and --random draw them.", hint="leave one out.")
        drawn = targets_of(
            shapes=shapes,
            tokens=tokens,
            random=random,
            batched=batched,
            grouped=grouped,
            formats=_words(dtype),
            orders=orders if order else ["NT"],
            seed=seed,
            sample=sample,
        )
        with output.progress("measuring") as progress:
            return run_drawn(drawn, _bench(), record, budget=budget, again=again, progress=progress)
    chosen = problems([_shape(text) for text in size] if size else SHAPES, _words(dtype), orders)
    asked = tuple(_peer(word) for word in _words(peers))
    began = time.monotonic()
    gpu, commit = _bench(), records.commit()
    path = record or default_place("library", gpu.device)
    plan = Plan(chosen, asked, path, budget, again)
    rows = []
    with output.progress("measuring") as progress:
        _compile_ahead(turns_left(plan, gpu.device, commit), progress)
        if budget is not None:  # compiling is part of it
            plan = replace(plan, budget_s=budget - (time.monotonic() - began))
        for row in run(plan, gpu, commit=commit, progress=progress):
            rows.append(row)
            _print_row(row)
    return _print_end(rows, path)


def _bench() -> TorchBench:
    from tilewright.suite.gpu import TorchBench

    problem = gpu_problem()
    if problem is not None:
        raise LaunchError(
            f"Timing needs a GPU: {problem}", hint="`tilewright plan MxNxK` says what matmul would run, and how long."
        )
    return TorchBench()


def _compile_ahead(turns: Sequence[Turn], progress: output.Progress) -> None:
    """Kernels by several processes, where there is enough to do for their start."""
    left = tuple(dict.fromkeys(problem for problem, _ in turns))
    if len(left) >= _WORTH_PROCESSES:
        from tilewright.suite.ahead import compile_ahead

        compile_ahead(left, progress=progress)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _peer(word: str) -> str:
    if word not in _PEERS:
        raise UnknownName("peer", word, _PEERS)
    return _PEERS[word]


def _shape(text: str) -> tuple[int, int, int]:
    parts = text.lower().split("x")
    if len(parts) != 3 or not all(part.isdigit() and int(part) for part in parts):
        raise TilewrightError(f"{text!r} is not a shape.", hint="write MxNxK, such as 4096x4096x4096.")
    m, n, k = (int(part) for part in parts)
    return m, n, k


def _print_row(row: Outcome[Turn, records.Record]) -> None:
    console = output.out()
    if row.made is None:
        console.print(f"{row.item[0]!s:28} {row.failure}", soft_wrap=True)
        return
    found = row.made
    told = "  ".join(f"{share:.3f} x {peer}" for peer, share in shares(found).items())
    console.print(
        f"{row.item[0]!s:28} {found.median_us:10.2f} us {found.tflops:7.1f} TFLOP/s  {told}  {found.extra['chosen']}",
        soft_wrap=True,
    )
    for peer, why in found.extra.get("notes", {}).items():
        output.note(f"  {peer} was left out: {why}")


def _print_end(rows: list[Outcome[Turn, records.Record]], path: Path) -> int:
    measured = [row.made for row in rows if row.made is not None]
    found = [row.share_of_cublas for row in measured if row.share_of_cublas is not None]
    console = output.out()
    if found:
        mean = geometric_mean(found)
        console.print(f"geometric mean {mean:.3f} x {CUBLAS}, least {min(found):.3f}, over {len(found)} measurements")
    if not rows:
        console.print("Everything asked for was measured by this commit before; --again measures it again.")
    else:
        output.note(f"{len(measured)} rows are in {path}.")
    left = rows[-1].left if rows else 0
    if left:
        output.note(f"{left} measurements are left: the same command goes on with them.")
    failed = [row for row in rows if row.made is None and not row.left]
    wrong = [row for row in failed if row.failure != BUDGET_SPENT]
    return 1 if wrong else 0
