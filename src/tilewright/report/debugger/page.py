"""The page as text: a template, style sheets and scripts, and the recording, compressed."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from tilewright.problem.formats import format_name
from tilewright.report.debugger.pictures import access_pictures
from tilewright.report.templates import rendered
from tilewright.simulator.findings import numbers_text
from tilewright.simulator.recorder.recording import fields_of_values, packed_bytes

if TYPE_CHECKING:
    from tilewright.report.debugger.watch import Watched

_SHARED_SCRIPTS = ("draw.js", "banks.js", "loads.js")
"""Of the report's page: elements and tips, the picture of banks, the picture of sectors."""

_SCRIPTS = ("recording.js", "timeline.js", "texts.js", "memory.js", "accesses.js", "units.js", "watch.js")

_BLOBS = ("runs_first", "runs_start", "runs_length", "values")


def page_text(watched: Watched) -> str:
    """The page as one HTML document that loads nothing."""
    shared, own = files("tilewright.report.page") / "assets", files("tilewright.report.debugger") / "assets"
    data = watched.recording.to_data()
    blobs = {name: data.pop(name) for name in _BLOBS}
    rest = {
        "recording": data,
        "fields": fields_of_values(),
        "texts": asdict(watched.texts),
        "pictures": access_pictures(watched.recording),
    }
    scripts = [(shared / name).read_text("utf-8") for name in _SHARED_SCRIPTS]
    scripts += [(own / name).read_text("utf-8") for name in _SCRIPTS]
    return rendered(
        own / "watch.html",
        watched=watched,
        recording=watched.recording,
        steps=len(watched.recording.moments),
        format=format_name(watched.gemm),
        lanes=lambda lanes: f", {numbers_text('lane', lanes)}" if lanes else "",
        style=(shared / "style.css").read_text("utf-8") + (own / "watch.css").read_text("utf-8"),
        scripts="\n".join(scripts),
        blobs={"data": packed_bytes(_json(rest)), **blobs},
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
    )


def framed(watched: Watched) -> str:
    """The page as an element of another one: it sees nothing of that, and brings its own styles and keys."""
    text = escape(page_text(watched)).replace("\n", "&#10;")  # one line: Markdown would end the element at an empty one
    return (
        f'<iframe title="{escape(watched.title)}: step through a block" srcdoc="{text}" sandbox="allow-scripts" '
        f'width="100%" height="900"></iframe>'
    )


def _json(data: dict[str, Any]) -> bytes:
    return json.dumps(data, separators=(",", ":"), allow_nan=False).encode()
