"""Compiled kernels on disk, so that a kernel is compiled once per machine and not once per process.

One file an entry:

    tilewright cubin 1\\n
    <sha256 of the rest, in hex>\\n
    <report: one line of JSON>\\n
    <image>

The name of the file is the sha256 of everything that decides the machine code, so an entry never goes stale
and is never rewritten with other content. It is written beside its place and renamed: a reader sees a whole
entry or none, however many processes write and wherever one is killed. An entry that does not match its
checksum is a miss and is removed.

The cache never makes a compile fail. A folder that cannot be used is reported once, in `problem`, and from
then on every look-up is a miss.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from dataclasses import asdict
from pathlib import Path

import platformdirs

from tilewright.artifacts import Cubin, CudaSource, Resources

FOLDER_VARIABLE = "TILEWRIGHT_CACHE"

_FORMAT = 1
_HEADER = f"tilewright cubin {_FORMAT}\n".encode()
_CHECKSUM_CHARS = 64
_SUFFIX = ".cubin"
_UNFINISHED_SUFFIX = ".tmp"
# A write takes milliseconds: what is an hour old was left by a process that was killed.
_UNFINISHED_IS_STALE_AFTER_SECONDS = 3600.0


def cache_folder() -> Path:
    """The folder of the cache: $TILEWRIGHT_CACHE, or `cubins` in the user's cache folder of this platform."""
    chosen = os.environ.get(FOLDER_VARIABLE)
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("tilewright")) / "cubins"


def cache_key(source: CudaSource, arch: str, options: tuple[str, ...], compiler: str) -> str:
    """The sha256, in hex, of all that decides the machine code of a kernel."""
    parts = (str(_FORMAT), source.text, source.entry, arch, *options, compiler)
    digest = hashlib.sha256()
    for part in parts:
        encoded = part.encode()
        # Its length goes first, so that no two lists of parts run together into the same bytes.
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.hexdigest()


class CubinCache:
    """Cubins by key in one folder, shared by any number of threads and processes.

    folder: None for `cache_folder()`. problem: one sentence once the folder turned out to be unusable, else None.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = cache_folder() if folder is None else folder
        self.problem: str | None = None
        self._is_swept = False

    def load(self, key: str) -> Cubin | None:
        """The entry called `key`, or None. A damaged entry is removed and is a miss."""
        path = self._path(key)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as failure:
            self._report(failure)
            return None
        cubin = _decoded(content)
        if cubin is None:
            self._remove(path)
        return cubin

    def store(self, key: str, cubin: Cubin) -> None:
        """Keep `cubin` as `key`. Does nothing, but for `problem`, where the folder cannot be written."""
        if self.problem is not None:
            return
        path = self._path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._sweep()
            _write_and_rename(path, _encoded(cubin))
        except OSError as failure:
            self._report(failure)

    def entries(self) -> list[Path]:
        """The files of the cache, one an entry."""
        return sorted(self.folder.glob(f"??/*{_SUFFIX}"))

    def clear(self) -> int:
        """Remove every entry; how many there were."""
        entries = self.entries()
        for path in entries:
            self._remove(path)
        return len(entries)

    def _path(self, key: str) -> Path:
        # 256 folders, so that a tuner's tens of thousands of entries do not share one.
        return self.folder / key[:2] / f"{key}{_SUFFIX}"

    def _remove(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as failure:
            self._report(failure)

    def _report(self, failure: OSError) -> None:
        if self.problem is None:
            reason = failure.strerror or type(failure).__name__
            self.problem = (
                f"The kernel cache in {self.folder} cannot be used ({reason}), so kernels are compiled anew "
                f"in every process; set {FOLDER_VARIABLE} to a folder that can be written."
            )

    def _sweep(self) -> None:
        """Remove, once per cache object, what killed writers left behind."""
        if self._is_swept:
            return
        self._is_swept = True
        newest_stale = time.time() - _UNFINISHED_IS_STALE_AFTER_SECONDS
        for path in self.folder.glob(f"??/*{_UNFINISHED_SUFFIX}"):
            try:
                if path.stat().st_mtime < newest_stale:
                    path.unlink(missing_ok=True)
            except FileNotFoundError:
                continue  # another process swept it first


def _write_and_rename(path: Path, content: bytes) -> None:
    # Not tempfile.mkstemp: its files are private, and a cache folder may be shared by several users.
    unfinished = path.with_name(f"{path.stem[:8]}.{os.getpid()}.{secrets.token_hex(8)}{_UNFINISHED_SUFFIX}")
    try:
        with unfinished.open("xb") as file:
            file.write(content)
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def _encoded(cubin: Cubin) -> bytes:
    report = {
        "entry": cubin.entry,
        "arch": cubin.arch,
        "resources": asdict(cubin.resources),
        "log": cubin.log,
        "compiler": cubin.compiler,
        "compile_seconds": cubin.compile_seconds,
    }
    rest = json.dumps(report).encode() + b"\n" + cubin.image
    return _HEADER + hashlib.sha256(rest).hexdigest().encode() + b"\n" + rest


def _decoded(content: bytes) -> Cubin | None:
    """The cubin in the bytes of an entry, or None if they are not what was written."""
    checksum_end = len(_HEADER) + _CHECKSUM_CHARS
    checksum, rest = content[len(_HEADER) : checksum_end], content[checksum_end + 1 :]
    if content[: len(_HEADER)] != _HEADER or hashlib.sha256(rest).hexdigest().encode() != checksum:
        return None
    line, _, image = rest.partition(b"\n")
    try:
        report = json.loads(line)
        resources = Resources(**report.pop("resources"))
        return Cubin(image=image, resources=resources, from_cache=True, **report)
    except (ValueError, KeyError, TypeError):
        return None  # whole, but written by another version of these classes
