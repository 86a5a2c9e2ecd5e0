"""The page in a browser: it loads without errors, its charts have data, and mouse and keyboard reach everything."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.report.chromium import BROWSER, Chromium, Tab

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome is installed here")

_SHOWN = "[...document.querySelectorAll('article.rung:not([hidden])')].map((one) => one.dataset.rung)"
_FOCUSED = "document.activeElement"


@pytest.fixture(scope="module")
def opened(browser: Chromium, written: Path) -> Tab:
    return Tab(browser, written)


@pytest.fixture
def tab(opened: Tab) -> Tab:
    """The page on a desk, with the top rung and the default size chosen."""
    opened.ask("chosen.size = sizeBox.value = '4096'; logBox.checked = false; pickRung('worklog/12'); scrollTo(0, 0)")
    return opened


@pytest.fixture(scope="module")
def phone(browser: Chromium, written: Path) -> Tab:
    return Tab(browser, written, width=390, dark=True)


def _dots(tab: Tab, chart: str) -> int:
    counted = f"document.getElementById('{chart}').data.map((one) => one.x.filter((x) => x !== null).length)"
    return sum(tab.ask(counted))


def test_the_page_loads_without_errors_and_fetches_nothing(tab: Tab, phone: Tab) -> None:
    for name in ("worklog/1", "worklog/8"):
        tab.ask(f"pickRung('{name}')")
        phone.ask(f"pickRung('{name}')")
    assert (tab.troubles, phone.troubles) == ([], [])


@pytest.mark.parametrize("chart", ["ladder-chart", "roof-chart", "terms-chart"])
def test_charts_have_data(tab: Tab, chart: str) -> None:
    assert _dots(tab, chart) >= 3
    assert tab.ask(f"document.querySelectorAll('#{chart} .trace').length") >= 3


def test_the_top_rung_is_shown_first_and_a_click_shows_another(tab: Tab) -> None:
    assert tab.ask(_SHOWN) == ["worklog/12"]
    tab.click("#rungs button:nth-child(2)")
    assert (tab.ask(_SHOWN), tab.ask("location.hash")) == (["worklog/8"], "#worklog%2F8")
    assert tab.text("#h-tiles .which") == "rung 8"
    tab.click("#previous")
    assert tab.ask(_SHOWN) == ["worklog/1"]


def test_a_bar_of_the_chart_tells_its_numbers_and_picks_its_rung(tab: Tab) -> None:
    tab.point("#ladder-chart .bars .point:nth-child(2)")
    tab.wait("document.querySelector('#ladder-chart .hoverlayer').textContent.includes('32.7 TFLOP/s')")
    assert "63.9 % of cuBLAS" in tab.text("#ladder-chart .hoverlayer")
    tab.click("#ladder-chart .bars .point:nth-child(2)")
    tab.wait(f"{_SHOWN}[0] === 'worklog/8'")


def test_the_table_leads_into_a_rung(tab: Tab) -> None:
    assert "32.763.9 %" in tab.text("#ladder-table tbody tr:nth-child(2)")
    tab.focus("#ladder-table tbody tr:nth-child(2) button")
    tab.press("Enter")
    assert (tab.ask(_SHOWN), tab.ask(f"{_FOCUSED}.id")) == (["worklog/8"], "inside")


def test_the_primer_shows_what_a_column_costs_and_what_padding_saves(tab: Tab) -> None:
    assert "Lanes 16 apart meet in the same bank" in tab.text("#primer .say")
    tab.click("#primer button:nth-of-type(3)")
    assert "32 wavefronts, 32 times as long" in tab.text("#primer .say")
    assert tab.ask("document.querySelectorAll('#primer svg g[role=img]').length") == 32
    tab.focus("#primer input")
    tab.press("ArrowRight")
    assert "one word of padding" in tab.text("#primer .say") and "1 wavefront" in tab.text("#primer .say")
    tab.click("#primer button:nth-of-type(2)")


def test_conflicts_are_stepped_through_by_mouse_and_by_key(tab: Tab) -> None:
    tab.ask("pickRung('worklog/8')")
    said = tab.text("#banks .say")
    assert "takes 4 wavefronts, where 1 would do: 3 are bank conflicts (lanes 4 apart share a bank)" in said
    tab.click("#banks button:nth-of-type(2)")
    assert "Wavefront 1 of 4 serves lanes" in tab.text("#banks .say")
    tab.focus("#banks svg > g:nth-of-type(3) > [role=button]")
    tab.press("Enter")
    assert "Wavefront 3 of 4 serves lanes" in tab.text("#banks .say")


def test_pointing_at_a_bank_tells_what_it_gives(tab: Tab) -> None:
    tab.ask("pickRung('worklog/8')")
    tab.point("#banks svg [role=button] + g g rect")
    tab.wait("!document.getElementById('tip').hidden")
    assert tab.text("#tip").endswith("\nfor lanes 0, 16")


def test_back_leads_to_the_rung_before(tab: Tab) -> None:
    tab.ask("pickRung('worklog/1')")
    tab.ask("pickRung('worklog/8')")
    tab.ask("history.back()")
    tab.wait("chosen.rung === 'worklog/1'")
    assert tab.ask(_SHOWN) == ["worklog/1"]


def test_where_conflicts_are_worst_is_a_click_away(tab: Tab) -> None:
    assert tab.text("#banks-elsewhere").startswith("Rung 8 has the most conflicts on this ladder: 67 %")
    tab.click("#banks-elsewhere button")
    assert (tab.ask(_SHOWN), tab.text("#banks-elsewhere")) == (["worklog/8"], "")


def test_sliders_and_choosers_draw_again(tab: Tab) -> None:
    assert "Thread 37 is lane 5 of warp 1" in tab.text("#tiles .say")
    tab.focus("#tiles input")
    tab.press("ArrowRight", 3)
    assert "Thread 40 is lane 8 of warp 1" in tab.text("#tiles .say")
    assert "requests for A" in tab.text("#loads .say")
    tab.focus("#loads select")
    tab.press("ArrowDown")
    assert "requests for B" in tab.text("#loads .say")
    tab.focus("#order input")
    tab.press("ArrowRight")
    assert "Wave 2 of 4" in tab.text("#order .say")
    assert "Loads run up to 1 step ahead" in tab.text("#timeline .say")


def test_another_size_has_other_predictions_and_says_that_nothing_is_recorded(tab: Tab) -> None:
    known = tab.text("#relief")
    assert "Recorded: 37.8 TFLOP/s" in known and tab.text("#ladder-note") == ""
    tab.focus("#size")
    tab.press("ArrowUp", 2)
    assert tab.ask("chosen.size") == "1024"
    assert tab.text("#relief") != known and "Recorded" not in tab.text("#relief")
    assert tab.text("#ladder-note").startswith("Nothing is recorded for H200 at 1024")
    assert "1024 × 1024 × 1024" in tab.text("#ladder-table caption")
    tab.focus("#log")
    tab.press(" ")
    tab.wait("document.getElementById('ladder-chart').layout.yaxis.type === 'log'")


def test_tab_reaches_every_control_and_shows_where_it_is(tab: Tab) -> None:
    everything = "[...document.querySelectorAll('main button, main input, main select, summary, nav select')]"
    visible = f"{everything}.filter((one) => one.offsetParent)"
    tab.ask(f"{visible}.forEach((one, at) => {{ one.dataset.number = at; }}); document.querySelector('.skip').focus()")
    seen, outlines = set(), set()
    for _ in range(120):
        tab.press("Tab")
        number, outline = tab.ask(f"[{_FOCUSED}.dataset.number || '', getComputedStyle({_FOCUSED}).outlineStyle]")
        if number:
            seen.add(int(number))
            outlines.add(outline)
    assert seen == set(range(tab.ask(f"{visible}.length")))
    assert outlines == {"solid"}


def test_every_control_and_picture_has_a_name(tab: Tab) -> None:
    nameless = """[...document.querySelectorAll('main button, main input, main select, [role=img], [role=button]')]
      .filter((one) => !one.getAttribute('aria-label') && !one.textContent.trim() && !(one.labels || []).length)"""
    assert tab.ask(f"{nameless}.map((one) => one.outerHTML.slice(0, 80))") == []


@pytest.mark.parametrize("name", ["worklog/1", "worklog/8", "worklog/12"])
def test_a_phone_needs_no_sideways_scrolling(phone: Tab, name: str) -> None:
    phone.ask(f"pickRung('{name}'); document.querySelectorAll('details').forEach((one) => {{ one.open = true; }})")
    assert phone.ask("[innerWidth, document.documentElement.scrollWidth]") == [390, 390]
    assert phone.ask("document.querySelector('#primer svg').getBoundingClientRect().right") <= 390


def test_a_dark_screen_gets_light_text_on_a_dark_page_and_in_its_charts(tab: Tab, phone: Tab) -> None:
    colours = "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    assert tab.ask(colours) == ["rgb(252, 252, 250)", "rgb(29, 35, 39)"]
    assert phone.ask(colours) == ["rgb(20, 23, 26)", "rgb(232, 234, 236)"]
    chart = "document.getElementById('roof-chart').layout.font.color"
    assert (tab.ask(chart), phone.ask(chart)) == ("#1d2327", "#e8eaec")
