"""What every test may use: whole texts compared with files that a person has read, and cross sections of many cases."""

from __future__ import annotations

import difflib
import os
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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a test with `cross_section("rung", "shape", every=4)`, cases outside of the section are slow.

    A case is in it where the places of its values among those of the test, and `at`, add up to a multiple of `every`:
    of 11 shapes each rung meets two or three, and each shape a quarter of the rungs. Tests that go through the same
    list by themselves take different parts of it where they differ in `at`. A case that is asked for by its name is in.
    """
    seen: dict[tuple[str, str], list[object]] = {}
    for item in items:
        section = item.get_closest_marker("cross_section")
        if section is None or not isinstance(item, pytest.Function):
            continue
        total = section.kwargs.get("at", 0) if len(items) > 1 else 0
        for name in section.args:
            value, values = item.callspec.params[name], seen.setdefault((item.nodeid.partition("[")[0], name), [])
            place = next((place for place, other in enumerate(values) if other is value), len(values))
            if place == len(values):
                values.append(value)
            total += place
        if total % section.kwargs["every"]:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of machine code for this run of the tests: its processes compile a kernel once between them."""
    own = tmp_path_factory.getbasetemp()
    return (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "cubins"


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
