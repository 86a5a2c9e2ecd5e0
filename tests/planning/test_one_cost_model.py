"""Time is estimated in `planning.cost`, by the performance model below it, and nowhere else that chooses kernels."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import tilewright
from tilewright.device.spec import DeviceSpec

SOURCE = Path(tilewright.__file__).parent
CHOOSING = ("kernels", "planning", "winners", "tuner", "frontend", "integrations", "suite")

RATES = {one.name for one in fields(DeviceSpec) if one.name.endswith(("_mhz", "_per_s", "_clk", "_per_sm_clk"))} | {
    "dram_gb_per_s",
    "l2_bytes_per_clk_per_sm",
    "shared_bytes_per_clk_per_sm",
    "peak_fp32_tflops",
    "peak_tensor_tflops",
}
"""Of a GPU, without which no work becomes a time."""


def rates_read(file: Path) -> Iterator[str]:
    """What of `RATES` a module reads."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and node.attr in RATES:
            yield node.attr


def test_no_rate_of_a_gpu_is_read_where_kernels_are_chosen_but_by_the_cost_model() -> None:
    elsewhere = [
        f"{file.relative_to(SOURCE)}: {rate}"
        for package in CHOOSING
        for file in sorted((SOURCE / package).rglob("*.py"))
        if (SOURCE / "planning" / "cost") not in file.parents
        for rate in rates_read(file)
    ]
    assert elsewhere == []


def test_the_cost_model_reads_them() -> None:
    assert {rate for file in (SOURCE / "planning" / "cost").glob("*.py") for rate in rates_read(file)} >= {
        "dram_gb_per_s",
        "tensor_clock_mhz",
        "boost_clock_mhz",
        "peak_fp32_tflops",
    }
