"""Figures from suites of shapes, which were recorded beside cuBLAS by benchmarks/against_cublas.py."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from tilewright.bench.records import recorded_folder
from tilewright.device.catalog import device
from tilewright.device.spec import DeviceSpec
from tilewright.errors import UnknownName
from tilewright.ladders.rung import Rung
from tilewright.report.figures import Figure, Size


def suite_figure(rung: Rung, size: Size, dtype: str, spec: DeviceSpec) -> Figure | None:
    """The newest figure of a rung in a suite, taken in short bursts as the ladders are; None if there is none."""
    found = [
        record
        for record in _records()
        if (record["candidate"], tuple(record["shape"]), record["dtype"]) == (rung.name, size, dtype)
        and _is_of(record["device"], spec)
    ]
    if not found:
        return None
    record = max(found, key=lambda one: str(one["date"]))
    burst = record["burst"]
    return Figure(
        kind="recorded",
        tflops=burst["tflops"],
        share_of_cublas=burst["share_of_cublas"],
        size=size,
        device=record["device"],
        date=record["date"],
        command=record["command"],
    )


@cache
def _records() -> tuple[dict[str, Any], ...]:
    """Every record of a suite that ships with the package; other files there hold other things."""
    found: list[dict[str, Any]] = []
    for path in sorted(recorded_folder().glob("*.jsonl")):
        lines = path.read_text(encoding="utf-8").splitlines()
        if lines and "candidate" in lines[0] and "burst" in lines[0]:
            found += [json.loads(line) for line in lines]
    return tuple(found)


def _is_of(name: str, spec: DeviceSpec) -> bool:
    try:
        return device(name) == spec
    except UnknownName:
        return False
