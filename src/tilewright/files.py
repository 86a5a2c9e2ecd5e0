"""Files that are there whole, or as they were."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def replace_file(path: Path, content: str | bytes) -> None:
    """Write beside the place and rename. content: text is written as UTF-8. Raises OSError where it cannot be.

    The temporary name is random and must be new: a link that somebody has put there is not followed.
    """
    unfinished = path.with_name(f".{path.name[:64]}.{secrets.token_hex(8)}.tmp")
    with unfinished.open("xb") as file:
        try:
            file.write(content.encode() if isinstance(content, str) else content)
            file.close()
            os.replace(unfinished, path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
