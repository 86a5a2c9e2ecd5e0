"""The scripts in benchmarks/ name what the library has, and the tables made of their records."""

from __future__ import annotations

import ast
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from benchmarks import emulation_table

from tilewright.errors import MissingExtra

SCRIPTS = sorted((Path(__file__).parents[2] / "benchmarks").rglob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_scripts_import_what_there_is(script: Path) -> None:
    """Most need a GPU or PyTorch to run, so that nothing else would see a name that is gone."""
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tilewright"):
            assert node.module is not None
            try:
                module = import_module(node.module)
                missing_names = [one.name for one in node.names if not _has(module, one.name)]
            except MissingExtra:
                continue
            assert not missing_names, f"{node.module} has no {missing_names}"


def _has(module: Any, name: str) -> bool:
    if hasattr(module, name):
        return True
    try:
        import_module(f"{module.__name__}.{name}")
    except ModuleNotFoundError:
        return False
    return True


def _run(date: str, *rows: dict[str, Any], device: str = "NVIDIA H200") -> str:
    origin = {"device": device, "torch": "2", "command": f"run {date}", "date": date}
    return "".join(json.dumps(row) + "\n" for row in (origin, *rows))


def test_later_rows_of_products_by_pieces_replace_earlier_ones(tmp_path: Path) -> None:
    def timed(precision: str, tflops: float) -> dict[str, Any]:
        problem = {"problem": "4096x4096x4096", "orders": "NT", "precision": precision}
        return {**problem, "us": 1.0, "tflops": tflops, "of_cublas": 2.0}

    error = {"operands": "normal", "size": 64, "k": 4096, "precision": "f16x3", "relative": 1e-7, "share_of_bound": 0.2}
    weight = {"weight": "4096x14336", "rows": 16, "precision": "f16x3", "us": 60.0, "pieces_gb_per_s": 3900.0}
    weight |= {"of_reading": 0.9, "of_summing": 1.1, "of_cublas": 1.5, "ran": "f16x3"}
    product = {"problem": "4096x4096x4096", "precision": "f16x3", "relative_error": 2e-7, "tflops": 150.0}
    product |= {"of_cublas": 3.0, "right": True}
    old, new, single = (tmp_path / name for name in ("old", "new", "single"))
    old.write_text(_run("2026-01-01", timed("f16x3", 100.0), timed("bf16x9", 50.0), error))
    solver = {"example": "conjugate_gradients", "lines": ["precision  0", "     tf32  1"]}
    new.write_text(_run("2026-01-02", timed("f16x3", 200.0), weight, solver) + _run("2026-01-03", product))
    single.write_text(emulation_table.merged([old, new]))
    text = emulation_table.section([single])
    assert text == emulation_table.section([old, new])
    assert len(single.read_text().splitlines()) == 3 + 6
    assert "| f16x3 | 200 |" in text and "| bf16x9 | 50 |" in text and "| 100 |" not in text
    assert text.index("NT | bf16x9") < text.index("NT | f16x3")
    assert "| 4096 x 14336 | 16 | f16x3 | f16x3 | 60.0 | 3900 | 0.90 | 1.10 | 1.50 |" in text
    assert "| 4096 x 4096 x 4096 | f16x3 | 150.0 | 3.00 | 2.0e-07 |" in text
    assert "### `examples/conjugate_gradients.py`\n\n```text\nprecision  0\n     tf32  1\n```" in text
    assert all(f"`run 2026-01-0{day}`" in text for day in (1, 2, 3))
    other = tmp_path / "other"
    other.write_text(_run("2026-01-04", {**weight, "us": 81.0}, timed("f16x3", 300.0), device="NVIDIA H100 80GB HBM3"))
    both = emulation_table.section([single, other])
    assert "| H200 | 4096 x 14336 | 16 | f16x3 | f16x3 | 60.0 |" in both
    assert "| H100 SXM | 4096 x 14336 | 16 | f16x3 | f16x3 | 81.0 |" in both
    assert "| f16x3 | 200 |" in both and "| 300 |" not in both
