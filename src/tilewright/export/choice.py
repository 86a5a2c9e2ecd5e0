"""Which kernel to export for a shape: what `matmul` would choose, as far as it is one launch."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.device.spec import DeviceSpec
from tilewright.errors import ProblemError
from tilewright.ladders import Rung, find_rung
from tilewright.planning.choices import Database, choices
from tilewright.planning.copies import Alignment, fitted
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Schedule
from tilewright.winners.choice import THIN, Choice


@dataclass(frozen=True, slots=True)
class Chosen:
    """origin: the rung and its point. passed_over: what `matmul` would rather do, which takes several launches.
    anywhere: what the rung does where rows begin at any element, if that is something else."""

    origin: str
    schedule: Schedule
    passed_over: str = ""
    anywhere: Schedule | None = None


def of_rung(rung: Rung, gemm: Gemm) -> Chosen:
    """A rung as it stands."""
    schedule, anywhere = rung.schedule(gemm), rung.schedule(replace(gemm, lda=gemm.lda + 1, ldb=gemm.ldb + 1))
    return Chosen(f"{rung.ladder}/{rung.slug}", schedule, anywhere=None if anywhere == schedule else anywhere)


def of_shape(gemm: Gemm, spec: DeviceSpec, database: Database | None = None) -> Chosen:
    """The best kernel for a shape on a device, with tight rows and aligned addresses: measured, else by estimate."""
    alignment = _alignment(gemm)
    ranked = [*_measured(gemm, spec, alignment, database), *(choice for _, choice in choices(gemm, spec, alignment))]
    single = [choice for choice in ranked if choice.splits == 1 and not choice.pads]
    if not single:
        raise ProblemError(f"No single kernel multiplies {gemm} on {spec.name}.", hint="name a rung to export.")
    best = single[0]
    return Chosen(str(best), _schedule(best, gemm), "" if best == ranked[0] else str(ranked[0]))


def _measured(gemm: Gemm, spec: DeviceSpec, alignment: Alignment, database: Database | None) -> list[Choice]:
    found = None if database is None else database.best_choice(spec.name, gemm, alignment.least)
    return [] if found is None or found.rung == THIN else [fitted(found, gemm, alignment)]


def _schedule(choice: Choice, gemm: Gemm) -> Schedule:
    rung = find_rung(choice.rung)
    if not choice.point or rung.choices is None:
        return rung.schedule(gemm)
    return rung.choices.schedule_at(gemm, choice.point)


def _alignment(gemm: Gemm) -> Alignment:
    """Of the rows; an address can always be aligned."""

    def of(row_bytes: int) -> int:
        return next(size for size in (16, 8, 4, 2, 1) if row_bytes % size == 0)

    return Alignment(of(gemm.lda * gemm.dtype.bytes), of(gemm.ldb * gemm.dtype.bytes), of(gemm.ldc * gemm.out.bytes))
