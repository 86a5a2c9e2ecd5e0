"""`tilewright devices` and `doctor`."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_runs import Cli

from tilewright.device.catalog import DEVICES
from tilewright.errors import CompileError


@pytest.mark.usefixtures("no_gpu")
def test_devices_lists_the_catalogue_and_says_why_no_gpu_is_at_hand(cli: Cli) -> None:
    ran = cli("devices")
    assert (ran.code, ran.err) == (0, "")
    assert all(spec.name in ran.out for spec in DEVICES)
    assert "At hand: none. No NVIDIA driver is installed here." in ran.out
    assert "\x1b" not in ran.out and max(map(len, ran.out.splitlines())) <= 100
    data = cli("devices", "--json").json
    assert [spec["name"] for spec in data["known"]] == [spec.name for spec in DEVICES]
    assert data["at_hand"] == []


def test_devices_fits_a_narrow_terminal(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    out = cli("devices").out
    assert max(map(len, out.splitlines())) <= 60 and "…" not in out
    assert "RTX 4050 Laptop" in out and "TFLOP/s" in out


def test_devices_tells_all_of_one(cli: Cli) -> None:
    ran = cli("devices", "rtx3090")
    assert ran.out.startswith("RTX 3090\n")
    assert "  sm_count                          82\n" in ran.out
    assert cli("devices", "rtx3090", "--json").json["sm_count"] == 82
    missing = cli("devices", "H2000")
    assert missing.code == 1
    assert missing.err.startswith("There is no device 'H2000'.\n  Hint: did you mean 'H200'? ")


@pytest.mark.usefixtures("no_gpu")
def test_doctor_is_content_without_a_gpu(cli: Cli) -> None:
    ran = cli("doctor")
    assert (ran.code, ran.err) == (0, "")
    assert "Ready: everything that needs no GPU works." in ran.out
    assert "missing, optional  No NVIDIA driver is installed here." in ran.out
    found = {finding["what"]: finding for finding in cli("doctor", "--json").json}
    assert found["test compile"]["state"] == found["test simulation"]["state"] == "ok"
    assert (found["GPU"]["state"], found["GPU"]["needed"]) == ("missing", False)


@pytest.mark.usefixtures("no_gpu")
def test_doctor_fails_and_says_how_to_mend_a_broken_compiler(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> str:
        raise CompileError("The CUDA compiler NVRTC cannot be loaded.", hint="python -m pip install nvrtc")

    monkeypatch.setattr("tilewright.cli.doctor.compiler_version", broken)
    ran = cli("doctor")
    assert ran.code == 1
    assert "python -m pip install nvrtc" in ran.out
    assert "Not ready: NVRTC. The commands above mend it." in ran.out


@pytest.mark.usefixtures("no_gpu")
def test_doctor_tells_of_a_cache_folder_that_cannot_be_written(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "file" / "cubins"))
    found = {finding["what"]: finding for finding in cli("doctor", "--json").json}
    assert found["kernel cache"]["state"] == "broken"
    assert found["kernel cache"]["mend"] == "export TILEWRIGHT_CACHE=/a/writable/folder"
