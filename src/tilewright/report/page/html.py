"""The page as text: a template, a style sheet and a few scripts, which lie beside this file, and the data."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from types import ModuleType
from typing import Any

from tilewright.extras import require
from tilewright.files import write_whole
from tilewright.report.page.ladder import Page
from tilewright.report.templates import rendered

_SCRIPTS = (
    "draw.js",
    "charts.js",
    "roof.js",
    "table.js",
    "tiles.js",
    "loads.js",
    "banks.js",
    "primer.js",
    "timeline.js",
    "order.js",
    "page.js",
)


def require_plotly() -> ModuleType:
    """Raises MissingExtra with the pip line; asked before any work is done."""
    return require("plotly", "The report page")


def page_text(page: Page) -> str:
    """The page as one HTML document that loads nothing. Raises MissingExtra."""
    require_plotly()
    from plotly.offline import get_plotlyjs

    folder = files("tilewright.report.page") / "assets"
    return rendered(
        folder / "page.html",
        page=page,
        style=_style(folder),
        plotly=get_plotlyjs(),
        scripts="\n".join((folder / name).read_text("utf-8") for name in _SCRIPTS),
        data=_json(page.data),
        highlight=_highlighted,
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
    )


def write_page(page: Page, path: Path) -> None:
    """Write the page, whole or not at all. Raises TilewrightError where that is not possible."""
    write_whole(path, page_text(page))


def _json(data: dict[str, Any]) -> str:
    """JSON that may stand inside a script element."""
    return json.dumps(_finite(data), separators=(",", ":"), allow_nan=False).replace("</", "<\\/")


def _finite(data: Any) -> Any:
    """Plain values, rounded to what a picture can show."""
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_finite(value) for value in data]
    if isinstance(data, float):
        return float(f"{data:.6g}") if math.isfinite(data) else None
    return data


def _style(folder: Traversable) -> str:
    """The style sheet, with colours of program text for both schemes."""
    from pygments.formatters.html import HtmlFormatter

    light = HtmlFormatter(style="default").get_style_defs(".code")
    dark = HtmlFormatter(style="github-dark").get_style_defs(".code")
    own = (folder / "style.css").read_text("utf-8")
    return f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n{own}"


def _highlighted(text: str, language: str) -> Any:
    """Program text as HTML, marked up for the style sheet."""
    from markupsafe import Markup
    from pygments import highlight
    from pygments.formatters.html import HtmlFormatter
    from pygments.lexers import get_lexer_by_name

    return Markup(highlight(text, get_lexer_by_name(language), HtmlFormatter(nowrap=True)))
