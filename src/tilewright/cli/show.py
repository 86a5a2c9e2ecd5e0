"""`tilewright show`: one rung in any of its forms."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from tilewright.cli import output
from tilewright.cli.arguments import DEFAULT_ARCH, AsJson, FormatName, OwnSize, RungName, chosen_problem, formats_of
from tilewright.device.arch import arch as known_arch
from tilewright.errors import TilewrightError, UnknownName
from tilewright.ir.kernel import SAFE, Variant
from tilewright.ir.text import kernel_text
from tilewright.runtime.cubin_cache import CubinCache
from tilewright.runtime.machine_code import MachineCode
from tilewright.runtime.nvrtc import compile_ptx
from tilewright.runtime.register_banks import main_loop
from tilewright.runtime.sass import disassemble
from tilewright.schedule.codec import to_data
from tilewright.toolchain import Build, build, check_compilable

EXAMPLES = (
    "tilewright show worklog/6",
    "tilewright show worklog/6 --step 12",
    "tilewright show worklog/6 --cuda --variant edges > rung6.cu",
    "tilewright show worklog/6 --cuda --step 11",
    "tilewright show worklog/6 --sass --arch sm_80",
    "tilewright show kernels.py:tiled --cuda",
)


class Form(Enum):
    """What a rung is shown as. The value is the word of the option."""

    SCHEDULE = "schedule"
    PROGRAM = "program"
    KERNEL = "kernel"
    CUDA = "cuda"
    PTX = "ptx"
    SASS = "sass"


_LANGUAGE: dict[Form, output.Language] = {
    Form.SCHEDULE: "python",
    Form.PROGRAM: "python",
    Form.KERNEL: "python",
    Form.CUDA: "cuda",
    Form.PTX: "ptx",
    Form.SASS: "text",
}

_VARIANTS = {"exact": Variant(exact=frozenset("mnk")), "edges": Variant(), "safe": SAFE}  # type: ignore[arg-type]


def show(
    rung: RungName,
    step: Annotated[int | None, typer.Option(metavar="N", help="After the first N steps; 0 is before any.")] = None,
    schedule: Annotated[bool, typer.Option("--schedule", help="The schedule (the default).")] = False,
    program: Annotated[bool, typer.Option("--program", help="The loop nest that the schedule makes.")] = False,
    kernel: Annotated[
        bool, typer.Option("--kernel", help="The lowered program of one thread, with the line numbers of findings.")
    ] = False,
    cuda: Annotated[bool, typer.Option("--cuda", help="CUDA C++.")] = False,
    ptx: Annotated[bool, typer.Option("--ptx", help="PTX, by NVRTC.")] = False,
    sass: Annotated[bool, typer.Option("--sass", help="Machine code, by nvdisasm.")] = False,
    size: OwnSize = None,
    dtype: FormatName = None,
    arch: Annotated[str, typer.Option(metavar="sm_XX", help="The architecture of PTX and SASS.")] = DEFAULT_ARCH,
    variant: Annotated[
        str | None,
        typer.Option(metavar="exact|edges|safe", help="What the kernel may assume. Default: what the size allows."),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Print a rung: its schedule, the program after a step, the kernel, CUDA, PTX or SASS."""
    wanted = zip(Form, (schedule, program, kernel, cuda, ptx, sass), strict=True)
    chosen = [form for form, is_wanted in wanted if is_wanted]
    if len(chosen) > 1:
        options = " and ".join(f"--{form.value}" for form in chosen)
        raise typer.BadParameter(f"{options} are different things to show: choose one.")
    form = chosen[0] if chosen else Form.SCHEDULE if step is None else Form.PROGRAM
    if variant is not None and variant not in _VARIANTS:
        raise UnknownName("variant", variant, _VARIANTS)
    found, gemm = chosen_problem(rung, size, **formats_of(dtype))
    built = build(gemm, found, variant=None if variant is None else _VARIANTS[variant])
    shown = built if step is None else _after(built, step, found.name)
    machine = known_arch(arch)
    if form in (Form.PTX, Form.SASS):
        check_compilable(shown.name, shown.kernel, machine)
    text = _text(shown, form, machine.name)
    if as_json:
        steps = {"steps": to_data(shown.schedule)} if form is Form.SCHEDULE else {}
        place = {"step": len(shown.schedule), "of": len(built.schedule)}
        target = {"arch": arch} if form in (Form.PTX, Form.SASS) else {}
        output.print_json({"rung": found.name, "form": form.value, **place, **target, "text": text, **steps})
    else:
        output.print_code(_numbered(text) if form is Form.KERNEL else text, _LANGUAGE[form])
    return 0


def _after(built: Build, step: int, name: str) -> Build:
    steps = len(built.schedule)
    if not 0 <= step <= steps:
        raise TilewrightError(
            f"There is no step {step}: {name} has {steps} steps.",
            hint=f"--step 0 is the naive program, --step {steps} the finished one.",
        )
    return built.after(step)


def _numbered(text: str) -> str:
    """Lines with the numbers by which findings and `watch --without` name them."""
    lines = text.splitlines()
    width = len(str(len(lines)))
    return "".join(f"{number:>{width}}  {line}\n" for number, line in enumerate(lines, start=1))


def _text(built: Build, form: Form, arch: str) -> str:
    match form:
        case Form.SCHEDULE:
            return built.schedule.text
        case Form.PROGRAM:
            return built.text
        case Form.KERNEL:
            return kernel_text(built.kernel)
        case Form.CUDA:
            return built.cuda
        case Form.PTX:
            return compile_ptx(built.source, arch)
        case Form.SASS:
            cubin = built.compile(arch, cache=CubinCache())
            text, loop = disassemble(cubin), main_loop(MachineCode.of(cubin))
            return text if loop is None else f"// {loop}\n{text}"
