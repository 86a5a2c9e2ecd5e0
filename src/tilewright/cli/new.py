"""`tilewright new`: a file with a schedule that works, to change."""

from __future__ import annotations

from importlib.resources import files
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli import output
from tilewright.cli.page_files import write_new
from tilewright.errors import TilewrightError, UnknownName

EXAMPLES = (
    "tilewright new mine",
    "tilewright new tensor --for sm_80",
    "tilewright new hopper --for sm_90 && tilewright explain hopper.py",
)

TEMPLATES = {"any": "simt.py.txt", "sm_80": "mma.py.txt", "sm_90": "wgmma.py.txt"}
"""What a file is for, and its template: FMAs, `mma.sync` with cp.async, `wgmma` with TMA."""


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The file is NAME.py, in this folder.")],
    target: Annotated[
        str, typer.Option("--for", metavar="any|sm_80|sm_90", help="CUDA cores, mma.sync, or wgmma and TMA.")
    ] = "any",
) -> int:
    """Write a commented file with a schedule that works, as a start for one of your own."""
    if target.removesuffix("a") not in TEMPLATES:
        raise UnknownName("target", target, TEMPLATES)
    path = Path(name if name.endswith(".py") else f"{name}.py")
    if not path.stem.isidentifier() or iskeyword(path.stem):
        raise TilewrightError(
            f"{path.stem!r} is not a name for a Python module.",
            hint="letters, digits and _; the first not a digit; no word of Python's own.",
        )
    if path.parent == Path() and not path.exists() and find_spec(path.stem) is not None:
        raise TilewrightError(
            f"{path} would hide the Python module {path.stem!r} from all that runs in this folder.",
            hint=f"use another name, such as my_{path.stem}.",
        )
    text = (files("tilewright.cli") / "templates" / TEMPLATES[target.removesuffix("a")]).read_text("utf-8")
    write_new(path, text.replace("FILE", path.name))
    console = output.out()
    console.print(f"{path} is written. Next:", soft_wrap=True)
    for command in ("show {} --cuda", "explain {}", "simulate {}", "predict {} --device H200"):
        console.print(f"  tilewright {command.format(path)}", soft_wrap=True)
    return 0
