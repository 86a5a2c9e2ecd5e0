"""Pages from templates that lie in the package."""

from __future__ import annotations

from importlib.resources.abc import Traversable
from typing import Any

import jinja2


def rendered(template: Traversable, **values: Any) -> str:
    """A page of HTML; what is put into it is escaped, and a name that nobody gives is an error."""
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.from_string(template.read_text("utf-8")).render(**values)
