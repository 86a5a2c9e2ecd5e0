"""`tilewright run`: a user's own matrices.

Matrices in .npy files: read with care, written whole or not at all.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from enum import Enum
from math import prod
from pathlib import Path
from typing import Annotated, BinaryIO

import numpy as np
import typer
from numpy.lib import format as npy

from tilewright.cli import output
from tilewright.cli.arguments import Alpha, Beta, FormatName, RungName, chosen_rung
from tilewright.cli.page_files import check_writable
from tilewright.dtypes import Array
from tilewright.errors import ProblemError, ScheduleError, TilewrightError
from tilewright.files import check_ordinary, write_whole
from tilewright.ladders.rung import Rung
from tilewright.problem.formats import format_options
from tilewright.problem.reference import Operands
from tilewright.problem.tolerance import check as check_result
from tilewright.runtime.cubin_cache import CubinCache
from tilewright.runtime.driver import gpu_problem, open_gpu
from tilewright.runtime.probe import probe
from tilewright.toolchain import Build, build, operands_from, run_on_gpu, run_on_simulator
from tilewright.units import format_seconds


def load_matrix(name: str, path: Path) -> Array:
    """The array in a .npy file, in this machine's byte order. Raises ProblemError for anything else.

    name: A, B or C, for messages. Nothing that needs pickle is read: it could run code.
    """
    check_ordinary(path)
    try:
        with path.open("rb") as file:
            _check_whole(name, path, file)
            file.seek(0)
            array: Array = npy.read_array(file, allow_pickle=False)
    except FileNotFoundError:
        raise ProblemError(f"There is no file {str(path)!r} to read {name} from.") from None
    except (ValueError, EOFError) as error:
        raise ProblemError(
            f"{str(path)!r} is not a .npy file: {str(error).partition(chr(10))[0]}.",
            hint=f"numpy.save({str(path)!r}, {name}) writes one.",
        ) from None
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _check_whole(name: str, path: Path, file: BinaryIO) -> None:
    """Refuse Python objects, and a file shorter than its header says, before any memory is taken for it."""
    version = npy.read_magic(file)
    if version == (1, 0):
        shape, _, dtype = npy.read_array_header_1_0(file)
    else:
        shape, _, dtype = npy.read_array_header_2_0(file)
    if dtype.hasobject:
        raise ProblemError(
            f"{name} in {str(path)!r} holds Python objects, not numbers.",
            note="reading them could run code, so it is refused.",
            hint=f"numpy.save({str(path)!r}, numpy.asarray({name}, dtype='float32')).",
        )
    expected = prod(shape) * dtype.itemsize
    there = os.fstat(file.fileno()).st_size - file.tell()
    if there < expected:
        size = " x ".join(str(extent) for extent in shape)
        raise ProblemError(
            f"{str(path)!r} is cut short: {size} {dtype.name} take {expected} bytes, and {there} are there.",
            hint="write or copy it again.",
        )


def save_matrix(path: Path, matrix: Array) -> None:
    """The matrix as a .npy file, whole or not at all. Raises TilewrightError where it cannot be written."""
    write_whole(path, lambda file: npy.write_array(file, matrix, allow_pickle=False))


EXAMPLES = (
    "tilewright run worklog/6 A.npy B.npy -o C.npy",
    "tilewright run worklog/6 A.npy B.npy -o C.npy --alpha 2 --beta 1 --c C0.npy",
    "tilewright run ampere/6 A.npy B.npy -o C.npy --dtype tf32",
    "tilewright run worklog/vectorised A.npy B.npy -o C.npy --on simulator --check",
)


class Place(Enum):
    """Where to compute."""

    GPU = "gpu"
    SIMULATOR = "simulator"


def run(
    rung: RungName,
    a: Annotated[Path, typer.Argument(metavar="A.npy", help="float32 or float16, M x K.")],
    b: Annotated[Path, typer.Argument(metavar="B.npy", help="The same dtype, K x N.")],
    out: Annotated[Path, typer.Option("--output", "-o", metavar="C.npy", help="Where the result goes.")],
    alpha: Alpha = 1.0,
    beta: Beta = 0.0,
    c: Annotated[Path | None, typer.Option("--c", metavar="C0.npy", help="The C that beta multiplies.")] = None,
    dtype: FormatName = None,
    on: Annotated[Place | None, typer.Option("--on", help="Default: the GPU if there is one.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Hold every element against float64 before writing, and say how near it is.")
    ] = False,
) -> int:
    """Multiply your own matrices with a rung: C = alpha * A @ B + beta * C.

    The result is written whole or not at all.
    """
    on_gpu = on is Place.GPU or (on is None and gpu_problem() is None)
    found = chosen_rung(rung)
    if beta != 0 and c is None:
        raise ProblemError(f"beta is {beta:g}, and there is no C for it to multiply.", hint="give one: --c C0.npy.")
    check_writable(out)
    for name, path in (("A", a), ("B", b), ("C", c)):
        if path is not None and out.exists() and path.exists() and out.samefile(path):
            raise TilewrightError(
                f"{str(out)!r} holds {name}, and the result would take its place.", hint="name another file: -o C.npy."
            )
    start = None if c is None else load_matrix("C", c)
    matrices = load_matrix("A", a), load_matrix("B", b), start
    if on_gpu:
        found = found.on(probe(open_gpu()))
    built, operands = _problem(found, *matrices, alpha, beta, dtype)
    began = time.perf_counter()
    result = _on_gpu(built, operands) if on_gpu else _on_simulator(built, operands)
    seconds = time.perf_counter() - began
    verdict = None
    if check:
        with output.progress("checking against float64"):
            verdict = check_result(operands, result)
        if not verdict.ok:
            raise TilewrightError(f"The result is wrong, and was not written: {verdict.message}.")
    save_matrix(out, result.astype(operands.gemm.out.numpy, copy=False))
    m, n = result.shape
    where = "the GPU" if on_gpu else "the simulator"
    print(f"{out}: {m} x {n} {result.dtype}, by {found.name} on {where} in {format_seconds(seconds)}")
    if verdict is not None:
        print(f"Checked against float64, {result.size:,} elements: {verdict.message}.")
    return 0


def _problem(
    rung: Rung, a: Array, b: Array, c: Array | None, alpha: float, beta: float, dtype: str | None
) -> tuple[Build, Operands]:
    """The matrices as they lie, or copied to rows where the rung's schedule is not for columns."""
    operands = _with_formats(operands_from(a, b, c, alpha=alpha, beta=beta), rung, dtype)
    built = build(operands.gemm, rung)
    try:
        built.schedule.apply(operands.gemm)
    except ScheduleError:
        rows = operands_from(np.ascontiguousarray(a), np.ascontiguousarray(b), c, alpha=alpha, beta=beta)
        operands = _with_formats(rows, rung, dtype)
        built = build(operands.gemm, rung)
    return built, operands


def _with_formats(operands: Operands, rung: Rung, dtype: str | None) -> Operands:
    """What the matrices are rounded to and summed in: as asked for, or as the rung does for matrices of this kind."""
    gemm = operands.gemm
    if dtype is None:
        own = {name: rung.problem[name] for name in ("accumulate", "product") if name in rung.problem}
        asked = own if rung.problem.get("dtype") is gemm.dtype else {}
    else:
        asked = dict(format_options(dtype))
        if asked["dtype"] is not gemm.dtype:
            raise ProblemError(
                f"--dtype {dtype} is for matrices of {asked['dtype']}, and these are {gemm.dtype}.",
                hint=f"convert them, or leave out --dtype {dtype}.",
            )
    return replace(operands, gemm=replace(gemm, **asked))


def _on_gpu(built: Build, operands: Operands) -> Array:
    return run_on_gpu(built, open_gpu(), operands, cache=CubinCache())


def _on_simulator(built: Build, operands: Operands) -> Array:
    with output.progress("simulating") as step:
        result, _ = run_on_simulator(built, operands, listeners=(), progress=lambda done, of: step("", done, of))
    return np.ascontiguousarray(result)
