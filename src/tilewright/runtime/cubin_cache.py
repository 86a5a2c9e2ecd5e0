"""Compiled kernels on disk, so that a kernel is compiled once per machine and not once per process.

One file an entry:

    tilewright cubin 1\\n
    <sha256 of the rest, in hex>\\n
    <report: one line of JSON>\\n
    <image>

The name of the file is the sha256 of everything that decides the machine code, so an entry never goes stale
and is never rewritten with other content. It is written beside its place and renamed: a reader sees a whole
entry or none, however many processes write and wherever one is killed. An entry that does not match its
checksum, or that is of another kernel than its name says, is a miss and is removed.

Machine code runs with the rights of the process, so a folder into which other users may write is not used, and
what is not a regular file (a link, a pipe) is not an entry.

The cache never makes a compile fail. A folder that cannot be used is reported once, in `problem`, and from
then on every look-up is a miss.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import time
from dataclasses import asdict
from pathlib import Path

import platformdirs

from tilewright.artifacts import Cubin, CudaSource, Resources
from tilewright.files import replace_file

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
        self._is_checked = False

    def load(self, key: str, entry: str, arch: str) -> Cubin | None:
        """The entry called `key`, or None. One that is damaged, or of another kernel or architecture, is removed."""
        path = self._path(key)
        try:
            if not self._is_safe():
                return None
            content = _content(path)
        except FileNotFoundError:
            return None
        except OSError as failure:
            self._report(failure)
            return None
        cubin = None if content is None else _decoded(content)
        if cubin is None or (cubin.entry, cubin.arch) != (entry, arch):
            self._remove(path)
            return None
        return cubin

    def store(self, key: str, cubin: Cubin) -> None:
        """Keep `cubin` as `key`. Does nothing, but for `problem`, where the folder cannot be written."""
        if self.problem is not None:
            return
        path = self._path(key)
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            self.folder.mkdir(mode=0o755, exist_ok=True)
            if not self._is_safe():
                return
            path.parent.mkdir(mode=0o755, exist_ok=True)
            self._sweep()
            replace_file(path, _encoded(cubin))
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

    def _is_safe(self) -> bool:
        """Whether nobody else may write into the folder. Raises FileNotFoundError where there is none yet."""
        if not self._is_checked:
            found = self.folder.stat()
            self._is_checked = True
            if _others_may_write(found):
                self._tell("other users may write into it", "of your own")
        return self.problem is None

    def _report(self, failure: OSError) -> None:
        self._tell(failure.strerror or type(failure).__name__, "that can be written")

    def _tell(self, reason: str, better: str) -> None:
        if self.problem is None:
            self.problem = (
                f"The kernel cache in {self.folder} cannot be used ({reason}), so kernels are compiled anew "
                f"in every process; set {FOLDER_VARIABLE} to a folder {better}."
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


def _others_may_write(found: os.stat_result) -> bool:
    """Whether users other than this one, and root, may write: by the folder's owner, by its mode, or by its group."""
    if not hasattr(os, "getuid"):  # Windows keeps the user's folders to the user
        return False
    is_own_group = found.st_gid == found.st_uid  # by the custom of a group for each user, of whom it is the only one
    mask = stat.S_IWOTH if is_own_group else stat.S_IWOTH | stat.S_IWGRP
    return found.st_uid not in (os.getuid(), 0) or bool(found.st_mode & mask)


def _content(path: Path) -> bytes | None:
    """The bytes of a regular file; None for a link, and whatever else lies there. Raises OSError."""
    try:
        number = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except OSError as failure:
        if failure.errno == errno.ELOOP:
            return None
        raise
    with os.fdopen(number, "rb") as file:
        return file.read() if stat.S_ISREG(os.fstat(number).st_mode) else None


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
    except (ValueError, KeyError, TypeError, RecursionError):
        return None  # whole, but written by another version of these classes
