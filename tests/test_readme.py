"""The README's example runs, and says what comes out."""

import contextlib
import io
import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_the_example_runs_and_prints_what_it_says() -> None:
    found = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert found is not None
    said = re.search(r"# (\d+\.\d+)$", found[1], re.MULTILINE)
    assert said is not None
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(found[1], {})
    lines = out.getvalue().splitlines()
    assert lines[-1] == said[1]
    assert any("__global__" in line for line in lines)


def test_it_fits_one_screen() -> None:
    assert len(README.read_text().splitlines()) <= 80
