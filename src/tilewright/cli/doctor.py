"""`tilewright doctor`: what is installed, what is missing, and the command that mends it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Literal

from rich.text import Text

from tilewright import __version__, extras
from tilewright.cli import output
from tilewright.cli.arguments import DEFAULT_ARCH, AsJson
from tilewright.errors import MissingExtra, TilewrightError
from tilewright.ladders import find_rung
from tilewright.problem.reference import make_operands
from tilewright.problem.tolerance import check
from tilewright.runtime.cubin_cache import FOLDER_VARIABLE, cache_folder
from tilewright.runtime.driver import gpu_count, gpu_problem, open_gpu
from tilewright.runtime.nvrtc import compiler_version
from tilewright.runtime.sass import disassemble
from tilewright.toolchain import build, run_on_simulator, verify_on_gpu

EXAMPLES = ("tilewright doctor", "tilewright doctor --json | jq '.[] | select(.state != \"ok\")'")

State = Literal["ok", "missing", "broken"]


OPTIONAL_PACKAGES = (
    ("torch", "torch", "torch"),
    ("cupy-cuda13x", "cupy", "cupy"),
    ("jax", "jax", "jax"),
    ("plotly", "plotly", "report"),
    ("pygments", "pygments", "report"),
    ("optuna", "optuna", "tune"),
    ("psycopg", "psycopg", "tune-postgresql"),
    ("nvidia-ml-py", "pynvml", "clocks"),
)
"""Distribution, module, and the extra that installs it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. needed: without it tilewright does not work, GPU or not. mend: a command, or a sentence."""

    what: str
    state: State
    told: str
    needed: bool = True
    mend: str = ""


def doctor(as_json: AsJson = False) -> int:
    """Check what is installed, and say how to mend what is missing.

    Succeeds if schedules and the simulator work, and the compiler where it is installed.
    """
    found = []
    for finding in _examine():
        found.append(finding)
        if not as_json:
            _print(finding)
    is_well = all(finding.state == "ok" for finding in found if finding.needed)
    if as_json:
        output.print_json([asdict(finding) for finding in found])
    else:
        _conclude(found, is_well)
    return 0 if is_well else 1


def _examine() -> Iterator[Finding]:
    yield Finding("tilewright", "ok", f"{__version__}, Python {platform.python_version()}, {sys.platform}")
    for package in ("numpy", "rich", "typer", "platformdirs", "jinja2", "filelock"):
        yield _package(package, needed=True, mend="python -m pip install --upgrade tilewright")
    yield _tried("test simulation", _test_simulation, "report this: the simulator needs nothing but NumPy")
    yield _cache_folder()
    yield from _compiler()
    yield _disassembler()
    yield _gpu()
    for package, module, extra in OPTIONAL_PACKAGES:
        yield _optional(package, module, extra)


def _compiler() -> Iterator[Finding]:
    """The packages that compile, and whether they do. Without them all that needs no machine code works."""
    for package in ("nvidia-cuda-nvrtc", "cuda-bindings", "cuda-core", "cuda-pathfinder"):
        yield _package(package, needed=False, mend=_install("cuda"))
    if not extras.available("cuda"):
        return
    yield _tried("NVRTC", compiler_version, _install("cuda"))
    yield _tried("test compile", _test_compile, "see the line of NVRTC above")


def _install(extra: str) -> str:
    return f"python -m pip install 'tilewright[{extra}]'"


def _optional(package: str, module: str, extra: str) -> Finding:
    """An optional package: whether it is installed, and whether it imports."""
    found = _package(package, needed=False, mend=_install(extra))
    if found.state != "ok" or module in sys.modules:
        return found
    done = subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return found
    last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    told = f"{found.told} is installed and does not import: {last[:200]}"
    return Finding(package, "broken", told, needed=False, mend=f"python -m pip install --force-reinstall {package}")


def _package(name: str, *, needed: bool, mend: str) -> Finding:
    try:
        return Finding(name, "ok", importlib.metadata.version(name), needed)
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, "missing", "not installed", needed, mend)


def _tried(what: str, attempt: Callable[[], str], mend: str) -> Finding:
    """Whether something works. Whatever it raises is told, since this command exists for broken installations."""
    try:
        return Finding(what, "ok", attempt())
    except TilewrightError as error:
        return Finding(what, "broken", error.headline, mend=error.hint or mend)
    except Exception as error:
        return Finding(what, "broken", f"{type(error).__name__}: {error}", mend=mend)


def _test_compile() -> str:
    rung = find_rung("worklog/1")
    began = time.perf_counter()
    cubin = build(rung.gemm(32, 32, 32), rung).compile(DEFAULT_ARCH)
    seconds = time.perf_counter() - began
    return f"worklog/1 for {DEFAULT_ARCH}: {len(cubin.image)} bytes in {seconds:.2f} s"


def _test_simulation() -> str:
    rung = find_rung("worklog/3")
    built = build(rung.gemm(33, 31, 17), rung)
    operands = make_operands(built.gemm)
    computed, _ = run_on_simulator(built, operands)
    verdict = check(operands, computed)
    if not verdict.ok:
        raise TilewrightError(verdict.message)
    return f"worklog/3 at 33 x 31 x 17: {verdict.message}"


def _cache_folder() -> Finding:
    """Whether compiled kernels can be kept. Without, everything works and compiles anew."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f"doctor.{os.getpid()}.tmp"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        told = f"{folder} cannot be written ({error.strerror}); kernels are compiled anew in every process"
        return Finding(
            "kernel cache", "broken", told, needed=False, mend=f"export {FOLDER_VARIABLE}=/a/writable/folder"
        )
    return Finding("kernel cache", "ok", str(folder), needed=False)


def _disassembler() -> Finding:
    rung = find_rung("worklog/1")
    try:
        lines = disassemble(build(rung.gemm(32, 32, 32), rung).compile(DEFAULT_ARCH)).count("\n")
    except MissingExtra as error:
        return Finding("nvdisasm", "missing", "not installed; needed for `show --sass`", needed=False, mend=error.hint)
    except (TilewrightError, OSError) as error:
        return Finding("nvdisasm", "broken", str(error).partition("\n")[0], needed=False)
    return Finding("nvdisasm", "ok", f"{lines} lines of SASS", needed=False)


def _gpu() -> Finding:
    problem = gpu_problem()
    if problem is not None:
        return Finding("GPU", "missing", problem, needed=False)
    try:
        gpu = open_gpu()
        rung = find_rung("worklog/3")
        built = build(rung.gemm(33, 31, 17), rung)
        verdict = verify_on_gpu(built, gpu, make_operands(built.gemm))
        told = f"{gpu_count()} x {gpu.name}, driver {gpu.driver_version}; worklog/3: {verdict.message}"
        return Finding("GPU", "ok" if verdict.ok else "broken", told, needed=False)
    except TilewrightError as error:
        return Finding("GPU", "broken", error.headline, needed=False, mend=error.hint)


def _print(finding: Finding) -> None:
    console = output.out()
    word = "ok" if finding.state == "ok" else finding.state if finding.needed else f"{finding.state}, optional"
    style = "green" if finding.state == "ok" else "bold red" if finding.needed else "yellow"
    output.paragraph(console, f"{finding.what:<18}{word:<19}{finding.told}", style=style, hanging=37)
    if finding.mend:
        console.print(Text(f"{'':<37}{finding.mend}", "bold"), soft_wrap=True)


def _conclude(found: list[Finding], is_well: bool) -> None:
    console = output.out()
    console.print()
    on_gpu = any(finding.what == "GPU" and finding.state == "ok" for finding in found)
    if not is_well:
        broken = ", ".join(finding.what for finding in found if finding.needed and finding.state != "ok")
        output.paragraph(console, f"Not ready: {broken}. The commands above mend it.", style="bold red")
    elif any(finding.what == "nvidia-cuda-nvrtc" and finding.state != "ok" for finding in found):
        output.paragraph(
            console, "Ready to schedule, simulate and report; the lines on nvidia-cuda-nvrtc say how to compile."
        )
    elif on_gpu:
        output.paragraph(console, "Ready, GPU included.", style="bold green")
    else:
        output.paragraph(console, "Ready: everything that needs no GPU works.", style="bold green")
