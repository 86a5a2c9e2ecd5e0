"""The page in a browser: it loads without errors, its charts have data, its controls draw again."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

_BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)

_LISTEN = """<script>
var troubles = [];
addEventListener("error", (event) => troubles.push(event.message));
for (const kind of ["error", "warn"]) console[kind] = (...words) => troubles.push(words.join(" "));
</script>"""

_DRIVE = """<script>(() => {
const told = {};
const dots = (id) => document.getElementById(id).data.map((trace) => trace.x.filter((x) => x !== null).length);
const text = (id) => document.getElementById(id).textContent;
const move = (id, value) => {
  const input = document.querySelector(`#${id} input[type=range]`);
  input.value = value;
  input.dispatchEvent(new Event("input"));
};
const choose = (select, value) => { select.value = value; select.dispatchEvent(new Event("change")); };

told.charts = Object.fromEntries(["ladder-chart", "roof-chart", "terms-chart"].map((id) => [id, dots(id)]));
told.first = document.querySelector("article.rung:not([hidden])").dataset.rung;

choose(document.getElementById("rung"), "worklog/8");
told.shown = [...document.querySelectorAll("article.rung:not([hidden])")].map((article) => article.dataset.rung);
told.address = location.hash;
told.conflict = text("banks");
document.querySelectorAll("#banks button")[1].click();
told.wave = text("banks");
const third = document.querySelectorAll("#banks svg g[role=button]")[2];
third.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" }));
told.key = text("banks");

const before = text("tiles");
move("tiles", 200);
told.thread = [before, text("tiles")];
choose(document.querySelector("#loads select"), 1);
told.loads = text("loads");
const order = text("order");
move("order", 1);
told.order = [order, text("order")];

const terms = text("relief");
choose(document.getElementById("size"), "1024");
told.size = [terms, text("relief")];
told.note = text("ladder-note");
document.getElementById("log").click();
told.log = document.getElementById("ladder-chart").layout.yaxis.type;

document.getElementById("previous").click();
told.below = location.hash;
told.uncoalesced = text("loads");
told.wide = [innerWidth, document.documentElement.scrollWidth];
told.troubles = troubles;
const made = document.createElement("pre");
made.id = "told";
made.textContent = JSON.stringify(told);
document.body.append(made);
})()</script>"""


def _run(page: str, folder: Path, *arguments: str) -> dict[str, Any]:
    """What the page tells of itself after its controls were used."""
    assert _BROWSER is not None
    path = folder / "driven.html"
    path.write_text(page.replace("<head>", f"<head>{_LISTEN}").replace("</body>", f"{_DRIVE}</body>"), encoding="utf-8")
    command = [_BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    command += [*arguments, "--virtual-time-budget=5000", "--dump-dom", path.as_uri()]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    found = re.search(r'<pre id="told">(.*?)</pre>', ran.stdout, re.DOTALL)
    assert found is not None, ran.stderr[-2000:]
    told: dict[str, Any] = json.loads(unescape(found[1]))
    return told


@pytest.fixture(scope="module")
def told(text: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    if _BROWSER is None:
        pytest.skip("no Chromium or Chrome is installed here")
    return _run(text, tmp_path_factory.mktemp("browser"), "--window-size=1280,900")


def test_the_page_loads_without_errors(told: dict[str, Any]) -> None:
    assert told["troubles"] == []


def test_charts_have_data(told: dict[str, Any]) -> None:
    for points in told["charts"].values():
        assert sum(points) >= 3


def test_the_top_rung_is_shown_first_and_another_can_be_picked(told: dict[str, Any]) -> None:
    assert told["first"] == "worklog/12"
    assert (told["shown"], told["address"]) == (["worklog/8"], "#worklog%2F8")
    assert told["below"] == "#worklog%2F1"


def test_conflicts_are_stepped_through_by_button_and_by_key(told: dict[str, Any]) -> None:
    assert "takes 4 wavefronts, where 1 would do: 3 are bank conflicts (lanes 4 apart share a bank)" in told["conflict"]
    assert "Wavefront 1 of 4 serves lanes" in told["wave"]
    assert "Wavefront 3 of 4 serves lanes" in told["key"]


def test_sliders_and_choosers_draw_again(told: dict[str, Any]) -> None:
    assert "Thread 37 is lane 5 of warp 1" in told["thread"][0]
    assert "Thread 200 is lane 8 of warp 6" in told["thread"][1]
    assert "requests for B" in told["loads"]
    assert ["Wave 1 of 4" in told["order"][0], "Wave 2 of 4" in told["order"][1]] == [True, True]
    assert "1 KiB are moved, where 4 sectors could hold them" in told["uncoalesced"]


def test_another_size_has_other_predictions_and_says_that_nothing_is_recorded(told: dict[str, Any]) -> None:
    assert "Recorded: 32.7 TFLOP/s" in told["size"][0]
    assert told["size"][0] != told["size"][1] and "Recorded" not in told["size"][1]
    assert told["note"].startswith("Nothing is recorded for H200 at 1024")
    assert told["log"] == "log"


def test_a_phone_needs_no_sideways_scrolling(text: str, tmp_path: Path) -> None:
    if _BROWSER is None:
        pytest.skip("no Chromium or Chrome is installed here")
    told = _run(text, tmp_path, "--window-size=390,844")
    window, needed = told["wide"]
    assert needed <= window <= 500
