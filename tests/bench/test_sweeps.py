"""Sweeps that are packed hold what a fit reads of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import sweeps
from named_problems import problem_named

from tilewright.errors import TilewrightError
from tilewright.winners.plan_config import PlanConfig

KEPT = Path(__file__).parents[2] / "benchmarks" / "sweeps"

PLANS: list[dict[str, Any]] = [{"config": {"kind": "mma", "stages": stages}} for stages in (4, 3)]


def written(path: Path, device: str) -> Path:
    rows = [
        {"origin": {"device": device, "command": "python choice_sweep.py"}},
        {"p": "8x64x16 bf16 NT", "cublas": 3.5, "choice": 2.5, "plans": [[PLANS[0], 2.0, 2.5], [PLANS[1], 2.1, 2.25]]},
        {"p": "8x64x24 bf16 NT", "fault": "a plan"},
    ]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def test_a_packed_sweep_tells_each_time(tmp_path: Path) -> None:
    plain, other = written(tmp_path / "one.jsonl", "NVIDIA H200"), tmp_path / "one.jsonl.xz"
    other.write_bytes(sweeps.packed([plain]))
    origin, row = sweeps.rows_of_sweep(other)
    assert origin["origin"]["device"] == "NVIDIA H200"
    assert {json.dumps(plan): us for plan, _, us in row["plans"]} == {
        json.dumps(PLANS[0]): 2.5,
        json.dumps(PLANS[1]): 2.25,
    }
    assert (row["p"], row["cublas"], row["choice"]) == ("8x64x16 bf16 NT", 3.5, 2.5)
    again = tmp_path / "again.jsonl.xz"
    again.write_bytes(sweeps.packed([other]))
    assert list(sweeps.rows_of_sweep(again)) == [origin, row]


def test_packing_again_keeps_where_each_sweep_was_measured(tmp_path: Path) -> None:
    packed = tmp_path / "packed.jsonl.xz"
    packed.write_bytes(sweeps.packed([written(tmp_path / f"{number}.jsonl", "H200") for number in range(2)]))
    again = tmp_path / "again.jsonl.xz"
    again.write_bytes(sweeps.packed([packed, written(tmp_path / "more.jsonl", "H200")]))
    origins = [row for row in sweeps.rows_of_sweep(again) if "origin" in row]
    assert len(origins) == 3


def test_sweeps_of_two_devices_are_not_packed_together(tmp_path: Path) -> None:
    files = [written(tmp_path / f"{name}.jsonl", name) for name in ("H100", "H200")]
    with pytest.raises(TilewrightError, match="These sweeps are of 2 devices: H100, H200"):
        sweeps.packed(files)


def test_those_that_are_kept_can_be_read() -> None:
    files = sorted(KEPT.iterdir())
    assert files
    for path in files:
        found = [*sweeps.rows_of_sweep(path)]
        (origin, *_), rows = found, [row for row in found if "origin" not in row]
        assert origin["origin"]["device"].startswith("NVIDIA") and len(rows) > 100
        for row in rows[::97]:
            assert problem_named(row["p"]) and row["cublas"] > 0
            assert all(us > 0 and PlanConfig.from_data(plan) for plan, _, us in row["plans"])
