"""The schedules that a user's Python file names: for the gate, and wherever a command takes a rung.

    gemm = tw.Gemm(256, 256, 64)                          the problem of all that name none
    tiled = tw.Schedule(...)                              a schedule
    def wide(gemm: tw.Gemm) -> tw.Schedule: ...           a schedule that depends on the problem
    def tuned(gemm: tw.Gemm, depth: Literal[8, 16] = 8) -> tw.Schedule: ...    ... with parameters to search
    skinny = tw.build(tw.Gemm(16, 512, 512), tiled)       a schedule with a problem of its own

Names that begin with an underscore are left out. The file runs as a module does: `if __name__ == "__main__":` is not
entered, and what it prints is dropped.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import re
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from tilewright.errors import TilewrightError, UnknownName
from tilewright.ladders.rung import Choices, Rung
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Schedule
from tilewright.toolchain import Build, build

DEFAULT_GEMM = Gemm(256, 256, 256)
"""The problem of a file that names none."""

_RUN_NAME = "tilewright_file"

_FILE = re.compile(r"(?P<path>.+\.py)(?::(?P<name>\w+))?")


@dataclass(frozen=True, slots=True)
class OwnSchedule:
    """A named schedule of a file and the problem it is for.

    make: what it is for a problem; raises TilewrightError where it does not apply. told: its first line of
    documentation. choices: its parameters, None where it has none.
    """

    name: str
    gemm: Gemm
    make: Callable[[Gemm], Build]
    told: str = ""
    choices: Choices | None = None

    def build(self) -> Build:
        """The schedule for the problem that it comes with. Raises TilewrightError where it does not apply."""
        return self.make(self.gemm)


def is_file(text: str) -> bool:
    """Whether a word of the command line names a file of schedules: `FILE.py` or `FILE.py:NAME`."""
    return _FILE.fullmatch(text.strip()) is not None


def rung_of_file(text: str) -> tuple[Rung, Gemm]:
    """The schedule that `FILE.py` or `FILE.py:NAME` names, as a rung, and the problem it is for.

    Raises TilewrightError where the file does not run, has no such schedule, or has several and none is named.
    """
    path, found = _chosen(text)
    if len(found) > 1:
        raise TilewrightError(
            f"{str(path)!r} has {len(found)} schedules: {', '.join(one.name for one in found)}.",
            hint=f"say which: {path}:{found[0].name}",
        )
    return _as_rung(path, 1, found[0]), found[0].gemm


def rungs_of_file(text: str) -> tuple[Rung, ...]:
    """All schedules of `FILE.py`, or the one that `FILE.py:NAME` names, as rungs in their order."""
    path, found = _chosen(text)
    return tuple(_as_rung(path, number, own) for number, own in enumerate(found, 1))


def _chosen(text: str) -> tuple[Path, list[OwnSchedule]]:
    found = _FILE.fullmatch(text.strip())
    assert found is not None
    path, name = Path(found["path"]), found["name"]
    known = {one.name: one for one in schedules_in(path)}
    if name is not None and name not in known:
        raise UnknownName(f"schedule of {path.name} called", name, known)
    return path, list(known.values()) if name is None else [known[name]]


def _as_rung(path: Path, number: int, own: OwnSchedule) -> Rung:
    gemm = own.gemm
    given = {one.name: getattr(gemm, one.name) for one in fields(gemm) if getattr(gemm, one.name) != one.default}
    return Rung(
        ladder=path.stem,
        number=number,
        slug=own.name,
        label=own.name,
        idea=own.told or f"a schedule of {path.name}",
        schedule=lambda problem: own.make(problem).schedule,
        problem={name: value for name, value in given.items() if name not in (*_SIZES, *_LEADING)},
        choices=own.choices,
    )


_SIZES = ("m", "n", "k")
_LEADING = ("lda", "ldb", "ldc", "ld_added")


def schedules_in(path: Path) -> list[OwnSchedule]:
    """The schedules of a file in the order in which it names them.

    One that has several names goes by the first, and one that the file builds itself counts once.
    """
    names = {name: value for name, value in names_in(path).items() if not name.startswith("_")}
    gemm = _gemm_of(path, names)
    found: list[OwnSchedule] = []
    seen: set[object] = set()
    for name, value in names.items():
        own = _own(name, value, gemm)
        what = (gemm, value) if isinstance(value, Schedule) else _content(value)
        if own is not None and what not in seen:
            seen.add(what)
            found.append(own)
    if not found:
        bare = (name for name, value in names.items() if inspect.isfunction(value) and value.__module__ == _RUN_NAME)
        asked = f"def {next(bare, 'tiled')}(gemm: tw.Gemm) -> tw.Schedule: ..., with both annotations"
        raise TilewrightError(
            f"{str(path)!r} names no schedule.",
            hint=f"give one a name at the top level: tiled = tw.Schedule(...), or {asked}.",
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


def _own(name: str, value: Any, gemm: Gemm) -> OwnSchedule | None:
    """What a name stands for; None where it is not a schedule."""
    if isinstance(value, Build):
        return OwnSchedule(name, value.gemm, lambda problem: _built_for(value, problem))
    if isinstance(value, Rung):
        own = value.gemm(gemm.m, gemm.n, gemm.k)
        return OwnSchedule(name, own, lambda problem: build(problem, value), value.idea)
    if isinstance(value, Schedule):
        return OwnSchedule(name, gemm, lambda problem: build(problem, value, name=name))
    if inspect.isfunction(value) and value.__module__ == _RUN_NAME and _gives_a_schedule(value):
        told = (inspect.getdoc(value) or "").partition("\n")[0]
        return OwnSchedule(name, gemm, lambda problem: _called(name, value, problem), told, _choices(name, value))
    return None


def _built_for(built: Build, problem: Gemm) -> Build:
    return built if problem == built.gemm else build(problem, built.schedule, name=built.name)


def _gives_a_schedule(function: Callable[..., Any]) -> bool:
    """Whether it is annotated to, and takes nothing but the problem."""
    result = inspect.signature(function).return_annotation
    text = result if isinstance(result, str) else getattr(result, "__name__", "")
    if text.rpartition(".")[2] not in ("Schedule", "Build"):
        return False
    needed = [one for one in inspect.signature(function).parameters.values() if one.default is one.empty]
    return len(needed) <= 1 and all(one.kind is one.POSITIONAL_OR_KEYWORD for one in needed)


def _choices(name: str, function: Callable[..., Any]) -> Choices | None:
    """The points of the parameters that are annotated with their values: `depth: Literal[8, 16] = 8`."""
    try:
        hints = get_type_hints(function)
    except Exception:  # an annotation that cannot be evaluated names no values
        return None
    named = inspect.signature(function).parameters.values()
    values = {
        one.name: get_args(hints[one.name])
        for one in named
        if one.default is not one.empty and get_origin(hints.get(one.name)) is Literal
    }
    if not values:
        return None

    def points() -> list[dict[str, Any]]:
        return [dict(zip(values, chosen, strict=True)) for chosen in product(*values.values())]

    return Choices(points, lambda gemm, point: _called(name, function, gemm, **point).schedule)


def _called(name: str, function: Callable[..., Any], gemm: Gemm, **parameters: Any) -> Build:
    needed = [one for one in inspect.signature(function).parameters.values() if one.default is one.empty]
    try:
        given = function(*[gemm][: len(needed)], **parameters)
    except TilewrightError:
        raise
    except Exception as error:
        told = f"{name}() failed: {_told(error)}."
        raise TilewrightError(told, place=_line(error, Path(function.__code__.co_filename))) from None
    return given if isinstance(given, Build) else build(gemm, given, name=name)


def names_in(path: Path) -> dict[str, Any]:
    """The names at the top level of a file. Raises TilewrightError, with the line, where it does not run."""
    if path.exists() and not path.is_file():
        raise TilewrightError(f"{str(path)!r} is not an ordinary file.", hint="name a Python file with schedules.")
    if not path.is_file():
        raise TilewrightError(
            f"There is no file {str(path)!r}.", hint="`tilewright new NAME` writes one to start from."
        )
    try:
        with _importing_beside(path), contextlib.redirect_stdout(io.StringIO()):
            return runpy.run_path(str(path), run_name=_RUN_NAME)
    except TilewrightError as error:
        raise TilewrightError(f"{str(path)!r} does not run: {error.headline}", place=_line(error, path)) from None
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit) and type(error) is not SystemExit:  # a signal that ends this process
            raise
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
