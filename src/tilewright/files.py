"""Files that are there whole, or as they were."""

from __future__ import annotations

import os
from pathlib import Path


def replace_file(path: Path, content: str | bytes) -> None:
    """Write beside the place and rename. content: text is written as UTF-8. Raises OSError where it cannot be."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        unfinished.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
