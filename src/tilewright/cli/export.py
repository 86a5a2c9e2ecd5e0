"""`tilewright export`: a kernel for users who ship C++."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli import output
from tilewright.cli.arguments import DEFAULT_ARCH, FormatName, chosen_rung, complete_rung, formats_of
from tilewright.cli.sizes import parse_size
from tilewright.device.arch import arch as known_arch
from tilewright.errors import TilewrightError, UnknownName
from tilewright.problem.epilogue import Epilogue
from tilewright.problem.functions import Activation
from tilewright.problem.gemm import Gemm, orders_of
from tilewright.units import counted

EXAMPLES = (
    "tilewright export --size 4096 --dtype bf16 --output gemm",
    "tilewright export worklog/best --output sgemm --arch sm_80 --arch sm_90a",
    "tilewright export hopper/best --order NT --bias n --activation gelu --output linear",
)

DEFAULT_SIZE = "4096"


def export(
    output_folder: Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where the project goes.")],
    rung: Annotated[
        str | None,
        typer.Argument(
            metavar="RUNG|FILE.py[:NAME]",
            help="The kernel. Without one: what suits --size best.",
            autocompletion=complete_rung,
        ),
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(metavar="N|MxNxK", help="The size to be fast at; every other is right too. Of a RUNG: 4096."),
    ] = None,
    dtype: FormatName = None,
    order: Annotated[str, typer.Option(metavar="NN|NT|TN|TT", help="T: the operand is column-major.")] = "NN",
    bias: Annotated[str | None, typer.Option(metavar="n|m", help="Add a number for each column, or row.")] = None,
    residual: Annotated[bool, typer.Option("--residual", help="beta multiplies another matrix than C.")] = False,
    activation: Annotated[str | None, typer.Option(help="relu, gelu, gelu_tanh or silu of the result.")] = None,
    arch: Annotated[
        list[str] | None, typer.Option(metavar="sm_XX", help=f"May be repeated. Default: {DEFAULT_ARCH}.")
    ] = None,
    name: Annotated[str, typer.Option(help="Of the C function. Default: rung, formats and orders.")] = "",
    one_kernel: Annotated[
        bool, typer.Option("--one-kernel", help="Only the kernel that takes every size, not the fast ones.")
    ] = False,
) -> int:
    """Write a kernel as a CUDA C++ project and as machine code, for programs without Python.

    The folder holds a .cu and a .h with a C function, a CMake file, an example, a check against sums in double, and
    cubins with a JSON description. No GPU is needed to write it.
    """
    from tilewright.bench.records import command
    from tilewright.export import bundle, write
    from tilewright.export.bundle import spec_of
    from tilewright.export.chosen import of_rung, of_shape
    from tilewright.planning.on_paper import version_of
    from tilewright.runtime.cubin_cache import CubinCache
    from tilewright.winners.lookup import Lookup

    if rung is None and size is None:
        raise typer.BadParameter("name a RUNG, or give --size MxNxK for the kernel that suits it.")
    archs = arch or [DEFAULT_ARCH]
    epilogue = _epilogue(bias, residual, activation)
    gemm = _gemm(rung, parse_size(DEFAULT_SIZE if size is None else size), dtype, order, epilogue)
    if rung is not None:
        chosen = of_rung(chosen_rung(rung), gemm, archs)
    else:
        spec = spec_of(known_arch(archs[0]))
        if spec is None:
            raise TilewrightError(f"No GPU of {archs[0]} is in the catalogue.", hint="name a rung to export.")
        chosen = of_shape(gemm, spec, Lookup(version_of, say=output.note))
    made = bundle(
        gemm,
        chosen.schedule,
        archs,
        origin=chosen.origin,
        name=name,
        only_general=one_kernel,
        anywhere=chosen.anywhere,
    )
    with output.progress("compiling") as progress:
        written = write(
            made,
            output_folder,
            command=command(),
            passed_over=chosen.passed_over,
            cache=CubinCache(),
            progress=progress,
        )
    console = output.out()
    console.print(
        f"{made.name}: {chosen.origin}, {counted(len(made.kernels), 'kernel')} for {', '.join(map(str, made.archs))}",
        soft_wrap=True,
    )
    for file in written.files:
        console.print(f"  {written.folder / file}", soft_wrap=True)
    if chosen.passed_over:
        output.note(f"matmul would take several launches here: {chosen.passed_over}. An export is one.")
    return 0


def _gemm(rung: str | None, shape: tuple[int, int, int], dtype: str | None, order: str, epilogue: Epilogue) -> Gemm:
    if 0 in shape[:2]:
        raise TilewrightError(f"A result of {shape[0]} x {shape[1]} needs no kernel.", hint="name a larger --size.")
    a, b = orders_of(order)
    options = {**formats_of(dtype), "a": a, "b": b, "epilogue": epilogue}
    return Gemm(*shape, **options) if rung is None else chosen_rung(rung).gemm(*shape, **options)


def _epilogue(bias: str | None, residual: bool, activation: str | None) -> Epilogue:
    known = {function.value: function for function in Activation}
    if activation is not None and activation not in known:
        raise UnknownName("activation", activation, known)
    if bias not in (None, "m", "n"):
        raise UnknownName("bias", str(bias), ("n", "m"))
    return Epilogue(bias, residual, None if activation is None else known[activation])  # type: ignore[arg-type]
