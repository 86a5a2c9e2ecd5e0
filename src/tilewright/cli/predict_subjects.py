"""What `tilewright predict` predicts: a rung or a schedule of a file, or what `matmul` runs for a precision."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any

from tilewright.cli.arguments import chosen_problem, formats_of
from tilewright.cli.sizes import parse_size
from tilewright.device.spec import DeviceSpec
from tilewright.errors import TilewrightError, UnknownName
from tilewright.frontend.predicting import predict_precision
from tilewright.kernels.work import Work
from tilewright.ladders.rung import Rung
from tilewright.prediction import Prediction
from tilewright.prediction.counting import work_of
from tilewright.prediction.predict import predict
from tilewright.problem.emulation import EMULATIONS
from tilewright.problem.formats import format_name
from tilewright.problem.gemm import Gemm
from tilewright.report.own_schedules import is_file
from tilewright.runtime.cubin_cache import CubinCache
from tilewright.schedule import Schedule
from tilewright.toolchain import Build, build

DEFAULT_SIZE = "4096"


@dataclass(frozen=True)
class OfRung:
    """A rung at a problem. counted: what was counted of its kernels, which does not depend on the GPU."""

    rung: Rung
    gemm: Gemm
    counted: dict[Schedule, tuple[Build, Work]] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return self.rung.title

    @property
    def formats(self) -> str:
        return format_name(self.gemm)

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.gemm.m, self.gemm.n, self.gemm.k

    def sized(self, size: int) -> OfRung:
        return OfRung(self.rung, self.gemm.resized(size, size, size))

    def predict(self, spec: DeviceSpec, clock_mhz: float | None = None) -> Prediction:
        schedule = self.rung.on(spec).schedule(self.gemm)
        if schedule not in self.counted:
            built = build(self.gemm, self.rung.on(spec))
            self.counted[schedule] = built, work_of(built)
        built, work = self.counted[schedule]
        return predict(built, spec, cache=CubinCache(), work=work, clock_mhz=clock_mhz)

    def as_data(self) -> dict[str, Any]:
        return {"rung": self.rung.name, **_sizes(self), "dtype": self.formats}


@dataclass(frozen=True)
class OfPrecision:
    """What `matmul` runs for row-major f32 operands with a precision."""

    precision: Any
    sizes: tuple[int, int, int]

    @property
    def title(self) -> str:
        return f"matmul(precision={self.precision!r})"

    @property
    def formats(self) -> str:
        return "f32"

    def sized(self, size: int) -> OfPrecision:
        return replace(self, sizes=(size, size, size))

    def predict(self, spec: DeviceSpec, clock_mhz: float | None = None) -> Prediction:
        return predict_precision(self.precision, *self.sizes, spec, cache=CubinCache(), clock_mhz=clock_mhz)[0]

    def as_data(self) -> dict[str, Any]:
        return {"precision": self.precision, **_sizes(self), "dtype": self.formats}


Subject = OfRung | OfPrecision
"""Each has a title, formats and sizes; `sized`, `predict` and `as_data`."""


def chosen_subject(text: str, size: str | None, dtype: str | None) -> Subject:
    """What an argument names, at a size or by default. Raises TilewrightError where nothing is computed."""
    if text in EMULATIONS:
        if dtype not in (None, "f32"):
            raise TilewrightError(f"{text} multiplies operands of f32, not {dtype}.", hint="leave out --dtype.")
        subject: Subject = OfPrecision(text, parse_size(DEFAULT_SIZE if size is None else size))
    else:
        near = get_close_matches(text, EMULATIONS, n=1)
        if near and not is_file(text):
            raise UnknownName("precision", text, EMULATIONS)
        subject = OfRung(*chosen_problem(text, size, default=DEFAULT_SIZE, **formats_of(dtype)))
    m, n, _ = subject.sizes
    if not m * n:
        raise TilewrightError(
            f"A product of {m} x {n} results takes no time: nothing is launched.", hint="use a larger --size."
        )
    return subject


def _sizes(subject: Subject) -> dict[str, int]:
    return dict(zip("mnk", subject.sizes, strict=True))
