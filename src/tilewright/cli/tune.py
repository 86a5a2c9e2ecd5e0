"""`tilewright tune`: the fastest kernel for one problem, searched on the GPU and kept for `matmul`."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import typer

from tilewright.cli import output
from tilewright.cli.arguments import AsJson
from tilewright.cli.tune_list import Shared, one_for_each_gpu, tune_list
from tilewright.device.catalog import device as known_device
from tilewright.device.spec import DeviceSpec
from tilewright.errors import LaunchError, ProblemError, TilewrightError
from tilewright.planning.on_paper import version_of
from tilewright.problem.gemm import Gemm
from tilewright.report.own_schedules import is_file
from tilewright.runtime.driver import Gpu, gpu_problem, open_gpu
from tilewright.runtime.probe import probe
from tilewright.tuner.compiling import Compilers
from tilewright.tuner.fleet import Listed, listed, problem
from tilewright.tuner.measure import GpuMeasurer
from tilewright.tuner.session import begun
from tilewright.tuner.session import tune as search
from tilewright.tuner.space import Space, make_space
from tilewright.tuner.storage import default_url, import_ahead
from tilewright.tuner.today import todays_order, todays_plan
from tilewright.tuner.tune import Outcome, State, reasons_of, winner_of
from tilewright.winners.database import Database
from tilewright.winners.keys import Key
from tilewright.winners.lookup import Lookup
from tilewright.winners.order import ReductionOrder
from tilewright.winners.plan_config import PlanConfig
from tilewright.winners.winner import Winner, without_password

EXAMPLES = (
    "tilewright tune 4096 4096 4096 --dtype bf16",
    "tilewright tune 4096 4096 4096 --dtype bf16 --list   # needs no GPU",
    "tilewright tune 8192 8192 512 --dtype f32 --order NT --keep-bits",
    "tilewright tune 4096 14336 4096 --dtype f16 --storage postgresql://user@host/studies",
    "tilewright tune --suite --budget 500 --export winners.jsonl",
    "tilewright tune --shapes problems.csv --storage postgresql://user@host/studies",
)


def _rows(text: str) -> int:
    """M. A schedule in its place is answered with the command that is meant."""
    if is_file(text) or "/" in text:
        raise TilewrightError(
            f"{text!r} is a schedule: tune searches the library's kernels for one problem, M N K.",
            hint=f"`tilewright search {text}` searches the parameters of a schedule.",
        )
    if not re.fullmatch(r"\d+", text) or int(text) < 1:
        raise typer.BadParameter(f"{text!r} is not a number of rows from 1 on.")
    return int(text)


def tune(
    context: typer.Context,
    m: Annotated[int | None, typer.Argument(metavar="M", parser=_rows, help="Rows of A and C.")] = None,
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
            metavar="SECONDS",
            min=1,
            help="Of the command; of each problem of --shapes. Default: 50; --suite 1000.",
        ),
    ] = None,
    storage: Annotated[
        str | None, typer.Option(metavar="URL", help="postgresql://... lets machines share a search.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes that compile. Default: one a core.")] = None,
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
    before its time counts. The search is kept on disk: killed or out of time, the same command goes on
    where it was. The winner goes to the database.
    """
    started: float = context.obj
    processes = workers or os.cpu_count() or 1
    _check_which(m, n, k, suite, shapes)
    asked = _list_of(shapes, dtype, order) if suite or shapes is not None else ()
    gemm = None if asked else problem(m or 0, n or 0, k or 0, dtype or "f32", out, order or "NN")
    if list_only:
        _, spec = _device(list_only, device)
        if gemm is None:
            return _print_problems(asked, spec, as_json)
        return _print_candidates(gemm, spec, family, keep_bits, as_json)
    _refuse_without_gpu()
    on_all = one_for_each_gpu(sys.argv[1:]) if asked else None
    if on_all is not None:
        return on_all
    url = storage or default_url()
    import_ahead()
    with Compilers(processes) as compilers:
        gpu, spec = _device(list_only, device)
        assert gpu is not None
        if gemm is None:
            seconds = budget or 50.0 if shapes is not None else (budget or 1000.0) / len(asked)
            shared = Shared(asked, url, seconds, export)
            return _tune_list(shared, gpu, spec, family, keep_bits, compilers, as_json)
        return _tune_one(gemm, gpu, spec, family, keep_bits, url, budget or 50.0, compilers, started, as_json)


def _list_of(shapes: Path | None, dtype: str | None, order: str | None) -> tuple[Listed, ...]:
    """The problems of a file, or of the suite."""
    if shapes is not None:
        return listed(shapes)
    from tilewright.suite.problems import FORMATS, ORDERS, problems  # here: a search of one problem does without

    formats = FORMATS if dtype is None else (dtype,)
    orders = ORDERS if order is None else (order.upper(),)
    return tuple(Listed(one.gemm) for one in problems(formats=formats, orders=orders))


def _like(gemm: Gemm, today: PlanConfig, keep_bits: bool) -> ReductionOrder | None:
    """The order of summation that candidates must keep."""
    return todays_order(gemm, today) if keep_bits else None


def _print_candidates(gemm: Gemm, spec: DeviceSpec, family: str | None, keep_bits: bool, as_json: bool) -> int:
    """All candidates of a problem, by their predicted times."""
    database = Database()
    today = todays_plan(gemm, spec, Lookup(version_of, database))
    _print_ranking(_space_of(gemm, spec, family, _like(gemm, today, keep_bits)), as_json)
    return 0


def _tune_one(
    gemm: Gemm, gpu: Gpu, spec: DeviceSpec, family: str | None, keep_bits: bool, storage: str, seconds: float,
    compilers: Compilers, started: float, as_json: bool,
) -> int:  # fmt: skip
    """One problem."""
    database = Database()
    today = todays_plan(gemm, spec, Lookup(version_of, database))
    job = _Job(gpu, gemm, spec, family, _like(gemm, today, keep_bits), database, today, compilers)
    space, outcome = job.run(storage, seconds, started)
    stored = job.store(outcome)
    _print_outcome(space, outcome, stored, as_json, today)
    for complaint in database.complaints:
        output.note(complaint)
    return 0


def _check_which(m: int | None, n: int | None, k: int | None, suite: bool, shapes: Path | None) -> None:
    """Raises BadParameter unless it is clear what to tune."""
    if suite and shapes is not None:
        raise typer.BadParameter("--suite and --shapes each name problems: leave out one.")
    if (suite or shapes is not None) and m is not None:
        raise typer.BadParameter(f"{'--suite' if suite else '--shapes'} has problems of its own: leave out M, N and K.")
    if not suite and shapes is None and (m is None or n is None or k is None):
        raise typer.BadParameter("give M, N and K, or --suite.")


def _print_problems(asked: tuple[Listed, ...], spec: DeviceSpec, as_json: bool) -> int:
    lines = [str(one.gemm) for one in asked]
    output.print_json({"device": spec.name, "problems": lines}) if as_json else print("\n".join(lines))
    return 0


def _tune_list(
    shared: Shared, gpu: Gpu, spec: DeviceSpec, family: str | None, keep_bits: bool, compilers: Compilers, as_json: bool
) -> int:
    """All problems of a list."""
    database = Database()

    def tune_one(gemm: Gemm) -> str:
        today = todays_plan(gemm, spec, Lookup(version_of, database))
        job = _Job(gpu, gemm, spec, family, _like(gemm, today, keep_bits), database, today, compilers)
        _, outcome = job.run(shared.storage, shared.budget_s, monotonic())
        job.store(outcome)
        return winner_of(outcome, Key.of(spec, gemm), gemm.flops).to_json()

    return tune_list(shared, spec, tune_one, database, as_json=as_json)


def _device(list_only: bool, name: str | None) -> tuple[Gpu | None, DeviceSpec]:
    """The GPU at hand; None with --list where it is of another one, or there is none."""
    gpu = None if list_only and name is not None else _gpu(list_only)
    if gpu is None:
        return None, known_device(name or "H200")
    if name is not None:
        raise ProblemError("--device is for --list: a search runs on the GPU at hand.")
    return gpu, probe(gpu)


def _gpu(list_only: bool) -> Gpu | None:
    if list_only and gpu_problem() is not None:
        return None
    return open_gpu()


def _refuse_without_gpu() -> None:
    missing = gpu_problem()
    if missing is None:
        return
    raise LaunchError(
        f"Tuning measures, which needs a GPU: {missing}",
        hint="--list prints the candidates and their predicted times without one; "
        "`tilewright database import` takes over what another machine has tuned.",
    )


def _space_of(
    gemm: Gemm, spec: DeviceSpec, family: str | None, like: ReductionOrder | None, today: PlanConfig | None = None
) -> Space:
    with output.progress("listing and ranking candidates"):
        return make_space(gemm, spec, family=family, like=like, today=today)


@dataclass
class _Job:
    """A search on the GPU at hand, and what becomes of its winner."""

    gpu: Gpu
    gemm: Gemm
    spec: DeviceSpec
    family: str | None
    like: ReductionOrder | None
    database: Database
    today: PlanConfig
    compilers: Compilers
    earlier: Winner | None = None

    def run(self, storage: str, budget: float, started: float) -> tuple[Space, Outcome]:
        """The candidates, and what the search found."""
        self.earlier = self.database.winner(Key.of(self.spec, self.gemm))
        measurer = GpuMeasurer(self.gpu, self.gemm, self._peers)
        try:
            builds = begun(measurer, self.spec, self.compilers, like=self.like, first=(self.today,))
            space = _space_of(self.gemm, self.spec, self.family, self.like, self.today)
            with output.progress(f"tuning {self.gemm}") as advance:

                def step(state: State) -> None:
                    done, left = round(1000 * state.elapsed_s), round(1000 * state.left_s)
                    advance(told(state), done, done + left)

                outcome = search(
                    space,
                    builds,
                    measurer,
                    storage=storage,
                    seconds=budget,
                    started=started,
                    rivals=(self.today,),
                    progress=step,
                )
            return space, outcome
        finally:
            measurer.close()

    def _peers(self) -> dict[str, Any]:
        from tilewright.bench.baseline import cublas

        peer = cublas(self.gpu, self.gemm)
        return {} if peer is None else {"cuBLAS": peer.launch}

    def store(self, outcome: Outcome) -> bool:
        """Whether the winner is what `matmul` uses from now on."""
        key = Key.of(self.spec, self.gemm)
        return self.database.record(winner_of(outcome, key, self.gemm.flops), over=self.earlier)


# -- printing ------------------------------------------------------------------------------------------------------


def told(state: State) -> str:
    """Where a search stands, in a line."""
    best = "" if state.best is None else f", best {state.best.measured.median_us:.1f} us"
    failed = f", {state.failed} failed" if state.failed else ""
    return f"{state.measured} of {state.candidates} measured{failed}{best}"


_LISTED = 20


def _print_ranking(space: Space, as_json: bool) -> None:
    if as_json:
        listed = [{**one.config.as_data(), "predicted_us": one.predicted_us} for one in space.ranked]
        output.print_json({"problem": str(space.gemm), "device": space.spec.name, "candidates": listed})
        return
    print(f"{space.gemm} on {space.spec.name}: {len(space.candidates)} candidates. Predicted, not measured:")
    for one in space.ranked[:_LISTED]:
        print(f"  {one.predicted_us:10.1f} us  {one.config}")
    if len(space.ranked) > _LISTED:
        print(f"  ... and {len(space.ranked) - _LISTED} more; --json prints all")


def _print_outcome(space: Space, outcome: Outcome, stored: bool, as_json: bool, today: PlanConfig) -> None:
    time, peer = outcome.time, outcome.times.get("cuBLAS")
    if as_json:
        output.print_json(
            {
                "problem": str(space.gemm),
                "device": space.spec.name,
                **outcome.best.candidate.as_data(),
                "median_us": time.median_us,
                "tflops": time.tflops(space.gemm),
                "share_of_cublas": None if peer is None else peer.median_us / time.median_us,
                "times_us": {name: found.median_us for name, found in outcome.times.items()},
                "candidates": outcome.candidates,
                "measured": len(outcome.results),
                "measured_here": outcome.here,
                "first_measured_s": outcome.pace.first_s if outcome.here else None,
                "measured_per_s": outcome.pace.per_second,
                "failures": {str(candidate): reason for candidate, reason in outcome.failures.items()},
                "exhausted": outcome.exhausted,
                "elapsed_s": outcome.elapsed_s,
                "stored": stored,
            }
        )
        return
    measured = f"{len(outcome.results)} of {outcome.candidates} candidates measured"
    print(f"{space.gemm} on {space.spec.name}: {measured}, {outcome.here} of them now, in {outcome.elapsed_s:.1f} s")
    if outcome.here:
        rate = outcome.pace.per_second
        then = "" if rate is None else f", then {rate:.1f} a second"
        print(f"  The first was measured after {outcome.pace.first_s:.1f} s{then}.")
    share = "" if peer is None else f", {100 * peer.median_us / time.median_us:.1f} % of cuBLAS"
    print(f"  {time.median_us:.2f} us, {time.tflops(space.gemm):.1f} TFLOP/s{share}: {outcome.best.candidate}")
    own = outcome.times.get(str(today))
    if outcome.best.candidate == today:
        print("  It is what matmul chose already.")
    elif stored:
        print("  matmul uses it from now on." + ("" if own is None else f" Until now it took {own.median_us:.2f} us."))
    for reason, count in reasons_of(outcome.failures)[:5]:
        print(f"  {count} left out: {without_password(reason)}")
    if not outcome.exhausted:
        print("  The same command goes on where this one stopped.")
