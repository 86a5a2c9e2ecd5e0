"""`tilewright bench`: matmul against cuBLAS over a suite of shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli.output import note, out
from tilewright.errors import TilewrightError

EXAMPLES = ("tilewright bench --dtype bf16", "tilewright bench --shape 4095x4097x4093 --orders NN,NT --compiled")


def bench(
    shape: Annotated[list[str] | None, typer.Option(help="MxNxK; may be repeated. Default: the suite.")] = None,
    dtype: Annotated[str, typer.Option(help="f32, tf32, f16 or bf16; several with commas.")] = "f32,bf16,f16",
    orders: Annotated[str, typer.Option(help="NN, NT, TN: which operands are transposed views.")] = "NN",
    compiled: Annotated[bool, typer.Option(help="Also torch.compile with max-autotune.")] = False,
    rounds: Annotated[int, typer.Option(help="Replays of each graph.")] = 9,
    record: Annotated[Path | None, typer.Option(help="Append the records to this file of JSON lines.")] = None,
) -> None:
    """Time tilewright.matmul and torch.mm in turn, each result checked first."""
    from tilewright.bench import records
    from tilewright.frontend.comparison import SUITE, compare

    shapes = [_shape(text) for text in shape] if shape else list(SUITE)
    console = out()
    shares: list[float] = []
    for found in compare(shapes, dtype.split(","), orders.split(","), compiled=compiled, rounds=rounds):
        one = found.record
        if record is not None:
            records.write(record, [one])
        assert one.share_of_cublas is not None
        shares.append(one.share_of_cublas)
        other = one.extra.get("compiled_us")
        beside = f"  compiled {one.median_us and other / one.median_us:.3f}" if other else ""
        console.print(
            f"{one.dtype:5} {one.orders} {f'{one.m}x{one.n}x{one.k}':18} {one.median_us:10.1f} us "
            f"{one.tflops:7.1f} TFLOP/s  {one.share_of_cublas:.3f} of cuBLAS{beside}  {one.extra['plan']}",
            soft_wrap=True,
        )
    product = 1.0
    for share in shares:
        product *= share
    console.print(f"geometric mean of the share of cuBLAS: {product ** (1 / len(shares)):.3f}, least {min(shares):.3f}")
    if record is not None:
        note(f"{len(shares)} records appended to {record}.")


def _shape(text: str) -> tuple[int, int, int]:
    parts = text.lower().split("x")
    if len(parts) != 3 or not all(part.isdigit() for part in parts):
        raise TilewrightError(f"{text!r} is not a shape.", hint="write MxNxK, such as 4096x4096x4096.")
    m, n, k = (int(part) for part in parts)
    return m, n, k
