"""The SM clock and the power of a GPU while something runs, through NVML where its Python binding is installed."""

from __future__ import annotations

import importlib
import statistics
import threading
from types import TracebackType
from typing import Any, Self

from tilewright.bench import records
from tilewright.runtime.driver import Gpu
from tilewright.runtime.nvrtc import compiler_version

PERIOD_S = 0.02


class ClockLog:
    """Samples clock and power in the background for as long as it is entered; empty without NVML.

    gpu_uuid: as `Gpu.uuid`. Numbers of GPUs are not those of NVML where CUDA_VISIBLE_DEVICES hides some.
    """

    def __init__(self, gpu_uuid: str) -> None:
        self._uuid = gpu_uuid
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.clocks_mhz: list[float] = []
        self.powers_w: list[float] = []

    @property
    def median_clock_mhz(self) -> float | None:
        return statistics.median(self.clocks_mhz) if self.clocks_mhz else None

    @property
    def median_power_w(self) -> float | None:
        return statistics.median(self.powers_w) if self.powers_w else None

    def __enter__(self) -> Self:
        try:
            nvml: Any = importlib.import_module("pynvml")
            nvml.nvmlInit()
            handle = nvml.nvmlDeviceGetHandleByUUID(self._uuid)
        except Exception:
            # Clock and power explain a figure; without them it is still a figure.
            return self
        self._thread = threading.Thread(target=self._sample, args=(nvml, handle), daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _sample(self, nvml: Any, handle: Any) -> None:
        while not self._stop.wait(PERIOD_S):
            self.clocks_mhz.append(float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)))
            self.powers_w.append(_power_w(nvml, handle))


def _power_w(nvml: Any, handle: Any) -> float:
    """Watts at this moment, where the driver tells them: what it calls usage is, since Ampere, the mean of a second."""
    (told,) = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_POWER_INSTANT])
    if told.nvmlReturn == nvml.NVML_SUCCESS:
        return float(told.value.uiVal) / 1e3
    return float(nvml.nvmlDeviceGetPowerUsage(handle)) / 1e3


def origin_of(gpu: Gpu, peer: str, log: ClockLog | None = None) -> records.Origin:
    """Where and how this process measures, now. peer: whom it is measured beside. log: of the run, if kept."""
    return records.Origin(
        device=gpu.name,
        driver=gpu.driver_version,
        compiler=compiler_version(),
        peer=peer,
        **records.this_run(),
        clock_mhz=None if log is None else log.median_clock_mhz,
        power_w=None if log is None else log.median_power_w,
    )
