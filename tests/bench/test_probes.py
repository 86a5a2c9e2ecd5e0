"""The micro-kernel probe: it still compiles to the instructions that it is about, and reads what it recorded alike."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PROBE = BENCHMARKS / "probes" / "shared_memory_rules.py"


def test_the_probe_checks_itself_without_a_gpu() -> None:
    done = subprocess.run([sys.executable, PROBE, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("machine code as intended\n")


def test_a_measurement_without_a_gpu_still_writes_what_it_has(tmp_path: Path) -> None:
    """Every part of the probe is reached, and a witness that cannot be called is noted, not fatal."""
    command = [sys.executable, PROBE, "--measure", "--budget-s", "1", "--out", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PATH": ""})
    assert done.returncode == 0, done.stdout + done.stderr
    written = json.loads((tmp_path / "shared_memory_rules.json").read_text(encoding="utf-8"))
    assert written["records"] and all(row["wavefronts"] is None for row in written["records"])
    assert {"query": "ncu", "failed": "not installed"}.items() <= written["journal"][-1].items()
