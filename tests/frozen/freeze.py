"""Freeze the kernels of a source tree, and compare two such snapshots: what a change of the compiler must not change.

    python tests/frozen/freeze.py take before.json                      # CUDA texts of every kernel below
    python tests/frozen/freeze.py take after.json --jobs 2
    python tests/frozen/freeze.py compare before.json after.json        # exit status 1 where they differ
    python tests/frozen/freeze.py compare before.json after.json --keys differ.txt
    python tests/frozen/freeze.py take a.json --keys differ.txt --sass  # machine code of these alone (sm_80, sm_90a)
    python tests/frozen/freeze.py take b.json --only hopper --simulate  # counters and bits of C at an awkward size
    python tests/frozen/freeze.py show KEY                              # one normalised text

The tree is the one that `import tilewright` finds, so PYTHONPATH chooses it. A text is compared without comments and
white space, its identifiers numbered by first appearance. A kernel that is refused is frozen as its refusal.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from tilewright.dtypes import TF32
from tilewright.errors import TilewrightError
from tilewright.ir.kernel import Variant
from tilewright.ir.work import SplitK
from tilewright.ladders import LADDERS, Rung
from tilewright.problem.formats import FORMATS, format_name, format_options
from tilewright.problem.gemm import Gemm, Order
from tilewright.problem.reference import make_operands
from tilewright.toolchain import Build, build

ORDERS = {
    "NN": (Order.ROW, Order.ROW, Order.ROW),
    "NT": (Order.ROW, Order.COL, Order.ROW),
    "TN": (Order.COL, Order.ROW, Order.ROW),
    "TT": (Order.COL, Order.COL, Order.ROW),
    "NN_C": (Order.ROW, Order.ROW, Order.COL),
}
"""By the BLAS letters of row-major operands: T is stored transposed. NN_C: C is column-major."""

VARIANTS = {
    "exact": Variant(frozenset("mnk")),
    "aligned": Variant(),
    "safe": Variant(alignment_bytes=1, near=False),
}
LARGE, AWKWARD = (4096, 4096, 4096), (133, 141, 75)
K_MAJOR_ONLY = ("te/4", "te/5")
_WORDS = """auto bool break case char const constexpr continue default do double else enum extern float for if inline
int long return short signed sizeof static struct switch template typedef typename union unsigned void volatile
while half half2 uint4 uint2 int2 int4 float2 float4 blockIdx threadIdx gridDim x y z w"""
_KEPT = frozenset(_WORDS.split())
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[A-Za-z_]\w*|0[xX][0-9a-fA-F]+\w*|\d[\w.]*|\S')


@dataclass(frozen=True)
class Case:
    """One kernel: a rung at a point of its own or the default, a format, an order and a variant."""

    rung: Rung
    format: str
    orders: str
    variant: str
    point: int = -1
    options: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        point = f"@{self.point}" if self.point >= 0 else ""
        return " ".join((f"{self.rung.name}{point}", self.format, self.orders, self.variant, *self.options))

    def gemm(self, size: tuple[int, int, int]) -> Gemm:
        a, b, c = ORDERS[self.orders]
        gemm = self.rung.gemm(*size, **format_options(self.format), a=a, b=b, c=c, beta=0.0 if self.options else 0.5)
        if self.rung.ladder == "hopper":
            each = {o.leading: 16 // o.dtype.bytes for o in gemm.operands}
            gemm = replace(gemm, **{name: -(-getattr(gemm, name) // n) * n for name, n in each.items()})
        return gemm

    def build(self, size: tuple[int, int, int] = LARGE) -> Build:
        gemm, variant = self.gemm(size), VARIANTS[self.variant]
        if "overwrites" in self.options:
            variant = replace(variant, overwrites=True)
        schedule: Any = self.rung
        if self.point >= 0:
            assert self.rung.choices is not None
            point = next(islice(self.rung.choices.points(), self.point, None))
            schedule = self.rung.choices.schedule_at(gemm, point)
        if size != LARGE:
            variant = None if self.rung.ladder == "hopper" else Variant(alignment_bytes=1)  # type: ignore[assignment]
        built = build(gemm, schedule, variant=variant, name="frozen")
        return replace(built, split_k=SplitK.PARTIALS) if "partials" in self.options else built


def cases() -> Iterator[Case]:
    """Every rung in every order, format and variant that it takes, and the points that a search may choose."""
    for rung in (rung for ladder in LADDERS.values() for rung in ladder):
        own = format_name(rung.gemm(1, 1, 1))
        for name in formats_of(rung):
            for orders in ORDERS:
                for variant in VARIANTS:
                    case = Case(rung, name, orders, variant)
                    if takes(case):
                        yield case
        for orders in ("NN", "TN"):
            yield Case(rung, own, orders, "aligned", options=("overwrites",))
            yield Case(rung, own, orders, "aligned", options=("partials",))
        if rung.choices is not None:
            count = sum(1 for _ in rung.choices.points())
            for number in range(0, count, max(1, count // 60)):
                for orders in ("NN", "TT"):
                    yield Case(rung, own, orders, "aligned", number)
                    if not number % 5:
                        yield Case(rung, own, orders, "aligned", number, ("partials",))


def formats_of(rung: Rung) -> tuple[str, ...]:
    own = format_name(rung.gemm(1, 1, 1))
    if rung.ladder in ("ampere", "hopper"):
        return tuple(name for name in FORMATS if name != "f32")
    if any(type(step).__name__ == "Tensorize" for step in rung.schedule(rung.gemm(128, 128, 64))):
        return ("tf32", "tf32_truncated") if own == "tf32" else ("f16_sums", "f16", "bf16")
    return ("f32", "f16", "f16_sums", "bf16")


def takes(case: Case) -> bool:
    a, b, _ = ORDERS[case.orders]
    gemm = case.gemm(LARGE)
    if case.rung.ladder == "hopper":
        by_tma = case.rung.label != "1"
        rounds = by_tma or gemm.multiplied is not TF32
        turned = gemm.multiplies_tf32 and (a is not Order.ROW or b is not Order.COL)
        return rounds and not turned and not (by_tma and case.variant == "safe")
    return case.rung.name not in K_MAJOR_ONLY or (a is Order.COL and b is Order.ROW)


def normalised(text: str) -> str:
    """CUDA text without comments and white space, its identifiers numbered by first appearance.

    >>> normalised("int a = b; // c") == normalised("int  c = d;")
    True
    """
    numbers: dict[str, str] = {}

    def token(word: str) -> str:
        if not (word[0].isalpha() or word[0] == "_") or word in _KEPT or word.startswith("__"):
            return word
        return numbers.setdefault(word, f"v{len(numbers)}")

    return " ".join(token(word) for word in _TOKEN.findall(_COMMENT.sub(" ", text)))


def _hashed(content: str | bytes) -> str:
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()[:16]


def _refusal(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0]}"


def text_of(case: Case) -> str:
    try:
        return _hashed(normalised(case.build().cuda))
    except TilewrightError as error:
        return _refusal(error)


def sass_of(case: Case) -> str:
    """Hashes of the machine code, with registers and spilled bytes."""
    from tilewright.runtime.elf import _sections

    found = []
    for arch in ("sm_90a",) if case.rung.ladder == "hopper" else ("sm_80", "sm_90a"):
        try:
            cubin = case.build().compile(arch)
        except TilewrightError as error:
            found.append(f"{arch} {_refusal(error)}")
            continue
        code = b"".join(part.content for part in _sections(cubin.image) if part.name.startswith(".text."))
        used = cubin.resources
        found.append(f"{arch} {_hashed(code)} {used.registers} registers {used.spill_store_bytes} spilled")
    return "; ".join(found)


def run_of(case: Case) -> str:
    """Hashes of the counters and of the bits of C at an awkward size, with all detectors."""
    try:
        built = case.build(AWKWARD)
        run = built.simulate(make_operands(built.gemm))
    except TilewrightError as error:
        return _refusal(error)
    totals = sorted((f"{key}", f"{value}") for key, value in _totals(run.counters).items())
    return f"bits {_hashed(run.c.tobytes())} counters {_hashed(repr(totals))}"


def _totals(counters: Any) -> dict[str, Any]:
    names = ("global_loads", "global_stores", "shared_loads", "shared_stores", "bulk_loads", "bulk_stores")
    return {**{name: getattr(counters, name) for name in names}, "instructions": dict(counters.instructions)}


def take(path: str, jobs: int, only: str, keys: set[str] | None, measure: Callable[[Case], str]) -> None:
    """Write a snapshot: one line a kernel."""
    began, todo = time.monotonic(), [case.key for case in cases() if (case.key in keys if keys else only in case.key)]
    with ProcessPoolExecutor(jobs, initializer=_prepare) as pool:
        values = list(pool.map(_measured, todo, [measure.__name__] * len(todo), chunksize=8))
    Path(path).write_text(json.dumps(dict(zip(todo, values, strict=True)), indent=0, sort_keys=True) + "\n")
    print(f"{len(todo)} kernels in {time.monotonic() - began:.0f} s", file=sys.stderr)


_CASES: dict[str, Case] = {}


def _prepare() -> None:
    _CASES.update({case.key: case for case in cases()})


def _measured(key: str, measure: str) -> str:
    return str(globals()[measure](_CASES[key]))


def compare(before: str, after: str, keys: str | None) -> int:
    """Print the kernels that differ between two snapshots; how many do."""
    old, new = (json.loads(Path(path).read_text()) for path in (before, after))
    differ = sorted(key for key in old.keys() & new.keys() if old[key] != new[key])
    for key in differ[:60]:
        print(f"{key}\n  before {old[key]}\n  after  {new[key]}")
    gone, come = sorted(old.keys() - new.keys()), sorted(new.keys() - old.keys())
    print(f"{len(differ)} of {len(old.keys() & new.keys())} differ; only before {len(gone)}; only after {len(come)}")
    print("\n".join(("only before:", *gone[:20]) if gone else ()))
    if keys:
        Path(keys).write_text("\n".join(differ) + "\n")
    return len(differ)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    taking = commands.add_parser("take")
    taking.add_argument("path")
    taking.add_argument("--jobs", type=int, default=1)
    taking.add_argument("--only", default="", help="kernels whose key contains this")
    taking.add_argument("--keys", help="a file of keys, one a line")
    taking.add_argument("--sass", action="store_true")
    taking.add_argument("--simulate", action="store_true")
    comparing = commands.add_parser("compare")
    comparing.add_argument("before")
    comparing.add_argument("after")
    comparing.add_argument("--keys", help="a file for the keys that differ")
    commands.add_parser("show").add_argument("key")
    asked = parser.parse_args()
    if asked.command == "compare":
        return int(bool(compare(asked.before, asked.after, asked.keys)))
    if asked.command == "show":
        text = next(case for case in cases() if case.key == asked.key).build().cuda
        print(normalised(text).replace("; ", ";\n").replace("{ ", "{\n"))
        return 0
    keys = set(Path(asked.keys).read_text().splitlines()) if asked.keys else None
    take(asked.path, asked.jobs, asked.only, keys, sass_of if asked.sass else run_of if asked.simulate else text_of)
    return 0


if __name__ == "__main__":
    sys.exit(main())
