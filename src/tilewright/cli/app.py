"""The list of commands, and an application that imports a command when it is called."""

from __future__ import annotations

import importlib
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

PROGRAM = "tilewright"

COMMANDS = {
    "ladder": "Climb a ladder: every rung verified, counted, explained, and its speed.",
    "show": "Print a rung: its schedule, the program after a step, the kernel, CUDA, PTX or SASS.",
    "explain": "Say what each line of a rung's schedule costs, and why.",
    "simulate": "Run a rung on the CPU at any size, with counters and detectors.",
    "run": "Multiply your own matrices with a rung.",
    "devices": "List the GPUs we know, and the one at hand.",
    "doctor": "Check what is installed, and say how to mend what is missing.",
    "table": "Write a ladder's table of recorded figures into a Markdown file.",
}
"""In teaching order. `tilewright.cli.<name>` holds a function of the same name, and its EXAMPLES."""


class LazyCommands(TyperGroup):
    """Knows every command by name and line of help; imports the one that is called."""

    _is_listing = False

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        if self._is_listing:
            return TyperCommand(name=cmd_name, help=COMMANDS[cmd_name])
        module = importlib.import_module(f"tilewright.cli.{cmd_name}")
        single = typer.Typer(add_completion=False)
        single.command(cmd_name, epilog=_examples(module.EXAMPLES))(getattr(module, cmd_name))
        return typer.main.get_command(single)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self._is_listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._is_listing = False


def _examples(lines: tuple[str, ...]) -> str:
    """The last part of a command's help. Typer's help sets each paragraph on a line of its own."""
    return "\n\n".join(["Examples:", *(f"  {line}" for line in lines)])


EXAMPLES = ("tilewright ladder worklog", "tilewright show worklog/6 --cuda", "tilewright explain worklog/6")


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
    app = typer.Typer(cls=LazyCommands, no_args_is_help=True, pretty_exceptions_enable=False)
    app.callback(epilog=_examples(EXAMPLES))(_root)
    return app
