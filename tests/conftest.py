"""What every test may use: whole texts compared with files that a person has read."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

# The same few examples in every ordinary run; thousands of new ones with --hypothesis-profile=fuzz.
settings.register_profile("quick", max_examples=100, deadline=None, derandomize=True, database=None)
settings.register_profile("fuzz", max_examples=10_000, deadline=None, database=None, print_blob=True)
settings.load_profile("quick")

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden/ with what the tests produce")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden("naive.cu", text)`: the text must equal tests/golden/naive.cu.

    `pytest --update-golden` writes the files instead; read the diff before you commit it.
    """
    update = bool(request.config.getoption("--update-golden"))

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        if not path.exists():
            pytest.fail(f"There is no {path}: run pytest --update-golden and read what it writes.", pytrace=False)
        expected = path.read_text(encoding="utf-8")
        if text != expected:
            diff = difflib.unified_diff(
                expected.splitlines(), text.splitlines(), f"golden/{name}", "this run", lineterm=""
            )
            pytest.fail("\n".join([*diff, "", "If this is meant: pytest --update-golden"]), pytrace=False)

    return compare
