"""`tilewright tune`: the fastest kernel for one problem, searched on the GPU and kept for `matmul`.

This file has the options alone: what they need is imported while the GPU is opened.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli.output import AsJson
from tilewright.cli.sizes import size_of_words
from tilewright.errors import LaunchError, TilewrightError
from tilewright.runtime.driver import Gpu, gpu_problem, open_gpu
from tilewright.tuner import first
from tilewright.tuner.processes import FIRST, Processes

EXAMPLES = (
    "tilewright tune 4096 4096 4096 --dtype bf16",
    "tilewright tune 4096 4096 4096 --dtype bf16 --list   # needs no GPU",
    "tilewright tune 8192 8192 512 --dtype f32 --order NT --keep-bits",
    "tilewright tune 4096 14336 4096 --dtype f16 --storage postgresql://user@host/studies",
    "tilewright tune --suite --budget 500 --export winners.jsonl",
    "tilewright tune --shapes problems.csv --storage postgresql://user@host/studies",
)


_MOST_WORKERS = 24
"""By default. A GPU measures some 22 candidates a second, each of which takes a process half a second to a second, and
each process as long to start."""


def _sizes(text: str, n: int | None, k: int | None) -> tuple[int, int, int]:
    """M, N and K, of three numbers or of one word. A schedule in their place is answered with the command that is
    meant."""
    if "/" in text or ".py" in text:
        raise TilewrightError(
            f"{text!r} is a schedule: tune searches the library's kernels for one problem, M N K.",
            hint=f"`tilewright search {text}` searches the parameters of a schedule.",
        )
    sizes = size_of_words(text, n, k, "M")
    if not all(sizes):
        raise typer.BadParameter("there is nothing to tune without products: M, N and K are numbers from 1 on.")
    return sizes


def tune(
    context: typer.Context,
    m: Annotated[str | None, typer.Argument(metavar="M", help="Rows of A and C; or all sizes, N or MxNxK.")] = None,
    n: Annotated[int | None, typer.Argument(metavar="N", min=1, help="Columns of B and C.")] = None,
    k: Annotated[int | None, typer.Argument(metavar="K", min=1, help="Columns of A, rows of B.")] = None,
    dtype: Annotated[
        str | None, typer.Option(metavar="f32|tf32|f16|bf16", help="Of A and B. Default: f32; of --suite: its own.")
    ] = None,
    out: Annotated[str | None, typer.Option(metavar="f32|f16|bf16", help="Of C. Default: that of A and B.")] = None,
    order: Annotated[
        str | None,
        typer.Option(metavar="NN|NT|TN|TT", help="Which of A and B lie transposed. Default: NN; of --suite: three."),
    ] = None,
    family: Annotated[
        str | None, typer.Option(metavar="simt|mma|wgmma|gemv", help="Only kernels of this family.")
    ] = None,
    keep_bits: Annotated[
        bool, typer.Option("--keep-bits", help="Only kernels that sum in the order of today's: same bits.")
    ] = False,
    budget: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", min=1, help="Of the command; of each problem of --shapes. Default: 50; --suite 1000."
        ),
    ] = None,
    storage: Annotated[
        str | None, typer.Option(metavar="URL", help="postgresql://... lets machines share a search.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes that compile. Default: one a core, at most 24.")
    ] = None,
    list_only: Annotated[
        bool, typer.Option("--list", help="Print the candidates and their predicted times; needs no GPU.")
    ] = False,
    device: Annotated[str | None, typer.Option(metavar="NAME", help="With --list: for this GPU.")] = None,
    suite: Annotated[
        bool, typer.Option("--suite", help="All problems of `tilewright bench`, which share the budget.")
    ] = False,
    shapes: Annotated[
        Path | None,
        typer.Option(metavar="CSV", help="Problems (m,n,k[,dtype,out,order]) that machines with one --storage share."),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Of --suite, --shapes: the winners, as the package ships them."),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Search the fastest kernel for one problem on this GPU, and keep it for tilewright.matmul.

    Candidates are plans: kernels of every family, with split-K or without, operands packed or not, and what matmul does
    today. They are ranked by the cost model and compiled while the GPU measures; a result is held against float64
    before its time counts. The search is kept on disk: killed or out of time, the same command goes on where it was.
    The winner goes to the database.
    """
    _check_which(m, suite, shapes)
    given = "f32" if dtype is None else dtype, out, "NN" if order is None else order
    asked = None if m is None else (*_sizes(m, n, k), *given)
    if not list_only and device is not None:
        raise TilewrightError("--device is for --list: a search runs on the GPU at hand.")
    with Processes(workers or min(_MOST_WORKERS, os.cpu_count() or 1)) as processes:
        processes.start(0 if list_only else FIRST)
        beside = ThreadPoolExecutor(2).submit  # the driver takes half a second, in which the rest is imported
        opening = None if list_only else beside(_opened)
        beginning = None if list_only or asked is None else beside(first.begun, processes, asked)
        from tilewright.cli import tuning

        problems = tuning.problems_of(asked, dtype, order, shapes)
        words = tuning.Words(family, keep_bits, as_json)
        if opening is None:
            return tuning.print_candidates(problems, device, words, is_list=m is None)
        if m is None and (code := tuning.one_for_each_gpu(sys.argv[1:])) is not None:
            return code
        (gpu := opening.result()).make_current()
        search = tuning.Search(gpu, processes, storage or tuning.default_url(), words)
        if m is None:
            seconds = budget or 50.0 if shapes is not None else (budget or 1000.0) / len(problems)
            return search.all_of(problems, seconds, export)
        return search.one(problems[0].gemm, budget or 50.0, started=context.obj, beginning=beginning)


def _opened() -> Gpu:
    missing = gpu_problem()
    if missing is None:
        return open_gpu()
    raise LaunchError(
        f"Tuning measures, which needs a GPU: {missing}",
        hint="--list prints the candidates and their predicted times without one; "
        "`tilewright database import` takes over what another machine has tuned.",
    )


def _check_which(m: str | None, suite: bool, shapes: Path | None) -> None:
    """Raises BadParameter unless it is clear what to tune."""
    if suite and shapes is not None:
        raise typer.BadParameter("--suite and --shapes each name problems: leave out one.")
    if (suite or shapes is not None) and m is not None:
        raise typer.BadParameter(f"{'--suite' if suite else '--shapes'} has problems of its own: leave out M, N and K.")
    if not suite and shapes is None and m is None:
        raise typer.BadParameter("give M, N and K, or --suite.")
