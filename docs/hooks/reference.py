"""The reference pages of the site, from docstrings, the laws of schedules, and the refusals that tests pin."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tilewright as tw
from tilewright.schedule import STEPS, Step
from tilewright.schedule.laws import LAWS

REFUSALS = Path(__file__).parents[2] / "tests" / "golden"

_REFUSAL = re.compile(
    r"^## \w+\n(?P<headline>.+)\n  step (\d+) of \2: (?P<step>(?P<name>\w+)\(.*)\n(?P<rest>(?:  .+\n)*)", re.M
)


def pages() -> dict[str, str]:
    """The text of each page by its path in the site."""
    return {"reference/steps.md": steps_page(), "reference/api.md": api_page()}


def steps_page() -> str:
    """Every step of a schedule: before and after, its fields, what refuses it; then the laws of all programs."""
    refused = refusals()
    parts = [
        "# Steps of a schedule",
        "A schedule is a list of these. Each changes how the loops run and never what they compute, or is refused with "
        "a `ScheduleError`. This page is generated from the code and from the refusals that tests pin.",
    ]
    for step in STEPS:
        parts += [f"## {step.__name__}", *_step(step)]
        if refused[step.__name__]:
            parts += ["**Refused**", "\n".join(f"* {one}" for one in refused[step.__name__])]
    parts += ["## Laws", "What holds after every step, whatever made the program, in the order in which it is checked."]
    parts.append("\n".join(f"* **{_words(law)}**: {_prose(_doc(law))}" for law in LAWS))
    return "\n\n".join(parts) + "\n"


def refusals() -> dict[str, list[str]]:
    """For each step, the texts with which it is refused: the step as written, the reason, and the way out."""
    found: dict[str, list[str]] = {step.__name__: [] for step in STEPS}
    for path in sorted(REFUSALS.glob("*_refusals.txt")):
        for match in _REFUSAL.finditer(path.read_text("utf-8")):
            hint = re.search(r"Hint: (.+)", match["rest"])
            text = f"`{match['step']}`: {_prose(match['headline'])}"
            found[match["name"]].append(text + (f" *{_prose(hint[1])}*" if hint else ""))
    return found


def _step(step: type[Step]) -> Iterator[str]:
    before_after, _, rest = _doc(step).partition("\n\n")
    yield "```text\n" + before_after.replace("   ->   ", "\n->\n") + "\n```"
    yield f"```python\n{_signature(step.__name__, step)}\n```"
    yield from _paragraphs(rest)
    if "check_program" in inspect.getsource(step):
        yield "The [laws](#laws) of programs are checked after this step."


def api_page() -> str:
    """Every public name of `tilewright`, but for the steps, which have a page of their own."""
    parts = [
        "# The public API",
        "Everything that `import tilewright as tw` gives, in alphabetical order; [steps](steps.md) have a page of "
        "their own. This page is generated from the docstrings.",
    ]
    steps = {step.__name__ for step in STEPS}
    for name in sorted(set(tw.__all__) - steps, key=str.lower):
        parts += [f"## {name}", *_public(name, getattr(tw, name))]
    return "\n\n".join(parts) + "\n"


def _public(name: str, value: Any) -> Iterator[str]:
    if not callable(value):
        yield f"A constant, a `{type(value).__name__}`: `{_Default(_names(value))}`."
        return
    if isinstance(value, type) and issubclass(value, enum.Enum):
        yield from _paragraphs(_doc(value))
        yield "\n".join(f"* `{name}.{member.name}`" for member in value)
        return
    yield f"```python\n{_signature(name, value)}\n```"
    yield from _paragraphs(_doc(value))
    if isinstance(value, type):
        yield from _members(value)


def _members(kind: type) -> Iterator[str]:
    """The methods and properties that a class defines itself and documents, a line each."""
    lines = []
    for name, member in vars(kind).items():
        function = getattr(member, "fget", None) or getattr(member, "func", None) or getattr(member, "__func__", member)
        told = inspect.getdoc(function) if inspect.isfunction(function) else None
        if name.startswith("_") or not told:
            continue
        is_called = inspect.isfunction(member) or isinstance(member, (classmethod, staticmethod))
        shown = (
            _signature(name, getattr(kind, name)).replace("(self, ", "(").replace("(self)", "()") if is_called else name
        )
        lines.append(f"* `{' '.join(shown.split())}`: {_prose(' '.join(told.partition(chr(10) * 2)[0].split()))}")
    if lines:
        yield "\n".join(lines)


def _signature(name: str, value: Callable[..., Any]) -> str:
    """A call with the types as the source writes them, a parameter a line where one line is too short."""
    try:
        signature = inspect.signature(value)
    except ValueError:
        return name
    named = [one for one in signature.parameters.values() if not one.name.startswith("_")]
    shown = [str(one.replace(default=_Default(one.default)) if one.default is not one.empty else one) for one in named]
    shown = [
        re.sub(r"'([^']*)'", r"\1", one, count=1) if isinstance(one, str) and ": '" in one else one for one in shown
    ]
    first_keyword = next((at for at, one in enumerate(named) if one.kind is one.KEYWORD_ONLY), None)
    if first_keyword is not None and not any(one.kind is one.VAR_POSITIONAL for one in named):
        shown.insert(first_keyword, "*")
    line = f"{name}({', '.join(shown)})"
    if len(line) > 100:
        line = f"{name}(\n" + "".join(f"    {one},\n" for one in shown) + ")"
    result = signature.return_annotation
    given = "" if isinstance(value, type) or result is signature.empty else f" -> {result}"
    return line + given


def _names(value: Any) -> Any:
    """What a page shows of a constant: of a table its keys."""
    return tuple(value) if isinstance(value, Mapping) else value


class _Default:
    """A default as a page shows it: no addresses of functions, `...` for what a factory makes."""

    def __init__(self, value: object) -> None:
        self._text = "..." if " at 0x" in repr(value) or "<factory>" in repr(value) else repr(value)

    def __repr__(self) -> str:
        return self._text


def _doc(value: Any) -> str:
    told = value.__dict__.get("__doc__") if isinstance(value, type) else value.__doc__
    if isinstance(value, type) and dataclasses.is_dataclass(value) and (told or "").startswith(f"{value.__name__}("):
        return ""
    return inspect.cleandoc(told or "")


def _paragraphs(text: str) -> Iterator[str]:
    """Prose escaped for Markdown; sessions and indented parts as code."""
    for part in text.split("\n\n"):
        if part.startswith(">>>"):
            yield f"```pycon\n{part}\n```"
        elif part.startswith("    "):
            yield f"```text\n{inspect.cleandoc(part)}\n```"
        elif part.strip():
            yield _prose(" ".join(part.split()))


def _prose(text: str) -> str:
    """Text in which stars, angle brackets and square brackets are themselves; what stands in backquotes is code."""
    parts = " ".join(text.split()).split("`")
    escaped = [re.sub(r"([*<\[\]])", r"\\\1", part) if at % 2 == 0 else part for at, part in enumerate(parts)]
    return "`".join(escaped)


def _words(law: Callable[..., Any]) -> str:
    said = law.__name__.replace("_", " ").replace("tma", "TMA")
    return said[0].upper() + said[1:]
