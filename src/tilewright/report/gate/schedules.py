"""The schedules that a user's Python file names.

    gemm = tw.Gemm(256, 256, 64)                          the problem of all that name none
    tiled = tw.Schedule(...)                              a schedule
    def wide(gemm: tw.Gemm) -> tw.Schedule: ...           a schedule that depends on the problem
    skinny = tw.build(tw.Gemm(16, 512, 512), tiled)       a schedule with its own problem

Names that begin with an underscore are left out. The file runs as a module does: `if __name__ == "__main__":` is not
entered, and what it prints is dropped.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.errors import TilewrightError
from tilewright.ladders.rung import Rung
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Schedule
from tilewright.toolchain import Build, build

DEFAULT_GEMM = Gemm(256, 256, 256)
"""The problem of a file that names none."""

_RUN_NAME = "tilewright_gate"


@dataclass(frozen=True, slots=True)
class Gated:
    """A named schedule. build: makes it, and raises TilewrightError where it does not apply."""

    name: str
    build: Callable[[], Build]


def schedules_in(path: Path) -> list[Gated]:
    """The schedules of a file in the order in which it names them.

    One that has several names goes by the first, and one that the file builds itself counts once.
    """
    names = {name: value for name, value in _run(path).items() if not name.startswith("_")}
    gemm = _gemm_of(path, names)
    found: list[Gated] = []
    seen: set[object] = set()
    for name, value in names.items():
        make = _maker(name, value, gemm)
        what = (gemm, value) if isinstance(value, Schedule) else _content(value)
        if make is not None and what not in seen:
            seen.add(what)
            found.append(Gated(name, make))
    if not found:
        raise TilewrightError(
            f"{str(path)!r} names no schedule.",
            hint="give one a name at the top level: tiled = tw.Schedule(...), or "
            "def tiled(gemm: tw.Gemm) -> tw.Schedule: ...",
        )
    return found


def _content(value: Any) -> object:
    return (value.gemm, value.schedule) if isinstance(value, Build) else id(value)


def _gemm_of(path: Path, names: Mapping[str, Any]) -> Gemm:
    if isinstance(names.get("gemm"), Gemm):
        return names["gemm"]  # type: ignore[no-any-return]
    others = {name: value for name, value in names.items() if isinstance(value, Gemm)}
    if len(others) > 1:
        raise TilewrightError(
            f"{str(path)!r} has {len(others)} problems: {', '.join(others)}.",
            hint="call one of them gemm; the others can go into builds: wide = tw.build(other, schedule).",
        )
    return next(iter(others.values()), DEFAULT_GEMM)


def _maker(name: str, value: Any, gemm: Gemm) -> Callable[[], Build] | None:
    """How to build what a name stands for; None where it is no schedule."""
    if isinstance(value, Build):
        return lambda: value
    if isinstance(value, Rung):
        return lambda: build(value.gemm(gemm.m, gemm.n, gemm.k), value)
    if isinstance(value, Schedule):
        return lambda: build(gemm, value, name=name)
    if inspect.isfunction(value) and value.__module__ == _RUN_NAME and _gives_a_schedule(value):
        return lambda: _called(name, value, gemm)
    return None


def _gives_a_schedule(function: Callable[..., Any]) -> bool:
    """Whether it is annotated to, and takes nothing but the problem."""
    result = inspect.signature(function).return_annotation
    text = result if isinstance(result, str) else getattr(result, "__name__", "")
    if text.rpartition(".")[2] not in ("Schedule", "Build"):
        return False
    needed = [one for one in inspect.signature(function).parameters.values() if one.default is one.empty]
    return len(needed) <= 1 and all(one.kind is one.POSITIONAL_OR_KEYWORD for one in needed)


def _called(name: str, function: Callable[..., Any], gemm: Gemm) -> Build:
    needed = [one for one in inspect.signature(function).parameters.values() if one.default is one.empty]
    try:
        given = function(*[gemm][: len(needed)])
    except TilewrightError:
        raise
    except Exception as error:
        raise TilewrightError(f"{name}() failed: {_told(error)}.") from None
    return given if isinstance(given, Build) else build(gemm, given, name=name)


def _run(path: Path) -> dict[str, Any]:
    """The names at the top level of a file. Raises TilewrightError, with the line, where it does not run."""
    if not path.is_file():
        raise TilewrightError(f"There is no file {str(path)!r}.")
    try:
        with _importing_beside(path), contextlib.redirect_stdout(io.StringIO()):
            return runpy.run_path(str(path), run_name=_RUN_NAME)
    except TilewrightError as error:
        raise TilewrightError(f"{str(path)!r} does not run: {error.headline}", place=_line(error, path)) from None
    except (Exception, SystemExit) as error:
        raise TilewrightError(f"{str(path)!r} does not run: {_told(error)}.", place=_line(error, path)) from None


@contextlib.contextmanager
def _importing_beside(path: Path) -> Iterator[None]:
    """Modules beside the file can be imported, as by `python FILE`."""
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)


def _told(error: BaseException) -> str:
    said = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def _line(error: BaseException, path: Path) -> str:
    """The last line of the file that the error came through."""
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return f"line {error.lineno}: {(error.text or '').strip()}"
    frames = [one for one in traceback.extract_tb(error.__traceback__) if one.filename == str(path)]
    return f"line {frames[-1].lineno}: {frames[-1].line}" if frames else ""
