"""The page of `watch` in a browser: it opens where it should, and steps, texts and keys work."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.report.chromium import BROWSER, Chromium, Tab
from tilewright.ladders import find_rung
from tilewright.report.debugger import page_text, watch
from tilewright.toolchain import build

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome is installed here")

PAGES: dict[str, tuple[str, tuple[int, int, int], int | None]] = {
    "conflict": ("worklog/5", (128, 128, 16), None),
    "race": ("worklog/3", (64, 64, 64), 17),
    "ring": ("hopper/3", (128, 128, 640), None),
    "deadlock": ("hopper/3", (128, 128, 640), 49),
    "copies": ("ampere/6", (256, 128, 128), None),
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, written = tmp_path_factory.mktemp("pages"), {}
    for name, (rung_name, size, without) in PAGES.items():
        rung = find_rung(rung_name)
        watched = watch(build(rung.gemm(*size), rung), title=rung.title, without=without)
        written[name] = folder / f"{name}.html"
        written[name].write_text(page_text(watched), "utf-8")
    return written


@pytest.mark.cross_section("name", "width", every=3)
@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize(("width", "dark"), [(1400, False), (390, True)])
def test_pages_open_without_errors_and_fit(
    browser: Chromium, pages: dict[str, Path], name: str, width: int, dark: bool
) -> None:
    tab = Tab(browser, pages[name], width, dark=dark)
    for step in ("last", "back", "first", "forward"):
        tab.click(f"#{step}")
    tab.wait("document.getElementById('where').textContent.startsWith('2 of')")
    assert tab.troubles == []
    assert tab.ask("document.documentElement.scrollWidth <= innerWidth")


def test_a_race_opens_at_its_second_access_and_leads_to_the_first(browser: Chromium, pages: dict[str, Path]) -> None:
    tab = Tab(browser, pages["race"], 1400)
    first, second = tab.ask("chosen.recording.faults.map((one) => [one.earlier, one.moment])[0]")
    assert tab.ask("chosen.now") == second
    assert "A_tile[A_tile_m, A_tile_k] <- A_tile_value[0]" in tab.text("#say")
    tab.click(f'[data-moment="{first}"]')
    tab.wait(f"chosen.now === {first} && document.getElementById('say').textContent.includes('<- A_tile[m_thread')")
    assert "A_tile" in tab.text("#access")
    assert len(tab.ask("[...document.querySelectorAll('#kernel .broken')].map((one) => one.textContent)")) == 4


def test_a_deadlock_says_who_should_have_arrived(browser: Chromium, pages: dict[str, Path]) -> None:
    tab = Tab(browser, pages["deadlock"], 1400)
    assert tab.ask("chosen.now === chosen.recording.moments.length - 1")
    said = tab.text(".fault")
    assert "Warp 4 waits for k_tile_empty[0], parity 0 (phase 0: 1 of 1 arrivals missing)." in said
    assert "should arrive there, and was never executed." in said
    assert "warp 4, for ever" in tab.text("#barriers")


def test_keys_step_forward_and_back_and_change_the_warp(browser: Chromium, pages: dict[str, Path]) -> None:
    tab = Tab(browser, pages["ring"], 1400)
    tab.ask("chosen.pick(0, 20)")
    tab.press("ArrowRight", 3)
    tab.wait("document.getElementById('where').textContent.startsWith('24 of')")
    state = "Array.from(chosen.recording.states.at(chosen.now).slice(0, 400))"
    before = tab.ask(state)
    tab.press("ArrowRight", 60)
    assert tab.ask("chosen.now") == 83
    tab.ask("chosen.go(23)")
    assert tab.ask(state) == before
    tab.focus("#warp")
    tab.press("ArrowDown")
    tab.wait("document.getElementById('of-warp').textContent === '1'")


def test_only_the_steps_of_a_warp(browser: Chromium, pages: dict[str, Path]) -> None:
    tab = Tab(browser, pages["ring"], 1400)
    tab.ask("chosen.pick(4, 0)")
    tab.focus("#own")
    tab.press(" ")
    tab.wait("chosen.only")
    for _ in range(6):
        tab.click("#forward")
        tab.wait("!chosen.waiting")
        assert tab.ask("chosen.recording.moments[chosen.now].warps.includes(4)")


def test_pointing_at_a_line_lights_up_the_others(browser: Chromium, pages: dict[str, Path]) -> None:
    tab = Tab(browser, pages["conflict"], 1400)
    at = tab.ask("chosen.recording.texts.kernel.findIndex((line) => line.includes('A_tile_value[0] <- A['))")
    tab.point(f"#kernel-{at}")
    tab.wait("!!document.querySelector('#cuda .linked')")
    assert "A_tile_value = A[" in tab.text("#cuda .linked")
    assert tab.ask(
        "[...document.querySelectorAll('#schedule .linked')].some((one) => one.textContent.includes('A_tile'))"
    )
    step = tab.ask("chosen.recording.texts.schedule.findIndex((line) => line.startsWith('Distribute'))")
    tab.point(f"#schedule-{step}")
    tab.wait("document.querySelectorAll('#kernel .linked').length > 1")


def test_a_text_leads_to_the_next_execution_by_key(browser: Chromium, pages: dict[str, Path]) -> None:
    tab = Tab(browser, pages["conflict"], 1400)
    tab.ask("chosen.go(0)")
    at = tab.ask("chosen.recording.texts.kernel.findIndex((line) => line.includes('complete'))")
    tab.focus("#kernel")
    tab.ask(f"document.getElementById('kernel').dataset.selected = {at - 1}")
    tab.press("ArrowDown")
    tab.press("Enter")
    tab.wait("document.getElementById('say').textContent.includes('complete')")
    assert (
        tab.ask("chosen.recording.lines[chosen.recording.moments[chosen.now].line - 1]").strip().startswith("barrier")
    )


def test_bank_conflicts_are_counted_and_drawn(browser: Chromium, pages: dict[str, Path]) -> None:
    tab = Tab(browser, pages["conflict"], 1400)
    worst = """chosen.recording.moments.findIndex((one) => one.accesses.some((shown) => shown.space === 'shared' &&
      chosen.parts[3].recording.pictures[chosen.parts[3].keyOf(shown, shown.places[0][1], shown.places[0][3])].why))"""
    tab.ask(f"chosen.go({worst})")
    tab.wait("/conflict/.test(document.getElementById('access').textContent)")
    assert "wavefronts, where" in tab.text("#access")
    assert tab.ask("document.querySelectorAll('#access svg').length") == 1


def test_boxes_and_barriers_of_a_ring(browser: Chromium, pages: dict[str, Path]) -> None:
    tab = Tab(browser, pages["ring"], 1400)
    tab.ask("chosen.go(chosen.recording.flights.find((one) => one.kind === 'TMA load').first)")
    tab.wait("document.getElementById('flights').textContent.includes('TMA load')")
    assert "16 KiB" in tab.text("#flights") and "tells k_tile_full[0]" in tab.text("#flights")
    assert "32 KiB" in tab.text("#barriers")


def test_cp_async_groups_are_in_flight(browser: Chromium, pages: dict[str, Path]) -> None:
    tab = Tab(browser, pages["copies"], 1400)
    tab.ask("chosen.go(chosen.recording.flights.find((one) => one.last > 0).committed)")
    tab.wait("document.getElementById('flights').textContent.includes('group committed')")
    assert "cp.async" in tab.text("#flights")


def test_every_control_has_a_name_and_a_key_reaches_it(browser: Chromium, pages: dict[str, Path]) -> None:
    tab = Tab(browser, pages["race"], 1400)
    nameless = """[...document.querySelectorAll('button, input, select, [role=img], [role=listbox]')]
      .filter((one) => !one.getAttribute('aria-label') && !one.getAttribute('aria-labelledby') &&
        !one.textContent.trim() && !(one.labels || []).length)"""
    assert tab.ask(f"{nameless}.map((one) => one.outerHTML.slice(0, 80))") == []
    everything = "[...document.querySelectorAll('button, input, select, summary, [role=listbox]')]"
    tab.ask(
        f"{everything}.forEach((one, at) => {{ one.dataset.number = at; }}); document.querySelector('.skip').focus()"
    )
    seen = set()
    for _ in range(60):
        tab.press("Tab")
        number = tab.ask("document.activeElement.dataset.number || ''")
        seen.add(number)
    assert {str(at) for at in range(tab.ask(f"{everything}.length"))} <= seen
