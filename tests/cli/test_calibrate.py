"""`benchmarks/calibrate.py` on a machine without a GPU, and the page of its records."""

import json
from pathlib import Path

import calibrate
import pytest
import write_page

PAGE = Path(__file__).parents[2] / "docs" / "calibration.md"
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu_it_says_so_shortly(capsys: pytest.CaptureFixture[str]) -> None:
    assert calibrate.main(["worklog/6"]) == 1
    said = capsys.readouterr()
    assert said.out == "" and "No NVIDIA driver is installed" in said.err and len(said.err.splitlines()) <= 2


def test_the_page_is_what_the_records_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert write_page.main(["calibration", str(PAGE), "--check"]) == 0
    old = tmp_path / "old.md"
    old.write_text(PAGE.read_text().replace("8,388,608", "8,388,609"))
    assert write_page.main(["calibration", str(old), "--check"]) == 1
    assert "is not what the records say." in capsys.readouterr().err
    assert write_page.main(["calibration", str(old)]) == 0
    assert old.read_text() == PAGE.read_text()


def test_an_unknown_rung_is_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    assert calibrate.main(["worklog/66"]) == 1
    assert "did you mean 'worklog/6'?" in capsys.readouterr().err


def test_a_record_is_recounted_without_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = json.loads((RESULTS / "calibration_ampere_h200_512.json").read_text())
    wanted["rungs"] = {"ampere/1": wanted["rungs"]["ampere/1"]}
    old = tmp_path / "old.json"
    text = json.dumps(wanted)
    assert "[311296, " in text
    old.write_text(text.replace("[311296, ", "[163840, "))
    assert write_page.main(["recount", str(old)]) == 0
    assert "ampere/1: 7 of 7 exact counts equal" in capsys.readouterr().out
    assert json.loads(old.read_text())["rungs"] == wanted["rungs"]
