"""The generated reference: every step with its before and after and its refusals, every law, every public name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import reference

import tilewright as tw
from tilewright.schedule import STEPS
from tilewright.schedule.laws import LAWS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return reference.pages()


def sections(text: str) -> dict[str, str]:
    """What stands below each heading of the second level."""
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_step_has_before_after_fields_and_refusals(texts: dict[str, str]) -> None:
    found = sections(texts["reference/steps.md"])
    assert list(found) == [*(step.__name__ for step in STEPS), "Laws"]
    for step in STEPS:
        text = found[step.__name__]
        before, arrow, after = text.partition("\n->\n")
        assert before.startswith("\n\n```text\n") and arrow and after, step
        assert f"```python\n{step.__name__}(" in text
        assert "**Refused**\n\n* `" in text, step


def test_every_pinned_refusal_of_a_step_is_in_the_reference() -> None:
    pinned = sum(
        len(re.findall(r"^  step (\d+) of \1: ", path.read_text("utf-8"), re.MULTILINE))
        for path in reference.REFUSALS.glob("*_refusals.txt")
    )
    assert sum(map(len, reference.refusals().values())) == pinned > 100


def test_a_refusal_is_told_with_the_way_out(texts: dict[str, str]) -> None:
    assert (
        "* `Split('m_thread', 5, into=('a', 'b'))`: Cannot split loop 'm_thread' by 5: its extent 32 is not a "
        "multiple. *use 2, 4, 8, 16.*"
    ) in texts["reference/steps.md"]


def test_every_law_is_told(texts: dict[str, str]) -> None:
    laws = sections(texts["reference/steps.md"])["Laws"]
    assert laws.count("\n* **") == len(LAWS)
    assert "* **TMA boxes are whole**: TMA moves boxes: " in laws


def test_every_public_name_is_in_the_api_or_a_step(texts: dict[str, str]) -> None:
    found = sections(texts["reference/api.md"])
    assert set(found) | {step.__name__ for step in STEPS} == set(tw.__all__)
    for name, text in found.items():
        assert len(text.split()) > 3, name
    assert "```python\nmatmul(\n    a: " in found["matmul"]
    assert "* `cuda`: The CUDA C++ text." in found["Build"]
    assert "* `Route.TMA`" in found["Route"]


def test_no_address_of_an_object_is_in_the_reference(texts: dict[str, str]) -> None:
    assert not any(" at 0x" in text for text in texts.values())


def test_every_page_that_a_reader_may_want_is_in_the_navigation(texts: dict[str, str]) -> None:
    listed = set(re.findall(r": ([\w/]+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE))
    notebook_pages = {f"notebooks/{path.stem}.md" for path in (ROOT / "docs" / "notebooks").glob("*.ipynb")}
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} | {"rungs/README.md", *texts, *notebook_pages}
    assert listed == pages
