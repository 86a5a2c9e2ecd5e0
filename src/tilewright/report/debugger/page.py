"""`Watched`, a recorded block, and its page: a template, style sheets and scripts, and the recording, compressed.

Accesses as the page draws them: which wavefront serves which lane, and how many sectors lanes touch.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.device.spec import WARP_THREADS
from tilewright.dtypes import Array
from tilewright.files import write_whole
from tilewright.layout.banks import SECTOR_BYTES, copy_turns, sectors
from tilewright.problem.formats import format_name
from tilewright.problem.gemm import Gemm
from tilewright.report.debugger.texts import Texts
from tilewright.report.page.banks import picture_of
from tilewright.report.samples import Request, why_sectors
from tilewright.report.templates import rendered
from tilewright.simulator.findings import numbers_text
from tilewright.simulator.listeners import WIDEST_THROUGH_L1
from tilewright.simulator.machine import Order
from tilewright.simulator.recorder import Picture, Recording, Shown
from tilewright.simulator.recorder.recording import fields_of_values, packed_bytes

Key = tuple[str, int, int, bool, int, int]
"""Space, picture, bytes a lane, whether it is a store, matrices, and the picture of a copy's source."""


def access_pictures(recording: Recording) -> dict[str, dict[str, Any]]:
    """Each kind of request once, by its key as text: `key_of`."""
    found: dict[str, dict[str, Any]] = {}
    for moment in recording.moments:
        for shown in moment.accesses:
            for _, picture, _, source in shown.places:
                key = key_of(shown, picture, source)
                if key not in found:
                    at = recording.pictures[picture]
                    reads = recording.pictures[source] if source >= 0 else None
                    found[key] = _shared(shown, at, reads) if shown.space == "shared" else _global(shown, at)
    return found


def key_of(shown: Shown, picture: int, source: int) -> str:
    store = "s" if shown.store else "l"
    return f"{shown.space[0]}{picture}.{shown.width_bytes}{store}{shown.matrices}.{source}"


def _lanes(at: Picture) -> tuple[Array, Array]:
    addresses = np.array(at.at, np.int64)
    return addresses, addresses >= 0


def _shared(shown: Shown, at: Picture, source: Picture | None) -> dict[str, Any]:
    """A request of shared memory."""
    addresses, active = _lanes(at)
    width, store = shown.width_bytes, shown.store
    if shown.matrices:  # a row of 16 bytes for each of the first lanes
        active &= np.arange(WARP_THREADS) < 8 * shown.matrices
        width, store = 16, True
    served = None
    if source is not None and width <= WIDEST_THROUGH_L1:
        reads, reading = _lanes(source)
        served = copy_turns(addresses[None], reads[None], width, active[None], reading[None])[0]
    return picture_of(addresses, width, active, store=store, served=served)


def _global(shown: Shown, at: Picture) -> dict[str, Any]:
    """A request of global memory. used: distinct bytes that lanes want."""
    addresses, active = _lanes(at)
    taken = int(sectors(addresses[None], shown.width_bytes, active[None])[0])
    used = len(np.unique(addresses[active])) * shown.width_bytes
    fewest = -(-used // SECTOR_BYTES)
    known = {lane: int(addresses[lane]) for lane in np.flatnonzero(active).tolist()}
    why = why_sectors(Request(taken, known, shown.width_bytes)) if taken > fewest else ""
    return {"at": list(at.at), "sectors": taken, "fewest": fewest, "used": used, "why": why}


_SHARED_SCRIPTS = ("draw.js", "banks.js", "loads.js")
"""Of the report's page: elements and tips, the picture of banks, the picture of sectors."""

_SCRIPTS = ("recording.js", "timeline.js", "texts.js", "memory.js", "accesses.js", "units.js", "watch.js")

_BLOBS = ("runs_first", "runs_start", "runs_length", "values")


@dataclass(frozen=True, repr=False)
class Watched:
    """A recorded block with its texts: in a notebook the page to step through it, forward and back.

    left_out: the statement that was removed before, as text; "" for none.
    """

    title: str
    gemm: Gemm
    recording: Recording
    texts: Texts
    schedule: Order
    left_out: str = ""

    def save(self, path: str | Path) -> Path:
        """Write the page to step through the block: one file that loads nothing."""
        written = Path(path)
        write_whole(written, page_text(self))
        return written

    def _repr_html_(self) -> str:
        return framed(self)

    def __repr__(self) -> str:
        faults = "".join(f"; {fault.kind}: {fault.headline}" for fault in self.recording.faults)
        return f"<{self.title}: {len(self.recording.moments):,} steps of block {self.recording.block}{faults}>"


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
