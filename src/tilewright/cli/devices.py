"""`tilewright devices`: the catalogue, and the GPU at hand."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from tilewright.cli import output
from tilewright.cli.arguments import AsJson
from tilewright.device.catalog import DEVICES, device
from tilewright.device.spec import DeviceSpec
from tilewright.runtime.driver import gpu_count, gpu_problem, open_gpu
from tilewright.runtime.probe import probe
from tilewright.units import GIB, KIB, MIB, format_bytes

EXAMPLES = ("tilewright devices", "tilewright devices H200", "tilewright devices 'RTX 3090' --json")

_GB = 10**9


def devices(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="All that is known of one GPU.")] = None,
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
    console.print(_table(list(DEVICES)))
    console.print()
    if here:
        output.paragraph(console, "At hand, as the driver tells:", style="bold")
        console.print(_table(here))
    else:
        output.paragraph(console, f"At hand: none. {gpu_problem() or ''}")
    return 0


def _as_dict(spec: DeviceSpec) -> dict[str, Any]:
    return {**asdict(spec), "peak_fp32_tflops": spec.peak_fp32_tflops}


def _table(specs: list[DeviceSpec]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="dim")
    table.add_column("\nGPU", no_wrap=True)
    titles = ("\narch", "\nSMs", "boost\nMHz", "fp32\nTFLOP/s", "f16 tensor\nTFLOP/s", "shared KiB\na block", "L2\nMiB")
    for title in (*titles, "DRAM\nGB", "\nGB/s"):
        table.add_column(title, justify="right", no_wrap=True)
    for spec in specs:
        dram_gb = spec.dram_bytes / (_GB if spec.dram_bytes % GIB else GIB)
        table.add_row(
            spec.name,
            spec.arch,
            str(spec.sm_count),
            str(spec.boost_clock_mhz),
            f"{spec.peak_fp32_tflops:.1f}",
            f"{spec.peak_tensor_tflops('f16'):.0f}",
            f"{spec.max_shared_bytes_per_block / KIB:.0f}",
            f"{spec.l2_bytes / MIB:.0f}",
            f"{dram_gb:.0f}",
            f"{spec.dram_gb_per_s:.0f}",
        )
    return table


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
