"""What MkDocs calls while it builds the site: it adds the generated pages."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))  # tables are made there

import notebooks
import reference
from mkdocs.structure.files import File, Files
from rung_pages import pages


def on_files(files: Files, config: Any) -> Files:
    """The generated pages beside those of the folder."""
    for path, text in {**reference.pages(), **_rungs(), **_notebooks()}.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Decision records come behind other pages in the results of a search."""
    if page.file.src_uri.startswith("decisions/"):
        page.meta.setdefault("search", {"boost": 0.2})
    return markdown


@cache
def _notebooks() -> dict[str, str]:
    return notebooks.pages()


@cache  # a server that builds again when a page changes need not simulate again
def _rungs() -> dict[str, str]:
    """A page for every rung, and their index."""
    return {f"rungs/{path}": text for path, text in pages().items()}
