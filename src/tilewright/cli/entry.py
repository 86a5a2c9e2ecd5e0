"""The entry point: runs a command and turns whatever happens into one message and an exit code.

0    success, and nothing else
1    a failed verification, or a mistake of the user that the message explains
2    the command line itself could not be understood
130  Ctrl-C
143  SIGTERM
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from threading import Timer
from typing import Any

import typer

from tilewright.cli.app import PROGRAM, application
from tilewright.errors import TilewrightError

TRACEBACK_VARIABLE = "TILEWRIGHT_TRACEBACK"
INTERRUPTED = 130  # 128 + SIGINT, as shells have it
TERMINATED = 143  # 128 + SIGTERM

# Typer carries its own copy of click, older ones use the installed one: the base class is right for both.
_UsageError = typer.BadParameter.__mro__[1]


def run(arguments: Sequence[str] | None, began: float) -> int:
    """Run the command line (None: that of this process); the exit code. began: a command finds it as `context.obj`."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):  # a stream of a test or of an editor
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # a terminal that knows only ASCII
    if os.environ.get("COLUMNS", "").strip("0") == "":  # of a terminal that does not know its size
        os.environ.pop("COLUMNS", None)  # rich would print nothing
    if sys.stdout is None:  # a shell may close it: `>&-`
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # open until the process ends
    try:
        with _plain_warnings(), _ended_by_signals():
            code = application()(args=arguments, prog_name=PROGRAM, standalone_mode=False, obj=began)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return 1
    except Exception as error:
        return _explained(error)
    return code if isinstance(code, int) else 0


@contextlib.contextmanager
def _plain_warnings() -> Iterator[None]:
    """A warning is its sentence: where in our sources it was raised is nothing that a user of a command asks for."""
    show = warnings.showwarning

    def told(message: Warning | str, category: type[Warning], *place: Any) -> None:
        if category is UserWarning:
            print(f"Warning: {message}", file=sys.stderr)
        else:
            show(message, category, *place)

    warnings.showwarning = told  # type: ignore[assignment]  # its last arguments are optional
    try:
        yield
    finally:
        warnings.showwarning = show


class _Terminated(SystemExit):
    """What SIGTERM raises."""


_SIGNALS: dict[type[BaseException], signal.Signals] = {
    _Terminated: signal.SIGTERM,
    KeyboardInterrupt: signal.SIGINT,
}
"""What signals raise, and which."""

_AGAIN_SECONDS = 0.05


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM unwinds the program: worker processes, their semaphores and unfinished files do not stay behind.

    Python drops what a signal raises inside a finaliser or a callback, and the program would go on: the signal is sent
    again then.
    """

    def end(number: int, frame: object) -> None:
        raise _Terminated(TERMINATED)

    def dropped(what: Any) -> None:
        if what.exc_type not in _SIGNALS:
            tell(what)
            return
        again = Timer(_AGAIN_SECONDS, os.kill, (os.getpid(), _SIGNALS[what.exc_type]))
        again.daemon = True
        again.start()

    try:
        before = signal.signal(signal.SIGTERM, end)
    except ValueError:  # not in the main thread
        yield
        return
    tell, sys.unraisablehook = sys.unraisablehook, dropped
    try:
        yield
    finally:
        sys.unraisablehook = tell
        signal.signal(signal.SIGTERM, before)


def _explained(error: Exception) -> int:
    """One message on stderr; the exit code."""
    if isinstance(error, _UsageError):
        return _usage(error)
    if isinstance(error, TilewrightError):
        print(error, file=sys.stderr)
    elif isinstance(error, OSError):
        what = "write the output" if error.filename is None else f"use {str(error.filename)!r}"
        print(f"Cannot {what}: {error.strerror or error}.", file=sys.stderr)
        if error.filename is None:
            _drop_output()
    elif isinstance(error, MemoryError):
        print("There is not enough memory for this size.\n  Hint: use a smaller one.", file=sys.stderr)
    else:
        _confess(error)
    return 1


def _usage(error: Exception) -> int:
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else PROGRAM
    if type(error).__name__ == "NoArgsIsHelpError":
        return 2  # the help has been printed
    message = str(error.format_message()).strip()  # type: ignore[attr-defined]
    option = str(getattr(error, "option_name", ""))
    if re.fullmatch(r"-\d+", option):
        message = f"{option} is a negative number, and no argument here may be one."
    hint = f"{command} --help"
    examples: Sequence[str] = getattr(getattr(context, "command", None), "examples", ())
    if type(error).__name__ == "MissingParameter" and examples:
        hint = f"for example {examples[0]}; more: {hint}"
    print(f"{_with_value(message, error)}\n  Hint: {hint}", file=sys.stderr)
    return 2


_UNFIT = {
    "int_parsing": "{!r} is not a whole number.",
    "float_parsing": "{!r} is not a number.",
    "greater_than": "{} is not greater than {gt}.",
    "greater_than_equal": "{} is less than {ge}.",
    "less_than_equal": "{} is greater than {le}.",
}
"""What is wrong with a value, by what pydantic calls it: its own sentence leaves the value out."""


def _with_value(message: str, error: Exception) -> str:
    """The message about a parameter, with the value that was given, which newer versions of Typer do not tell."""
    found = getattr(error.__cause__, "errors", None)
    if not callable(found):
        return message
    first = found()[0]
    text = _UNFIT.get(first["type"])
    if text is None or first["msg"] not in message:
        return message
    return message.replace(first["msg"], text.format(first["input"], **first.get("ctx", {})))


def _confess(error: Exception) -> None:
    if os.environ.get(TRACEBACK_VARIABLE):
        traceback.print_exception(error)
        return
    told = str(error).partition("\n")[0]
    print(
        f"This is a bug in tilewright: {type(error).__name__}: {told}\n"
        f"  Hint: run it again with {TRACEBACK_VARIABLE}=1 to see where, and report that text.",
        file=sys.stderr,
    )


def _drop_output() -> None:
    """What is left in the buffer goes nowhere, silently: no reader, or the disk is full."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
