"""What to do next with a rung: where its time goes on a GPU, and which edits of its schedule would help."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from tilewright.device.spec import DeviceSpec
from tilewright.errors import CompileError, LaunchError
from tilewright.ladders.rung import Rung
from tilewright.prediction import Prediction
from tilewright.prediction.advice import Advice, advise
from tilewright.prediction.predict import predict
from tilewright.problem.formats import FormatOptions
from tilewright.report.figures import TIMED_SIZE, Size
from tilewright.runtime.cubin_cache import CubinCache
from tilewright.toolchain import build


@dataclass(frozen=True, slots=True)
class Outlook:
    """A prediction at a size where the GPU is full, and edits that were tried, the best first."""

    size: Size
    predicted: Prediction
    advice: tuple[Advice, ...]

    @property
    def sentences(self) -> list[str]:
        """The binding term, then an edit a line."""
        size, found = " x ".join(map(str, self.size)), self.predicted
        speed = f"Predicted on {found.device} at {size}: {found.tflops:.3g} TFLOP/s"
        first = f"{speed}, bound by {found.binding.name}. {found.relief}"
        if not self.advice:
            return [first, "No edit that was tried promises more."]
        return [first, "Edits that help, each tried in the simulator:", *(f"- {one.sentence}" for one in self.advice)]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "device": self.predicted.device,
            "size": list(self.size),
            "predicted_tflops": self.predicted.tflops,
            "binding": self.predicted.binding.name,
            "relief": self.predicted.relief,
            "edits": [
                {"what": one.what, "counted": one.counted, "predicted_tflops": one.after.tflops} for one in self.advice
            ],
        }


def outlook(rung: Rung, spec: DeviceSpec, formats: FormatOptions) -> Outlook | None:
    """What to do with a rung on a GPU; None where it cannot run there."""
    built, cache = build(rung.gemm(*TIMED_SIZE, **formats), rung.on(spec)), CubinCache()
    try:
        advice = advise(built, spec, cache=cache, now=time.thread_time)  # what is told is not for other work to decide
        return Outlook(TIMED_SIZE, predict(built, spec, cache=cache), advice)
    except (LaunchError, CompileError):
        return None
