"""Pages of the rungs: what they show, and that all their links lead to one."""

from __future__ import annotations

import re
from posixpath import dirname, join, normpath

import pytest
from rung_pages import pages, paths
from rung_pages.excerpt import main_loop
from rung_pages.index import INDEX
from rung_pages.rung import file_name

from tilewright.ladders import LADDERS
from tilewright.report.figures import TIMED_SIZE, recorded_figure


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return pages(["te"])


def test_every_rung_has_a_page_and_a_line_in_the_index(texts: dict[str, str]) -> None:
    names = {f"{ladder}/{file_name(rung)}" for ladder, rungs in LADDERS.items() for rung in rungs}
    assert {INDEX, *names} == set(paths())
    assert all(f"]({name})" in texts[INDEX] for name in names)
    assert set(texts) == {INDEX, *(name for name in names if name.startswith("te/"))}


def test_links_of_a_page_lead_to_pages(texts: dict[str, str]) -> None:
    for name in (name for name in texts if name != INDEX):
        links = re.findall(r"\]\(([^)#\s]+)", texts[name])
        assert links and all(normpath(join(dirname(name), link)) in paths() for link in links)


def test_a_page_has_all_that_is_known_of_a_rung(texts: dict[str, str]) -> None:
    text = texts["te/4_vectorised.md"]
    sections = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert sections == ["What is new", "The program", "The CUDA of it", "What it costs", "Occupancy", "Speed"]
    assert "+ Vectorize(" in text and "for k_in in 16" in text and "| shared loads |" in text
    assert "[&larr; te/3v virtual_threads](3v_virtual_threads.md)" in text
    assert "[te/5 double_buffered &rarr;](5_double_buffered.md)" in text


def test_a_speed_is_the_recorded_one(texts: dict[str, str]) -> None:
    (rung,) = (rung for rung in LADDERS["te"] if rung.label == "4")
    figure = recorded_figure(rung, TIMED_SIZE)
    assert figure is not None
    assert f"| f32 | {figure.tflops:.2f} |" in texts["te/4_vectorised.md"]
    assert figure.command in texts["te/4_vectorised.md"]


def test_a_kernel_without_a_loop_over_k_is_shown_whole() -> None:
    assert main_loop("__global__ void f() {\n    x();\n}") == "    x();\n}"


def test_a_long_loop_is_cut_short() -> None:
    body = "\n".join(f"        x{at}();" for at in range(200))
    text = main_loop(f"__global__ void f() {{\n    for (int k = 0; k < K; ++k) {{\n{body}\n    }}\n}}")
    assert len(text.splitlines()) == 91 and text.endswith("// 112 more lines")
