"""`tilewright devices`: the catalogue, and the GPU at hand."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Annotated, Any

import typer
from rich.text import Text

from tilewright.cli import output
from tilewright.cli.output import AsJson
from tilewright.cli.tables import Column, fitting_table
from tilewright.device.catalog import DEVICES, device
from tilewright.device.spec import DeviceSpec
from tilewright.runtime.driver import gpu_count, gpu_problem, open_gpu
from tilewright.runtime.probe import probe
from tilewright.units import GIB, KIB, MIB, format_bytes

EXAMPLES = ("tilewright devices", "tilewright devices H200", "tilewright devices 'RTX 3090' --json")

_GB = 10**9


def devices(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="All that is known of one GPU.")] = None,
    as_json: AsJson = False,
) -> int:
    """List the GPUs we know, and the one at hand."""
    if name is not None:
        spec = device(name)
        output.print_json(_as_dict(spec)) if as_json else _print_one(spec)
        return 0
    here = [probe(open_gpu(index)) for index in range(gpu_count())]
    if as_json:
        at_hand = [_as_dict(spec) for spec in here]
        output.print_json({"at_hand": at_hand, "problem": gpu_problem(), "known": [_as_dict(s) for s in DEVICES]})
        return 0
    console = output.out()
    console.print(fitting_table(console, COLUMNS, DEVICES))
    console.print()
    if here:
        output.paragraph(console, "At hand, as the driver tells:", style="bold")
        console.print(fitting_table(console, COLUMNS, here))
    else:
        output.paragraph(console, f"At hand: none. {gpu_problem() or ''}")
    return 0


def _as_dict(spec: DeviceSpec) -> dict[str, Any]:
    return {**asdict(spec), "peak_fp32_tflops": spec.peak_fp32_tflops}


def _dram(spec: DeviceSpec) -> str:
    """Gigabytes as the data sheet has them: of 1024^3 bytes where the size is a whole number of those."""
    return f"{spec.dram_bytes / (_GB if spec.dram_bytes % GIB else GIB):.0f}"


COLUMNS: tuple[Column[DeviceSpec], ...] = (
    Column("\nGPU", lambda spec: spec.name, 99, justify_left=True),
    Column("\narch", lambda spec: f"  {spec.arch}", 90),
    Column("\n  SMs", lambda spec: str(spec.sm_count), 70),
    Column("  boost\nMHz", lambda spec: str(spec.boost_clock_mhz), 40),
    Column("  fp32\nTFLOP/s", lambda spec: f"  {spec.peak_fp32_tflops:.1f}", 80),
    Column("  f16 tensor\nTFLOP/s", lambda spec: f"{spec.peak_tensor_tflops('f16'):.0f}", 75),
    Column("  shared KiB\na block", lambda spec: f"{spec.max_shared_bytes_per_block / KIB:.0f}", 50),
    Column("  L2\nMiB", lambda spec: f"  {spec.l2_bytes / MIB:.0f}", 45),
    Column("  DRAM\nGB", _dram, 30),
    Column("\n  GB/s", lambda spec: f"  {spec.dram_gb_per_s:.0f}", 60),
)


def _print_one(spec: DeviceSpec) -> None:
    """Every fact, named as in `DeviceSpec`."""
    console = output.out()
    output.paragraph(console, spec.name, style="bold")
    for field in fields(spec):
        value = getattr(spec, field.name)
        if field.name in ("name", "tensor"):
            continue
        is_size = isinstance(value, int) and "_bytes" in field.name and value >= KIB
        shown = f"{value}  ({format_bytes(value)})" if is_size else str(value)
        console.print(Text(f"  {field.name:<34}").append(shown), soft_wrap=True)
    for rate in spec.tensor.supported:
        console.print(Text(f"  {f'tensor {rate}':<34}{getattr(spec.tensor, rate)} a clock and SM"), soft_wrap=True)
    console.print(Text(f"  {'peak_fp32_tflops':<34}{spec.peak_fp32_tflops:.1f}"), soft_wrap=True)
