"""The list of commands, and an application that imports a command when it is called."""

from __future__ import annotations

import importlib
import inspect
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

PROGRAM = "tilewright"

PANELS = {
    "Kernels, step by step": {
        "ladder": "Climb a ladder: every rung verified, counted, explained, and its speed.",
        "show": "Print a rung: its schedule, the program after a step, the kernel, CUDA, PTX or SASS.",
        "explain": "Say what each line of a rung's schedule costs, and why.",
        "watch": "Step through a block on the CPU, forward and back: warps, registers, shared memory, barriers.",
        "simulate": "Run a rung on the CPU at any size, with counters and detectors.",
        "predict": "Predict a kernel's run time and its bottleneck on any known GPU; needs no GPU.",
        "report": "Write a ladder as one HTML page: charts, and pictures of what every rung does.",
    },
    "Schedules of your own": {
        "exercise": "Solve puzzles about kernels: a file to edit, a check by the simulator, and hints.",
        "new": "Write a commented file with a schedule that works, to change.",
        "compare": "Lay two rungs or files side by side: schedules, counts, prediction, CUDA.",
        "relayout": "Search a layout of a shared tile that no access conflicts with, and prove it.",
        "search": "Measure the parameters of a rung on the GPU; stops and goes on where it was.",
        "gate": "Fail when schedules of yours got worse than a snapshot; needs no GPU.",
    },
    "The library": {
        "plan": "Say what matmul runs for a problem on any known GPU, launch by launch; needs no GPU.",
        "tune": "Search the fastest kernel for one problem on this GPU, and keep it for matmul.",
        "database": "List, export, import and prune the kernels that won on each GPU.",
        "bench": "Time matmul against cuBLAS, cuBLASLt and torch.compile over a suite of shapes.",
        "run": "Multiply your own matrices with a rung.",
        "export": "Write a kernel as a C++ project and as machine code, for programs without Python.",
    },
    "This machine": {
        "devices": "List the GPUs we know, and the one at hand.",
        "doctor": "Check what is installed, and say how to mend what is missing.",
    },
}
"""In teaching order. `tilewright.cli.<name>` holds a function (or an application of several) of the same name, and its
EXAMPLES."""

COMMANDS = {name: line for panel in PANELS.values() for name, line in panel.items()}


class _WithExamples:
    """What has a help, which is wrapped to the terminal and ends with examples."""

    examples: tuple[str, ...] = ()
    help: str | None

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self.help = _unwrapped(self.help)
        super().format_help(ctx, formatter)  # type: ignore[misc]
        _print_examples(self.examples)


class ExampleCommand(_WithExamples, TyperCommand):
    """A command."""


class ExampleGroup(_WithExamples, TyperGroup):
    """A group of commands."""


class LazyCommands(TyperGroup):
    """Knows every command by name and line of help; imports the one that is called."""

    _is_listing = False

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {
            name: TyperCommand(name=name, help=line, rich_help_panel=title)
            for title, panel in PANELS.items()
            for name, line in panel.items()
        }

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if self._is_listing or cmd_name not in COMMANDS:
            return self.commands.get(cmd_name)
        module = importlib.import_module(f"tilewright.cli.{cmd_name}")
        found = getattr(module, cmd_name)
        several = typer.Typer(add_completion=False)
        if isinstance(found, typer.Typer):
            several.add_typer(found, name=cmd_name, cls=ExampleGroup)
            command: Any = typer.main.get_group(several).commands[cmd_name]
        else:
            several.command(cmd_name, cls=ExampleCommand)(found)
            command = typer.main.get_command(several)
        assert isinstance(command, (ExampleCommand, ExampleGroup))
        command.examples = module.EXAMPLES
        return command

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self._is_listing = True
        super().format_help(ctx, formatter)
        self._is_listing = False
        _print_examples(EXAMPLES)


EXAMPLES = ("tilewright ladder worklog", "tilewright show worklog/6 --cuda", "tilewright explain worklog/6")


def _unwrapped(docstring: str | None) -> str:
    """Each paragraph as one line: a docstring is broken for the source file, and Typer would keep those breaks."""
    paragraphs = inspect.cleandoc(docstring or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _print_examples(lines: tuple[str, ...]) -> None:
    from rich.console import Console
    from rich.panel import Panel
    from rich.text import Text

    Console().print(Panel(Text("\n".join(lines)), title="Examples", title_align="left", border_style="dim"))


def _version(asked: bool) -> None:
    if asked:
        from tilewright import __version__

        print(f"{PROGRAM} {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Turn a matrix multiplication into a fast GPU kernel, one optimisation at a time."""


def application() -> typer.Typer:
    """The command line as Typer runs it."""
    app = typer.Typer(
        cls=LazyCommands,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    return app
