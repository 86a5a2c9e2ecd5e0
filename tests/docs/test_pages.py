"""Pages of the rungs: what they show, and when they count as out of date."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tilewright.ladders import LADDERS
from tilewright.report.figures import TIMED_SIZE, recorded_figure
from tilewright.report.pages import pages, stale, written
from tilewright.report.pages.excerpt import main_loop
from tilewright.report.pages.rung import file_name

FOLDER = Path(__file__).parents[2] / "docs" / "rungs"


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return pages(["te"])


def test_the_pages_of_a_ladder_are_up_to_date(texts: dict[str, str]) -> None:
    assert stale(FOLDER, texts) == []


def test_every_rung_has_a_page_and_a_line_in_the_index(texts: dict[str, str]) -> None:
    for ladder, rungs in LADDERS.items():
        for rung in rungs:
            assert (FOLDER / ladder / file_name(rung)).is_file(), rung.name
            assert f"({ladder}/{file_name(rung)})" in texts["README.md"]


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


def test_changed_missing_and_left_over_pages_are_out_of_date(texts: dict[str, str], tmp_path: Path) -> None:
    written(tmp_path, texts)
    assert stale(tmp_path, texts) == []
    page = tmp_path / "te" / "1_blocked.md"
    page.write_text(page.read_text().replace("sectors |", "sector |"))
    (tmp_path / "te" / "2_thread_tile.md").unlink()
    (tmp_path / "te" / "gone.md").write_text("x")
    assert stale(tmp_path, texts) == ["te/1_blocked.md", "te/2_thread_tile.md", "te/gone.md"]
    written(tmp_path, texts)
    assert stale(tmp_path, texts) == []


def test_registers_of_another_compiler_are_not_compared(texts: dict[str, str], tmp_path: Path) -> None:
    written(tmp_path, texts)
    page = tmp_path / "te" / "4_vectorised.md"
    other = re.sub(r"registers a thread \| \d+", "registers a thread | 1", page.read_text())
    page.write_text(other)
    assert stale(tmp_path, texts) == ["te/4_vectorised.md"]
    page.write_text(re.sub(r"NVRTC [\d.]+", "NVRTC 1.0", other))
    assert stale(tmp_path, texts) == []
    page.write_text(page.read_text().replace("| shared loads | ", "| shared loads | 1"))
    assert stale(tmp_path, texts) == ["te/4_vectorised.md"]


def test_a_kernel_without_a_loop_over_k_is_shown_whole() -> None:
    assert main_loop("__global__ void f() {\n    x();\n}") == "    x();\n}"


def test_a_long_loop_is_cut_short() -> None:
    body = "\n".join(f"        x{at}();" for at in range(200))
    text = main_loop(f"__global__ void f() {{\n    for (int k = 0; k < K; ++k) {{\n{body}\n    }}\n}}")
    assert len(text.splitlines()) == 91 and text.endswith("// 112 more lines")
