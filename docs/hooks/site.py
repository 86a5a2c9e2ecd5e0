"""What MkDocs calls while it builds the site: it adds the generated pages."""

from __future__ import annotations

from typing import Any

import reference
from mkdocs.structure.files import File, Files


def on_files(files: Files, config: Any) -> Files:
    """The generated pages beside those of the folder."""
    for path, text in reference.pages().items():
        files.append(File.generated(config, path, content=text))
    return files
