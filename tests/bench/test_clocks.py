"""Clock and power beside a measurement, from a stand-in of NVML's binding."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace

import pytest

from tilewright.bench import clocks


@pytest.mark.parametrize(("answer", "watts"), [(0, 650.0), (3, 420.0)])
def test_power_is_that_of_the_moment_where_the_driver_tells_it(
    monkeypatch: pytest.MonkeyPatch, answer: int, watts: float
) -> None:
    told = SimpleNamespace(nvmlReturn=answer, value=SimpleNamespace(uiVal=650_000))
    nvml = SimpleNamespace(
        NVML_SUCCESS=0,
        NVML_FI_DEV_POWER_INSTANT=186,
        NVML_CLOCK_SM=1,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetFieldValues=lambda handle, fields: [told],
        nvmlDeviceGetPowerUsage=lambda handle: 420_000,
        nvmlDeviceGetClockInfo=lambda handle, which: 1400,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(clocks, "PERIOD_S", 0.001)
    with clocks.ClockLog("GPU-0") as log:
        while not log.powers_w:
            time.sleep(0.001)
    assert (log.median_power_w, log.median_clock_mhz) == (watts, 1400)
