"""The rungs of two source trees and cuBLAS, timed in turn on one GPU: is a rung as fast as it was?

    git archive 0fdc654 src | tar x -C before
    python benchmarks/two_trees.py --before before/src --out two_trees.json

Each tree is served by a process of its own, which compiles its rungs, loads them, captures graphs and replays one when
it is told to. Rungs are matched by their places in a ladder, so a rung may be renamed. Rounds alternate between the
trees, the first of a round in turn; each figure is the median over rounds. Results are compared bit by bit: C is
poisoned before. Ends with 1 if a rung is slower than it was by more than 2 %, with 2 if there is no GPU.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

FORMATS = {
    "worklog": ("f32",),
    "hierarchy": ("f32", "f16_sums", "f16", "bf16"),
    "swizzle": ("",),
    "te": ("f32",),
    "ampere": ("bf16", "f16", "tf32", "tf32_truncated"),
    "hopper": ("bf16", "f16"),
}
"""Which formats of a ladder are recorded; empty: that of the rung."""

ROUNDS, GRAPH_MS = 11, 6.0
MOST_SLOWER = 1.02
COMPILERS = 12
Place = tuple[str, int, str]
"""A ladder, a rung's place in it, and a format."""


def places(ladders: list[str]) -> list[Place]:
    from tilewright.ladders import find_ladder
    from tilewright.problem.formats import format_name

    found = []
    for name in ladders:
        for number, rung in enumerate(find_ladder(name)):
            is_f32 = format_name(rung.gemm(1, 1, 1)) == "f32"
            found += [(name, number, dtype) for dtype in FORMATS[name] if not dtype or (dtype == "f32") == is_f32]
    return found


# -- a process that serves one tree ----------------------------------------------------------------------------------


def built(place: Place, size: tuple[int, int, int], device: str) -> Any:
    """The build of a rung. Both trees have all names that are used in this part."""
    from tilewright.device.catalog import device as known
    from tilewright.ladders import find_ladder
    from tilewright.problem.formats import format_options
    from tilewright.toolchain import build

    ladder, number, dtype = place
    rung = find_ladder(ladder)[number]
    gemm = rung.gemm(*size, **(format_options(dtype) if dtype else {}))
    return build(gemm, rung.on(known(device)) if hasattr(rung, "on") else rung)


def compiled(place: Place, size: tuple[int, int, int], device: str, arch: str) -> str:
    """Put a rung into the cache of compiled kernels; what failed."""
    from tilewright.errors import TilewrightError
    from tilewright.runtime.cubin_cache import CubinCache

    try:
        built(place, size, device).compile(arch, cache=CubinCache())
    except TilewrightError as failure:
        return str(failure.headline)
    return ""


def code_of(cubin: bytes) -> str:
    """A digest of the instructions: the sections of an ELF file that begin with `.text`."""
    (start,), (size, count, names_at) = struct.unpack_from("<Q", cubin, 40), struct.unpack_from("<HHH", cubin, 58)
    headers = [struct.unpack_from("<IIQQQQ", cubin, start + number * size) for number in range(count)]
    digest = hashlib.sha256()
    for name, _, _, _, begin, length in headers:
        if cubin.startswith(b".text", headers[names_at][4] + name):
            digest.update(cubin[begin : begin + length])
    return digest.hexdigest()[:12]


class Tree:
    """The rungs of the tree that this process imports, one loaded at a time."""

    def __init__(self, size: tuple[int, int, int], *, has_peer: bool) -> None:
        from tilewright.runtime.cubin_cache import CubinCache
        from tilewright.runtime.driver import open_gpu
        from tilewright.runtime.probe import probe

        self.size, self.gpu, self.has_peer = size, open_gpu(), has_peer
        self.spec, self.cache = probe(self.gpu), CubinCache()
        self.gemm: Any = None
        self.operands: Any = None
        self.graphs: dict[str, Any] = {}

    def device(self, _: Any) -> str:
        return str(self.gpu.name)

    def compile(self, wanted: list[Place]) -> list[str]:
        with ProcessPoolExecutor(COMPILERS) as pool:
            each = [pool.submit(compiled, tuple(one), self.size, self.gpu.name, self.gpu.arch) for one in wanted]  # type: ignore[arg-type]
            return [one.result() for one in each]

    def prepare(self, place: Place) -> dict[str, Any]:
        """Load a rung, run it once, and capture it, and cuBLAS's product where that is asked for."""
        from tilewright.bench.baseline import cublas
        from tilewright.bench.ladder import launcher

        made = built(place, self.size, self.gpu.name)
        self._operands_of(made.gemm)
        launch = launcher(made, self.gpu, self.cache)
        bits = self._bits(launch)
        for graph in self.graphs.values():
            graph.close()
        self.graphs = {"rung": self._captured(launch)}
        peer = cublas(self.gpu, made.gemm) if self.has_peer else None
        if peer is not None:
            self.graphs["cuBLAS"] = self._captured(peer.launch)
        return {"bits": bits, "code": code_of(made.compile(self.gpu.arch, cache=self.cache).image)}

    def time(self, name: str) -> float | None:
        """Microseconds a product. The first replay is not measured: another process has just had the GPU."""
        graph = self.graphs.get(name)
        if graph is None:
            return None
        graph.replay(self.gpu.stream)
        return float(graph.time(self.gpu.stream))

    def _operands_of(self, gemm: Any) -> None:
        from tilewright.bench.protocol import RotatedOperands
        from tilewright.problem.reference import make_operands

        if gemm == self.gemm:
            return
        if self.operands is not None:
            self.operands.close()
        host = make_operands(gemm)
        make: Callable[..., Any] = getattr(RotatedOperands, "of", RotatedOperands)
        self.gemm, self.operands = gemm, make(self.gpu, host, self.spec)
        self.elements = host.c.size * host.c.itemsize

    def _bits(self, launch: Callable[[Any], None]) -> str:
        """A digest of C of one launch, all bytes of which were ones before."""
        import numpy as np
        from cuda.bindings import driver

        addresses = self.operands.addresses() if hasattr(self.operands, "addresses") else self.operands.next()
        driver.cuMemsetD8(addresses[2], 0xFF, self.elements)
        launch(addresses)
        self.gpu.synchronize()
        host = np.empty(self.elements, np.uint8)
        driver.cuMemcpyDtoH(host.ctypes.data, addresses[2], self.elements)
        return hashlib.sha256(host.tobytes()).hexdigest()[:12]

    def _captured(self, launch: Callable[[Any], None]) -> Any:
        from tilewright.runtime.timer import LaunchGraph, time_launches

        def step() -> None:
            launch(self.operands.next())

        step()
        once_us = time_launches(self.gpu.stream, step, launches=2)
        return LaunchGraph.capture(self.gpu.stream, step, launches=int(min(200, max(1, GRAPH_MS * 1e3 / once_us))))


def serve(size: tuple[int, int, int], *, has_peer: bool) -> None:
    """Answer a line of JSON for each that is read: [what, argument]."""
    tree = Tree(size, has_peer=has_peer)
    for line in sys.stdin:
        what, argument = json.loads(line)
        try:
            answer: Any = getattr(tree, what)(tuple(argument) if what == "prepare" else argument)
        except Exception as failure:  # told, and the other rungs go on
            answer = {"failed": f"{type(failure).__name__}: {failure}"[:300]}
        print(json.dumps(answer), flush=True)


# -- the process that asks them --------------------------------------------------------------------------------------


class Served:
    """A tree in a process of its own."""

    def __init__(self, source: Path, size: str, *, has_peer: bool) -> None:
        given = {**os.environ, "PYTHONPATH": str(source)}
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve", "peer" if has_peer else "alone", "--size", size], env=given,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def begin(self, what: str, argument: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([what, argument]) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def ask(self, what: str, argument: Any) -> Any:
        self.begin(what, argument)
        return self.answer()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


class Comparison:
    """Two trees in turn."""

    def __init__(self, before: Path, now: Path, size: str) -> None:
        self.trees = {"before": Served(before, size, has_peer=False), "now": Served(now, size, has_peer=True)}

    def compile(self, wanted: list[Place]) -> None:
        for tree in self.trees.values():
            tree.begin("compile", wanted)
        for name, tree in self.trees.items():
            for place, failure in zip(wanted, tree.answer(), strict=True):
                if failure:
                    print(f"{name}: {place} {failure}", file=sys.stderr)

    def rung(self, place: Place, rounds: int) -> dict[str, Any]:
        for tree in self.trees.values():
            tree.begin("prepare", place)
        told = {name: tree.answer() for name, tree in self.trees.items()}
        for name, one in told.items():
            if "failed" in one:
                return {"failed": f"{name}: {one['failed']}"}
        times: dict[str, list[float]] = {"before": [], "now": [], "cuBLAS": []}
        for number in range(rounds):
            order = list(self.trees.items())
            for name, tree in order if number % 2 else order[::-1]:
                times[name].append(tree.ask("time", "rung"))
            peer = self.trees["now"].ask("time", "cuBLAS")
            if peer is not None:
                times["cuBLAS"].append(peer)
        us = {name: round(statistics.median(each), 2) for name, each in times.items() if each}
        return {
            "us": us,
            "time_of_before": round(us["now"] / us["before"], 4),
            **{f"same_{what}": told["before"][what] == told["now"][what] for what in ("bits", "code")},
        }

    def close(self) -> None:
        for tree in self.trees.values():
            tree.close()


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--before", type=Path, help="the src folder of the other tree")
    asked.add_argument("--ladders", nargs="*", default=list(FORMATS), choices=list(FORMATS))
    asked.add_argument("--only", nargs="*", help="rungs by name: hopper/8")
    asked.add_argument("--size", default="4096")
    asked.add_argument("--rounds", type=int, default=ROUNDS)
    asked.add_argument("--out", type=Path, help="where the JSON goes")
    asked.add_argument("--serve", choices=["peer", "alone"], help=argparse.SUPPRESS)
    given = asked.parse_args()
    if given.serve:
        serve((int(given.size),) * 3, has_peer=given.serve == "peer")
        return 0
    from tilewright.bench.records import command, commit, now
    from tilewright.ladders import find_ladder
    from tilewright.runtime.driver import gpu_problem

    missing = gpu_problem()
    if missing or given.before is None:
        print(f"There is no GPU: {missing}" if missing else "Give --before, the other tree.", file=sys.stderr)
        return 2
    import tilewright

    wanted = [
        place for place in places(given.ladders)
        if not given.only or find_ladder(place[0])[place[1]].name in given.only
    ]  # fmt: skip
    trees = Comparison(given.before, Path(tilewright.__file__).parents[1], given.size)
    began = time.monotonic()
    trees.compile(wanted)
    print(f"compiled in {time.monotonic() - began:.0f} s", flush=True)
    rows, device = {}, trees.trees["now"].ask("device", None)
    for place in wanted:
        ladder, number, dtype = place
        name = " ".join(part for part in (find_ladder(ladder)[number].name, dtype) if part)
        told = rows[name] = trees.rung(place, given.rounds)
        print(f"{name:24} {json.dumps(told)}", flush=True)
        if given.out is not None:
            origin = {
                "device": device,
                "size": given.size,
                "rounds": given.rounds,
                "commit": commit(),
                "command": command(),
                "date": now(),
            }
            given.out.write_text(json.dumps({"rows": rows, **origin}) + "\n")
    trees.close()
    slower = [name for name, told in rows.items() if told.get("time_of_before", 9.0) > MOST_SLOWER]
    print(f"{len(slower)} of {len(rows)} are slower than before by more than 2 %, or failed: {', '.join(slower)}")
    return int(bool(slower))


if __name__ == "__main__":
    sys.exit(main())
