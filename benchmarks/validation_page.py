"""The page that lays predictions beside measurements, as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pages.markdown import table
from validation import (
    BURSTS,
    OURS,
    TOLD_APART,
    Accuracy,
    Case,
    Sustained,
    accuracy,
    by_ladder_and_gpu,
)

from tilewright.model.prediction import HIGH, LOW

_HEAD = f"""# Predicted against measured

Written by `python benchmarks/predictions.py --write`: every figure of a rung that we recorded or that is published, and
what `tilewright predict` says of it. The clock is the one that was recorded with the figure, as with `predict --clock`,
and where none was, that of the data sheet. `docs/model.md` explains the model. Errors are of TFLOP/s: positive where
the prediction is too fast. The interval is {LOW - 1:+.0%} to {HIGH - 1:+.0%} of the time.

What `--check` checks: this page is computed anew from the recorded inputs of the model (counts of one block, blocks an
SM, bytes of DRAM, in `benchmarks/results/model_inputs.json`), so a change of the model shows; and one rung of each
ladder is simulated again, so a change of the counts shows. Nothing is compiled and nothing is measured.

**Chosen and held out.** Terms are chosen on one half of the rungs and judged on the other, which is held out. The
CRC-32 of a rung's name says which half its figures are in, on every GPU and at every size: odd is held out
(`Measured.held_out`). The five fitted constants are older than the split: they were fitted to all rows.
"""


_TOTALS = ("figures", "rows:", "mean error:", "bias:", "within 20 %:", "in the interval:")
_GROUPS = ("ladder", "GPU", "source", "rows:", "mean error:", "bias:", "within 20 %:", "Spearman:", "pairs in order:")
_SUSTAINED = ("rung", "M x N x K", "formats", "MHz:", "predicted MHz:", "us:", "predicted us:", "error:", "no limit:")


def page(cases: Sequence[Case], sustained: Sequence[Sustained]) -> str:
    """The whole page."""
    counted = [case for case in cases if not case.measured.is_original]
    originals = [case for case in cases if case.measured.is_original]
    unclocked = [case.unclocked for case in counted if case.measured.source != BURSTS]
    published = [case for case in counted if case.measured.source not in (OURS, BURSTS)]
    totals = [
        _total("of the rungs, and published where the rungs were not measured", counted),
        _total("- chosen", [case for case in counted if not case.measured.held_out]),
        _total("- held out", [case for case in counted if case.measured.held_out]),
        _total("the same, at the clocks of data sheets", [case.unclocked for case in counted]),
        _total("without bursts, at the clocks of data sheets", unclocked),
        _total("without bursts, sustained by the power of the board", [case.limited for case in unclocked]),
        _total("- chosen", [case.limited for case in unclocked if not case.measured.held_out]),
        _total("- held out", [case.limited for case in unclocked if case.measured.held_out]),
        _total("published of other GPUs, chosen", [c for c in published if not c.measured.held_out]),
        _total("published of other GPUs, held out", [c for c in published if c.measured.held_out]),
        _total("of the originals' own sources on the H200", originals),
        _total("- chosen", [case for case in originals if not case.measured.held_out]),
        _total("- held out", [case for case in originals if case.measured.held_out]),
    ]
    lines = [
        _HEAD,
        "## In all",
        "",
        *table(_TOTALS, totals),
        "",
        "The last three lines are no error of the model alone. Those kernels are other programs than the rungs: on the",
        "same H200 the rungs that were written after them run up to 1.9 times as fast (`worklog/12`), because their",
        "loops are unrolled. The published figures of other GPUs are of originals as well, with the same difference.",
        "",
        "## By ladder and GPU",
        "",
        "Spearman: correlation of the ranks of rungs at one size. Pairs in order: of rungs at one size and in the same",
        f"formats whose measured speeds differ by more than {TOLD_APART:.0%}, those predicted in the right order.",
        "",
    ]
    groups, of_groups = by_ladder_and_gpu(cases), []
    for (ladder, gpu, source), some in groups.items():
        found = accuracy(some)
        errors = f"{found.mean_error:.1%}", f"{found.bias:+.1%}", f"{found.within_20:.0%}"
        spearman = "-" if found.spearman is None else f"{found.spearman:.3f}"
        in_order = "-" if found.in_order is None else f"{found.in_order:.0%}"
        of_groups.append((ladder, gpu, source, found.rows, *errors, spearman, in_order))
    lines += [*table(_GROUPS, of_groups), *_sustained(sustained)]
    lines += ["", "## Every row", ""]
    for (ladder, gpu, source), some in groups.items():
        word = "measured" if source in (OURS, BURSTS) else "published"
        columns = ("rung", "half", "M x N x K", "formats", "MHz:", f"{word}:", "predicted:", "error:", "binds")
        lines += [f"### {ladder}, {gpu}, {source}", "", *table(columns, [_row(case) for case in some]), ""]
    return "\n".join(lines)


def _sustained(some: Sequence[Sustained]) -> list[str]:
    others = [one for one in some if one.case.measured.rung != "hopper/best"]
    rows = []
    for one in some:
        of, predicted = one.case.measured, one.case.predicted
        clocks = f"{one.clock_mhz:.0f}", f"{predicted.sustained_hz / 1e6:.0f}"
        times = f"{one.us:.5g}", f"{predicted.sustained_s * 1e6:.5g}", f"{one.error:+.1%}", f"{one.burst_error:+.1%}"
        rows.append((of.rung, f"{of.m} x {of.n} x {of.k}", of.dtype, *clocks, *times))
    return [
        "",
        "## Sustained",
        "",
        "Stretches of half a second at the power limit of an H200. Energies are fitted to other records, of",
        "`hopper/best` and FFMA (`benchmarks/energies.py`): all of these are held out. Last column: without a limit.",
        f"Mean error of all {len(some)} {_mean(one.error for one in some)}, without a limit",
        f"{_mean(one.burst_error for one in some)}; of the {len(others)} of kernels whose power was not fitted",
        f"{_mean(one.error for one in others)} and {_mean(one.burst_error for one in others)}.",
        "",
        *table(_SUSTAINED, rows),
    ]


def _mean(errors: Iterable[float]) -> str:
    sizes = [abs(error) for error in errors]
    return f"{sum(sizes) / len(sizes):.1%}"


def _total(what: str, some: Sequence[Case]) -> tuple[str, ...]:
    found: Accuracy = accuracy(some)
    shares = f"{found.within_20:.0%}", f"{found.within_interval:.0%}"
    return what, str(found.rows), f"{found.mean_error:.1%}", f"{found.bias:+.1%}", *shares


def _row(case: Case) -> tuple[str, ...]:
    one, predicted = case.measured, case.predicted
    size = f"{one.m} x {one.n} x {one.k}"
    figures = f"{one.tflops:.4g}", f"{predicted.tflops:.4g}", f"{case.error:+.1%}"
    clock = f"{predicted.clock_hz / 1e6:.0f}"
    half = "held out" if one.held_out else "chosen"
    return one.rung, half, size, one.dtype, clock, *figures, predicted.binding.name
