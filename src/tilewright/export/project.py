"""An exported kernel as a folder of files, each of them there whole or not at all."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.artifacts import Cubin
from tilewright.errors import TilewrightError
from tilewright.export.bundle import Bundle
from tilewright.export.checks import check_context
from tilewright.export.context import example_context, project_context
from tilewright.export.description import description
from tilewright.files import parse_json, read_text, replace_file
from tilewright.runtime.cubin_cache import CubinCache

FILES = {
    "{name}.h": "launcher.h.j2",
    "{name}.cu": "launcher.cu.j2",
    "CMakeLists.txt": "CMakeLists.txt.j2",
    "example.cpp": "example.cpp.j2",
    "check.cu": "check.cu.j2",
    "README.md": "README.md.j2",
}
"""What a folder holds beside its cubins and their description, by the template that writes it."""


@dataclass(frozen=True, slots=True)
class Written:
    """files: relative to the folder, in the order of reading."""

    folder: Path
    files: tuple[str, ...]


def write(
    bundle: Bundle,
    folder: Path,
    *,
    command: str = "",
    passed_over: str = "",
    cache: CubinCache | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Written:
    """Write the project into `folder`, which must be new or one that this function wrote.

    command: the command line that made it, for its README. Raises TilewrightError for a folder that holds other things.
    """
    _check_folder(folder)
    _check_writable(folder)
    cubins = _cubins(bundle, cache, progress)
    texts = _texts(bundle, cubins, command, passed_over)
    contents = {file: text.encode() for file, text in texts.items()}
    contents |= {file: cubin.image for file, cubin in cubins.values()}
    (folder / "cubin").mkdir(parents=True, exist_ok=True)
    for stale in _cubins_of_before(folder) - contents.keys():
        (folder / stale).unlink(missing_ok=True)
    for file, content in contents.items():
        replace_file(folder / file, content)
    return Written(folder, tuple(contents))


def _check_writable(folder: Path) -> None:
    """Said before minutes of compiling: the folder, or the first one above it that is there, must take files."""
    there = next(one for one in (folder.absolute(), *folder.absolute().parents) if one.exists())
    try:
        tempfile.TemporaryFile(dir=there).close()
    except OSError:
        raise TilewrightError(
            f"Cannot write a project to {str(folder)!r}: {str(there)!r} takes no files.",
            hint="name a folder elsewhere with --output.",
        ) from None


def _texts(
    bundle: Bundle, cubins: Mapping[tuple[str, str], tuple[str, Cubin]], command: str, passed_over: str
) -> dict[str, str]:
    import jinja2

    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("tilewright.export"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # nothing here is HTML
    )
    templates.filters["capitalize_first"] = lambda text: text[:1].upper() + text[1:]
    context: dict[str, Any] = {
        **project_context(bundle, {key: cubin for key, (_, cubin) in cubins.items()}),
        **example_context(bundle),
        **check_context(bundle),
        "command": command,
        "passed_over": passed_over,
    }
    texts = {
        file.format(name=bundle.name): templates.get_template(template).render(context)
        for file, template in FILES.items()
    }
    texts[f"{bundle.name}.json"] = json.dumps(description(bundle, cubins), indent=2) + "\n"
    return texts


def _cubins(
    bundle: Bundle, cache: CubinCache | None, progress: Callable[[str, int, int], None] | None
) -> dict[tuple[str, str], tuple[str, Cubin]]:
    wanted = [(exported, arch) for exported in bundle.kernels for arch in bundle.archs]
    found = {}
    for number, (exported, arch) in enumerate(wanted):
        if progress is not None:
            progress(f"{exported.entry} for {arch}", number, len(wanted))
        file = f"cubin/{exported.entry}.{arch}.cubin"
        found[exported.entry, arch.name] = file, bundle.cubin(exported, arch, cache)
    return found


def _check_folder(folder: Path) -> None:
    """A folder that is not new must hold an export: what else lies in that one is left alone."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise TilewrightError(f"{str(folder)!r} is a file, and a project is a folder.", hint="choose another --output.")
    if any(folder.iterdir()) and not _descriptions(folder):
        raise TilewrightError(
            f"{str(folder)!r} holds other files, among which a project would get lost.", hint="choose a new folder."
        )


def _descriptions(folder: Path) -> list[dict[str, Any]]:
    """What was exported into a folder before."""
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            data = parse_json(read_text(path))
        except (OSError, ValueError, TilewrightError):
            continue
        if isinstance(data, dict) and str(data.get("written_by", "")).startswith("tilewright "):
            found.append(data)
    return found


def _cubins_of_before(folder: Path) -> set[str]:
    kernels = [kernel for data in _descriptions(folder) for kernel in data.get("kernels", [])]
    return {path.relative_to(folder).as_posix() for kernel in kernels for path in _files(folder, kernel)}


def _files(folder: Path, kernel: dict[str, Any]) -> list[Path]:
    """The cubins of one described kernel, as they are named by us: nothing outside the folder of cubins."""
    return list((folder / "cubin").glob(f"{kernel.get('entry', '')}.sm_*.cubin"))
