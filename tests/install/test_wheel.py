"""The built wheel, installed into a fresh environment outside the tree, does what the README says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh virtual environment with the wheel; dependencies come from the running one, tilewright does not."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    # A plain path in a .pth file adds the folder without the .pth files in it, so not the tree that is edited.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    install = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "--quiet"]
    subprocess.run([*install, "--no-deps", "--no-index", str(wheel)], check=True, capture_output=True)
    return folder


def run(environment: Path, *words: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(environment / "bin" / words[0]), *words[1:]]
    return subprocess.run(command, cwd=environment, env=kept, capture_output=True, text=True, check=False)


def test_it_is_the_wheel_that_runs(environment: Path) -> None:
    done = run(environment, "python", "-c", "import tilewright; print(tilewright.__file__)")
    assert Path(done.stdout.strip()).is_relative_to(environment), done.stderr


def test_the_example_of_the_readme_runs(environment: Path) -> None:
    found = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert found is not None
    said = re.search(r"# (\d+\.\d+)$", found[1], re.MULTILINE)
    assert said is not None
    done = run(environment, "python", "-c", found[1])
    assert done.stdout.splitlines()[-1] == said[1], done.stderr


def test_the_recorded_ladder_comes_with_it(environment: Path) -> None:
    done = run(environment, "tilewright", "ladder", "worklog", "--rungs", "best", "--brief", "--json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert row["figure"] == "recorded" and row["tflops"] > 0 and row["share_of_cublas"] > 0


@pytest.mark.cross_section("words", every=3)
@pytest.mark.parametrize(
    "words", [("show", "worklog/6", "--cuda"), ("explain", "worklog/6", "--size", "128"), ("--version",)]
)
def test_its_commands_run(environment: Path, words: tuple[str, ...]) -> None:
    done = run(environment, "tilewright", *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_links_of_its_description_are_absolute(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    links = re.findall(r"\]\(([^)]+)\)", archive.read(name).decode())
    assert links
    assert all(link.startswith(("https://", "#")) for link in links)


def test_it_holds_its_licence_and_nothing_of_the_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if "tests/" in name]
    assert any(name.endswith("bench/recorded/ladder_worklog.jsonl") for name in names)
