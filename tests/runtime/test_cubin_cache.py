"""The kernel cache: a hit gives back everything, damage is a miss, and no folder can make a compile fail."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from runtime_kernels import REVERSE, SCALE

from tilewright.artifacts import Cubin, Resources
from tilewright.runtime.cubin_cache import FOLDER_VARIABLE, CubinCache, cache_folder, cache_key
from tilewright.runtime.nvrtc import compile_cuda

KEY = "ab" + "0" * 62
RESOURCES = Resources(32, 8, 12, 16, 1200, 540, 2, 4096)


def cubin(image: bytes = b"\x7fELF machine code\n{}\n\0") -> Cubin:
    return Cubin(
        image=image,
        entry="scale",
        arch="sm_90a",
        resources=RESOURCES,
        log="ptxas info : Used 32 registers\nzwei Zeilen: ä",
        compiler="NVRTC 13.5",
        compile_seconds=0.25,
        from_cache=False,
    )


@pytest.fixture
def cache(tmp_path: Path) -> CubinCache:
    return CubinCache(tmp_path / "cubins")


def entry_of(cache: CubinCache) -> Path:
    (path,) = cache.entries()
    return path


def unfinished_in(folder: Path) -> list[Path]:
    return list(folder.rglob("*.tmp"))


def test_a_hit_gives_back_image_log_and_resources(cache: CubinCache) -> None:
    cache.store(KEY, cubin())
    assert cache.load(KEY, "scale", "sm_90a") == replace(cubin(), from_cache=True)
    assert cache.problem is None
    assert unfinished_in(cache.folder) == []


def test_a_kernel_is_compiled_once(cache: CubinCache) -> None:
    built = compile_cuda(REVERSE, "sm_90a", cache=cache)
    hit = compile_cuda(REVERSE, "sm_90a", cache=CubinCache(cache.folder))
    assert hit == replace(built, from_cache=True)
    assert hit.resources.shared_bytes == 1200


def test_whatever_changes_the_code_changes_the_key() -> None:
    keys = {
        cache_key(SCALE, "sm_90a", (), "NVRTC 13.5"),
        cache_key(REVERSE, "sm_90a", (), "NVRTC 13.5"),
        cache_key(replace(SCALE, entry="other"), "sm_90a", (), "NVRTC 13.5"),
        cache_key(SCALE, "sm_90", (), "NVRTC 13.5"),
        cache_key(SCALE, "sm_90a", (), "NVRTC 13.0"),
        cache_key(SCALE, "sm_90a", ("-DX=1", "-DY=2"), "NVRTC 13.5"),
        cache_key(SCALE, "sm_90a", ("-DX=1-DY=2",), "NVRTC 13.5"),
    }
    assert len(keys) == 7


def test_a_key_that_was_never_stored_is_a_miss(cache: CubinCache) -> None:
    assert cache.load(KEY, "scale", "sm_90a") is None
    assert cache.problem is None


def damage_of_every_kind(whole: bytes) -> dict[str, bytes]:
    middle = len(whole) // 2
    return {
        "empty": b"",
        "header only": whole[:20],
        "truncated": whole[:-1],
        "truncated in the report": whole[:120],
        "longer": whole + b"\0",
        "garbage": os.urandom(len(whole)),
        "a bit of the image": whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:],
        "a bit of the report": whole[:middle] + bytes([whole[middle] ^ 0x20]) + whole[middle + 1 :],
        "another format": whole.replace(b"cubin 1", b"cubin 9", 1),
    }


@pytest.mark.parametrize("kind", damage_of_every_kind(bytes(300)))
def test_a_damaged_entry_is_discarded_and_rebuilt(cache: CubinCache, kind: str) -> None:
    built = compile_cuda(SCALE, "sm_90a", cache=cache)
    path = entry_of(cache)
    path.write_bytes(damage_of_every_kind(path.read_bytes())[kind])
    assert cache.load(path.stem, SCALE.entry, "sm_90a") is None
    assert not path.exists()
    rebuilt = compile_cuda(SCALE, "sm_90a", cache=cache)
    assert not rebuilt.from_cache and rebuilt.image == built.image
    assert compile_cuda(SCALE, "sm_90a", cache=cache) == replace(rebuilt, from_cache=True)


@pytest.mark.parametrize(("entry", "arch"), [("scale", "sm_80"), ("reverse", "sm_90a")])
def test_an_entry_of_another_kernel_or_architecture_is_discarded(cache: CubinCache, entry: str, arch: str) -> None:
    cache.store(KEY, cubin())
    assert cache.load(KEY, entry, arch) is None
    assert cache.entries() == [] and cache.problem is None


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_is_not_a_regular_file_is_no_entry(cache: CubinCache, kind: str, tmp_path: Path) -> None:
    cache.store(KEY, cubin())
    path, elsewhere = entry_of(cache), tmp_path / "elsewhere"
    path.rename(elsewhere)
    match kind:
        case "link":
            path.symlink_to(elsewhere)
        case "pipe":
            os.mkfifo(path)
        case _:
            path.mkdir()
    assert cache.load(KEY, "scale", "sm_90a") is None
    assert elsewhere.exists()
    if kind != "folder":
        assert not os.path.lexists(path)
        cache.store(KEY, cubin())
        assert cache.load(KEY, "scale", "sm_90a") is not None


@pytest.mark.parametrize("mode", [0o777, 0o757, 0o775])
def test_a_folder_that_others_may_write_is_not_used(cache: CubinCache, mode: int) -> None:
    cache.store(KEY, cubin())
    cache.folder.chmod(mode)
    if mode & stat.S_IWOTH == 0:
        if os.getuid() != 0:
            pytest.skip("only root gives a folder to a group that is not its user's own")
        os.chown(cache.folder, 0, 1234)
    late = CubinCache(cache.folder)
    assert late.load(KEY, "scale", "sm_90a") is None
    assert late.problem is not None and "other users may write into it" in late.problem
    late.store("cd" + KEY[2:], cubin())
    assert len(late.entries()) == 1


def test_the_folder_of_another_user_is_not_used(cache: CubinCache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.store(KEY, cubin())
    if os.getuid() == 0:
        os.chown(cache.folder, 1234, 1234)
    else:
        monkeypatch.setattr(os, "getuid", lambda: 1234)
    assert CubinCache(cache.folder).load(KEY, "scale", "sm_90a") is None


def test_a_folder_is_made_for_its_user_alone_to_write(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        cache = CubinCache(tmp_path / "cubins")
        cache.store(KEY, cubin())
    finally:
        os.umask(before)
    assert cache.load(KEY, "scale", "sm_90a") is not None
    assert not any(path.stat().st_mode & 0o022 for path in (cache.folder, *cache.folder.iterdir()))


def test_clear_removes_every_entry(cache: CubinCache) -> None:
    for first in ("aa", "bb", "bc"):
        cache.store(first + KEY[2:], cubin())
    assert len(cache.entries()) == 3
    assert cache.clear() == 3
    assert cache.entries() == []
    assert CubinCache(cache.folder / "missing").clear() == 0


# Where the folder is, and folders that cannot be used. The tests run as root, whom no permission stops, so an
# unusable folder is one below a regular file.


def test_the_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    assert cache_folder() == tmp_path == CubinCache().folder
    monkeypatch.delenv(FOLDER_VARIABLE)
    assert "tilewright" in str(cache_folder())


def test_making_a_cache_touches_no_disk(tmp_path: Path) -> None:
    CubinCache(tmp_path / "cubins")
    assert list(tmp_path.iterdir()) == []


def test_an_unusable_folder_never_fails_a_compile_and_is_told_once(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("not a folder")
    cache = CubinCache(file / "cubins")
    for _ in range(2):
        assert compile_cuda(SCALE, "sm_90a", cache=cache).from_cache is False
        assert cache.problem == (
            f"The kernel cache in {file / 'cubins'} cannot be used (Not a directory), so kernels are compiled anew "
            f"in every process; set {FOLDER_VARIABLE} to a folder that can be written."
        )
    assert file.read_text() == "not a folder"


def test_a_full_disk_leaves_no_entry_and_no_rubbish(cache: CubinCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    cache.store(KEY, cubin())
    assert cache.problem is not None and "No space left on device" in cache.problem
    assert cache.entries() == unfinished_in(cache.folder) == []


# Kills, and many processes at once


KILLED_WRITER = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_cubin_cache import KEY, cubin
from tilewright.runtime.cubin_cache import CubinCache

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

if sys.argv[3] == "before the rename":
    os.replace = die
else:
    class HalfWritten:
        def __init__(self, file): self.file = file
        def __enter__(self): return self
        def __exit__(self, *_): pass
        def write(self, content):
            self.file.write(content[: len(content) // 2])
            self.file.flush()
            die()
    opened = Path.open
    Path.open = lambda path, *mode: HalfWritten(opened(path, *mode))
CubinCache(Path(sys.argv[2])).store(KEY, cubin(bytes(100_000)))
"""


@pytest.mark.parametrize("moment", ["before the rename", "in the middle of the write"])
def test_a_writer_killed_at_any_moment_leaves_no_entry(cache: CubinCache, moment: str) -> None:
    command = [sys.executable, "-c", KILLED_WRITER, str(Path(__file__).parent), str(cache.folder), moment]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    (left,) = unfinished_in(cache.folder)
    assert cache.load(KEY, "scale", "sm_90a") is None

    cache.store(KEY, cubin())
    assert left.exists()  # it might belong to a writer at work
    an_hour_ago = time.time() - 3700
    os.utime(left, (an_hour_ago, an_hour_ago))
    next_process = CubinCache(cache.folder)
    next_process.store(KEY, cubin())
    assert unfinished_in(cache.folder) == []
    assert next_process.load(KEY, "scale", "sm_90a") == replace(cubin(), from_cache=True)


HAMMER = """
import random, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_cubin_cache import cubin
from tilewright.runtime.cubin_cache import CubinCache

chance = random.Random(sys.argv[3])
cache = CubinCache(Path(sys.argv[2]))
for _ in range(400):
    number = chance.randrange(6)
    key = f"{number:02x}" + "0" * 62
    image = bytes([number]) * (1000 + 10_000 * number)
    action = chance.randrange(10)
    if action < 4:
        cache.store(key, cubin(image))
    elif action == 4 and sys.argv[3] == "vandal":
        for path in cache.entries()[:1]:
            path.write_bytes(image[:500])
    else:
        found = cache.load(key, "scale", "sm_90a")
        assert found is None or found.image == image, number
assert cache.problem is None, cache.problem
"""


def test_processes_hammering_one_folder_never_read_a_wrong_entry(cache: CubinCache) -> None:
    """Three processes store and load six keys; one of them also overwrites entries with rubbish."""
    here = str(Path(__file__).parent)
    processes = [
        subprocess.Popen([sys.executable, "-c", HAMMER, here, str(cache.folder), name], stderr=subprocess.PIPE)
        for name in ("vandal", "one", "two")
    ]
    for process in processes:
        _, complaint = process.communicate()
        assert process.returncode == 0, complaint.decode()
    assert unfinished_in(cache.folder) == []


def test_threads_share_one_cache_object(cache: CubinCache) -> None:
    def store_and_load(number: int) -> bool:
        key = f"{number % 4:02x}" + "0" * 62
        image = bytes([number % 4]) * 5000
        cache.store(key, cubin(image))
        found = cache.load(key, "scale", "sm_90a")
        return found is not None and found.image == image

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(store_and_load, range(200)))
    assert cache.problem is None
