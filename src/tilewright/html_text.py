"""What a notebook shows of a value: tables and program text as HTML, with no style but what the notebook has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def code(title: str, text: str) -> str:
    """Program text under a title.

    >>> code("a < b", "x = y & z")
    '<div><strong>a &lt; b</strong><pre>x = y &amp; z</pre></div>'
    """
    return f"<div><strong>{escape(title)}</strong><pre>{escape(text)}</pre></div>"


def folded(title: str, text: str) -> str:
    """Program text that a click on its title shows."""
    return f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>"


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, below: str = "") -> str:
    """A table under a title; whole numbers have their thousands parted. below: a sentence under it.

    >>> table("sizes", ("what", "bytes"), [("tile", 16384)]).partition("<tbody>")[2]
    '<tr><td>tile</td><td>16,384</td></tr></tbody></table></div>'
    """
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{escape(_shown(cell))}</td>' for cell in row)}</tr>" for row in rows)
    said = f"<div>{escape(below)}</div>" if below else ""
    return (
        f"<div><strong>{escape(title)}</strong>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{said}</div>"
    )


def _shown(cell: object) -> str:
    match cell:
        case int():
            return f"{cell:,}"
        case float():
            return f"{cell:,.4g}"
        case _:
            return str(cell)
