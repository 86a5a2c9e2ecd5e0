"""`tilewright database`: the winners of earlier tuning."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli import output
from tilewright.cli.output import AsJson
from tilewright.errors import TilewrightError
from tilewright.files import read_text
from tilewright.planning.on_paper import version_of
from tilewright.units import counted
from tilewright.winners.database import Database
from tilewright.winners.keys import short_name
from tilewright.winners.lookup import is_current
from tilewright.winners.winner import Winner

EXAMPLES = (
    "tilewright database list",
    "tilewright database export --device H200 winners.jsonl",
    "tilewright database import winners.jsonl",
    "tilewright database prune",
)

database = typer.Typer(help="List, export, import and prune the kernels that won on each GPU.", no_args_is_help=True)

DeviceName = Annotated[str | None, typer.Option("--device", metavar="NAME", help="Only of this GPU.")]


@database.command("list")
def list_(device: DeviceName = None, as_json: AsJson = False) -> int:
    """Print the winners: one for each problem and order of summation, your own before a shipped one."""
    store = Database()
    winners = store.winners(device=device)
    _complain(store)
    if as_json:
        output.print_json([_plain(winner) for winner in winners])
        return 0
    if not winners and device is None:
        print("No winners yet. `tilewright tune M N K` finds one.")
    elif not winners:
        others = sorted({winner.key.device.name for winner in store.winners()})
        where = f", but for {' and '.join(others)}" if others else ""
        print(f"No winners for {device!r}{where}. `tilewright tune M N K` finds one on the GPU at hand.")
    heading = ""
    for winner in winners:
        if str(winner.key.device) != heading:
            heading = str(winner.key.device)
            print(f"{heading}: M x N x K, format, orders of A, B and C, alignment; median time; kernel")
        share = "" if winner.share_of_cublas is None else f"  {100 * winner.share_of_cublas:5.1f} % of cuBLAS"
        stale = "" if is_current(winner, version_of) else "  (its kernel has changed since: not used)"
        found, kernel = f"  {winner.key.problem!s:48} {winner.median_us:10.1f} us{share}", f"{winner.config}{stale}"
        if sys.stdout.isatty():
            print(found)
            output.paragraph(output.out(), kernel, indent=6, hanging=2)
        else:
            print(f"{found}  {kernel}")  # a line each, for grep
    return 0


@database.command()
def export(
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="Default: standard output.")] = None,
    device: DeviceName = None,
    shipped: Annotated[bool, typer.Option("--shipped", help="Those that came with the package, too.")] = False,
) -> int:
    """Write your winners as lines of JSON, which `import` reads, and which the package ships."""
    store = Database()
    lines = list(store.export(device=device, shipped=shipped))
    _complain(store)
    if file is None:
        sys.stdout.write("".join(lines))
    else:
        file.write_text("".join(lines), encoding="utf-8")
        output.note(f"{counted(len(lines), 'winner')} written to {file}.")
    return 0


@database.command("import")
def import_(file: Annotated[Path, typer.Argument(metavar="FILE", help="What `export` wrote.")]) -> int:
    """Take over winners that are new or faster than yours."""
    try:
        lines = read_text(file).splitlines()
    except UnicodeDecodeError:
        raise TilewrightError(
            f"{str(file)!r} is not a text.", hint="`tilewright database export` writes such files."
        ) from None
    store = Database()
    done = store.import_(lines, file.name)
    _complain(store)
    print(
        f"{counted(done.added, 'winner')} new, {done.replaced} replaced slower ones, {done.slower} slower than yours."
    )
    return 0


@database.command()
def prune(
    device: DeviceName = None,
    everything: Annotated[bool, typer.Option("--all", help="Not only those whose kernel has changed.")] = False,
) -> int:
    """Remove your winners whose kernel has changed since they won."""
    if everything and device is None:
        raise TilewrightError(
            "--all would remove all that you have tuned.", hint="name the GPU too: --all --device NAME."
        )

    def wanted(winner: Winner) -> bool:
        mine = device is None or winner.key.device.name == short_name(device)
        return mine and (everything or not is_current(winner, version_of))

    store = Database()
    removed = store.prune(wanted)
    _complain(store)
    print(f"{counted(removed, 'winner')} removed.")
    return 0


@database.command()
def path() -> int:
    """Print where your winners are kept."""
    print(Database().path)
    return 0


def _complain(store: Database) -> None:
    for text in store.complaints:
        output.note(text)


def _plain(winner: Winner) -> dict[str, object]:
    return {
        **winner.key.as_data(),
        **winner.config.as_data(),
        "median_us": winner.median_us,
        "tflops": winner.tflops,
        "share_of_cublas": winner.share_of_cublas,
        "date": winner.date,
        "is_current": is_current(winner, version_of),
    }
