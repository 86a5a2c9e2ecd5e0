"""Files that are there whole, or as they were, whoever else writes into the folder."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from tilewright.files import replace_file


def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    for content in ("one", b"two"):
        replace_file(tmp_path / "file", content)
    assert (tmp_path / "file").read_bytes() == b"two"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_temporary_names_are_new_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    opened = Path.open

    def told(path: Path, mode: str) -> object:
        made.append(path.name)
        assert mode == "xb"
        return opened(path, mode)

    monkeypatch.setattr(Path, "open", told)
    for _ in range(3):
        replace_file(tmp_path / "file", "text")
    assert len(set(made)) == 3


def test_a_link_in_the_place_of_the_temporary_file_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    monkeypatch.setattr(secrets, "token_hex", lambda count: "guessed")
    (tmp_path / ".file.guessed.tmp").symlink_to(victim)
    with pytest.raises(FileExistsError):
        replace_file(tmp_path / "file", "text")
    assert victim.read_text() == "mine" and not (tmp_path / "file").exists()
