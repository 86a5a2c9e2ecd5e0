"""The page of guarantees: each promise names a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)


def test_every_test_that_is_named_exists() -> None:
    assert len(NAMED) >= 20
    missing = [f"{file}::{name}" for file, name in NAMED if f"def {name}(" not in (ROOT / file).read_text("utf-8")]
    assert missing == []


def test_every_line_of_a_table_names_a_test() -> None:
    rows = [
        line
        for line in PAGE.splitlines()
        if line.startswith("|") and not line.startswith(("|---", "| promise", "| it"))
    ]
    assert rows and all("::" in row for row in rows)
