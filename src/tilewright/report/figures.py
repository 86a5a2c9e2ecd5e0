"""Figures: TFLOP/s with the word that says where they come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tilewright.bench.records import Record, recorded
from tilewright.device.catalog import device
from tilewright.device.spec import DeviceSpec
from tilewright.errors import TilewrightError, UnknownName
from tilewright.ladders.rung import Rung
from tilewright.prediction import predict_rung
from tilewright.problem.formats import FormatOptions, format_name
from tilewright.runtime.cubin_cache import CubinCache

Size = tuple[int, int, int]
FigureKind = Literal["measured", "recorded", "predicted"]

TIMED_SIZE: Size = (4096, 4096, 4096)
"""Where figures are measured, and where the published ones are."""


@dataclass(frozen=True, slots=True)
class Figure:
    """TFLOP/s of one rung. share_of_cublas: of the same run, 0 .. . verified: the timed results were right."""

    kind: FigureKind
    tflops: float
    share_of_cublas: float | None
    size: Size
    device: str
    date: str
    command: str
    verified: bool = True


def figure_of(record: Record, kind: FigureKind) -> Figure:
    """The figure in a record."""
    origin = record.origin
    return Figure(
        kind=kind,
        tflops=record.tflops,
        share_of_cublas=record.share_of_cublas,
        size=(record.m, record.n, record.k),
        device=origin.device,
        date=origin.date,
        command=origin.command,
        verified=bool(record.extra.get("verified", True)),
    )


def recorded_figure(rung: Rung, size: Size, dtype: str = "", spec: DeviceSpec | None = None) -> Figure | None:
    """The newest shipped record of a right result of a rung at a size, on any GPU or on one; None if there is none.

    dtype: the name of the formats; those of the rung if not said.
    """
    wanted = (rung.name, *size, dtype or format_name(rung.gemm(*size)))
    found = [r for r in recorded(rung.ladder) if (r.rung, r.m, r.n, r.k, r.dtype) == wanted]
    found = [record for record in found if record.extra.get("verified", True)]
    if spec is not None:
        found = [record for record in found if _was_taken_on(record, spec)]
    return figure_of(found[-1], "recorded") if found else None


def predicted_figure(
    rung: Rung, size: Size, spec: DeviceSpec, formats: FormatOptions, cache: CubinCache | None = None
) -> Figure | None:
    """What the time model says of a rung at a size; None where it cannot run there."""
    try:
        predicted = predict_rung(rung, rung.gemm(*size, **formats), spec, cache=cache)
    except TilewrightError:
        return None
    return Figure("predicted", predicted.tflops, None, size, spec.name, "", "")


def _was_taken_on(record: Record, spec: DeviceSpec) -> bool:
    try:
        return device(record.origin.device) == spec
    except UnknownName:
        return False
