"""The notebooks of the documentation: run, and as pages of the site with what they print."""

from __future__ import annotations

from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "notebooks"

_SECONDS_A_CELL = 300


def names() -> list[str]:
    """The notebooks, without their ending."""
    return sorted(path.stem for path in FOLDER.glob("*.ipynb"))


def executed(name: str) -> Any:
    """A notebook with its outputs. Raises CellExecutionError where a cell fails."""
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    with TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook, timeout=_SECONDS_A_CELL, kernel_name="python3", resources={"metadata": {"path": folder}}
        )
        return client.execute()


def page(name: str, notebook: Any) -> str:
    """A notebook with its outputs as Markdown, and a link to the file."""
    parts = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
        else:
            parts += [f"```python\n{cell.source}\n```", *(_shown(output) for output in cell.outputs)]
    parts.insert(1, f"[The notebook]({name}.ipynb), to run and to change. Below each cell stands what it gave.")
    return "\n\n".join(parts) + "\n"


def _shown(output: Any) -> str:
    """An output as a notebook shows it: HTML where there is some, on one line, as Markdown needs it."""
    if output.output_type == "stream":
        return f"```text\n{output.text.rstrip()}\n```"
    html = output.data.get("text/html")
    if html is None:
        return f"<pre>{_on_one_line(escape(output.data['text/plain']))}</pre>"
    return f'<div class="output" data-search-exclude>{_on_one_line(html)}</div>'


def _on_one_line(html: str) -> str:
    return html.replace("\n", "&#10;")


def pages() -> dict[str, str]:
    """The pages by their path in the site; every notebook runs."""
    return {f"notebooks/{name}.md": page(name, executed(name)) for name in names()}
