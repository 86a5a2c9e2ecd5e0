"""Pages of docs that records or rungs decide, written or held against them.

python benchmarks/write_page.py library docs/library.md            and README.md, between markers
python benchmarks/write_page.py drawn docs/shapes.md --check       fail where the page is old
python benchmarks/write_page.py calibration docs/calibration.md
python benchmarks/write_page.py resources docs/resources.md        compiles and simulates every rung
python benchmarks/write_page.py ladder:worklog README.md           the recorded figures of a ladder, between markers
python benchmarks/write_page.py recount calibration_h200.json      today's simulated counts into a record
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from operator import eq
from pathlib import Path

from calibrate import told
from calibration.records import read, write
from pages import calibration, drawn, library, resources
from pages.markdown import kept_up_to_date, updated

from tilewright.errors import TilewrightError
from tilewright.ladders import LADDERS

PAGES: dict[str, tuple[Callable[[str], str], Callable[[str, str], bool], str]] = {
    "library": (lambda old: library.page_or_part(old, library.recorded()), eq, "what the records say"),
    "drawn": (lambda _: drawn.page(drawn.recorded()), eq, "what the records say"),
    "calibration": (lambda _: calibration.page(calibration.recorded()), eq, "what the records say"),
    "resources": (lambda _: resources.page(), resources.same, "what the rungs use today"),
    **{f"ladder:{one}": (lambda old, one=one: updated(old, one), eq, "what the records say") for one in LADDERS},
}
"""What a page should hold, given what it holds; whether two pages say the same; of what it should be."""


def recounted(path: Path) -> int:
    """A record with what today's simulator counts; the exit code."""
    found, left = calibration.recount(read(path))
    write(path, found)
    if left:
        print(f"Left as they were, since they are no longer the kernels that were counted: {', '.join(left)}.")
    return told(found)


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", choices=[*PAGES, "recount"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args(words)
    try:
        if given.page == "recount":
            return recounted(given.file)
        fresh, same, source = PAGES[given.page]
        files = (None, given.file) if given.check else (given.file, None)
        kept_up_to_date(*files, fresh, f"python benchmarks/write_page.py {given.page}", same=same, source=source)
    except TilewrightError as wrong:
        print(wrong, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
