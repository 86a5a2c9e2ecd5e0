"""How many planted faults the tests find: `make mutants`, or

    python benchmarks/mutants.py --sample 40 --packages layout simulator --out benchmarks/results/mutants.json

A mutant is one changed place in one module: a comparison, an arithmetic operator, `and` or `or`, a `not`, a whole
number. Of each package so many are drawn, the same for the same seed. Each is put into a copy of the tree, where the
tests of the package run, the module's examples and the tests named after it first; a mutant is killed when one fails.
Needs no GPU.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue

from tilewright.bench.records import command, commit, now

ROOT = Path(__file__).parents[1]
SOURCES = Path("src/tilewright")
TESTS = {
    "layout": ("tests/layout", "tests/test_layout_search.py", "tests/lowering/test_epilogue_subtiles.py"),
    "simulator": ("tests/simulator", "tests/lowering/test_passes.py"),
    "lowering": ("tests/lowering", "tests/ladders/test_rungs_are_right.py", "tests/mutations"),
    "planning": ("tests/planning", "tests/frontend/test_matmul.py"),
}
NEEDED = ("src", "tests", "docs", "examples", "benchmarks", "README.md", "pyproject.toml")
LIMIT_S = 1800.0
"""A mutant whose tests have not ended by then goes round in a circle: it counts as killed."""

_SWAPPED: dict[type[ast.AST], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.In: "not in",
    ast.NotIn: "in", ast.Add: "-", ast.Sub: "+", ast.Mult: "//", ast.FloorDiv: "*", ast.Mod: "//", ast.LShift: ">>",
    ast.RShift: "<<", ast.BitAnd: "|", ast.BitOr: "&", ast.And: "or", ast.Or: "and",
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One changed place. start, end: bytes of the module that `text` replaces."""

    module: str
    line: int
    start: int
    end: int
    was: str
    text: str


def mutants_of(module: Path) -> Iterator[Mutant]:
    """Every mutant of a module, in the order of its text."""
    source = (ROOT / module).read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def place(line: int, column: int) -> int:
        return starts[line - 1] + column

    def between(left: ast.expr, right: ast.expr, text: str) -> Mutant | None:
        """The operator between two expressions, where nothing but it stands there."""
        assert left.end_lineno is not None and left.end_col_offset is not None
        start, end = place(left.end_lineno, left.end_col_offset), place(right.lineno, right.col_offset)
        was = source[start:end].decode()
        if was.strip(" \n()") == "" or any(sign in was for sign in "#()"):
            return None
        return Mutant(str(module), left.end_lineno, start, end, was, f" {text} ")

    for node in ast.walk(_without_annotations(ast.parse(source))):
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _SWAPPED:
                found = between(left, right, _SWAPPED[type(op)])
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _SWAPPED:
                found = between(left, right, _SWAPPED[type(op)])
            case ast.BoolOp(op=op, values=[left, right]):
                found = between(left, right, _SWAPPED[type(op)])
            case ast.UnaryOp(op=ast.Not()):
                start = place(node.lineno, node.col_offset)
                found = Mutant(str(module), node.lineno, start, start + len("not "), "not", "")
            case ast.Constant(value=int() as value) if type(value) is int:
                assert node.end_lineno is not None and node.end_col_offset is not None
                start, end = place(node.lineno, node.col_offset), place(node.end_lineno, node.end_col_offset)
                found = Mutant(str(module), node.lineno, start, end, str(value), str(value + 1))
            case _:
                found = None
        if found is not None:
            yield found


def _without_annotations(tree: ast.Module) -> ast.Module:
    """What runs: types say nothing at run time, and texts of errors are pinned elsewhere."""

    class Bare(ast.NodeTransformer):
        def visit_arg(self, node: ast.arg) -> ast.arg:
            node.annotation = None
            return node

        def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
            node.annotation = ast.copy_location(ast.Name("int", ast.Load()), node.annotation)
            self.generic_visit(node)
            return node

        def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
            node.returns = None
            self.generic_visit(node)
            return node

        def visit_Raise(self, node: ast.Raise) -> None:
            return None

        def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
            return ast.copy_location(ast.Constant(""), node)

    bare: ast.Module = Bare().visit(tree)
    return bare


def drawn(package: str, sample: int, seed: int) -> list[Mutant]:
    """So many mutants of a package, or all if there are fewer."""
    modules = sorted(path.relative_to(ROOT) for path in (ROOT / SOURCES / package).rglob("*.py"))
    every = [mutant for module in modules for mutant in mutants_of(module)]
    return random.Random(f"{seed} {package}").sample(every, min(sample, len(every)))


def copied(folder: Path) -> Path:
    """A copy of what the tests need."""
    folder.mkdir()
    for name in NEEDED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, folder / name)
    return folder


def is_killed(mutant: Mutant, package: str, tree: Path) -> bool:
    """Whether a test fails in a copy of the tree that holds the mutant."""
    path = tree / mutant.module
    whole = path.read_bytes()
    path.write_bytes(whole[: mutant.start] + mutant.text.encode() + whole[mutant.end :])
    own = sorted(str(one.relative_to(tree)) for one in (tree / "tests" / package).glob(f"*{path.stem}*.py"))
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        mutant.module,
        *own,
    ]
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [*words, *TESTS[package]], cwd=tree, env=environment, capture_output=True, timeout=LIMIT_S, check=False
        )
        return done.returncode != 0
    except subprocess.TimeoutExpired:
        return True
    finally:
        path.write_bytes(whole)


def score(package: str, mutants: Sequence[Mutant], trees: SimpleQueue[Path], workers: int) -> list[Mutant]:
    """The mutants that survive, told as they are found."""

    def one(mutant: Mutant) -> Mutant | None:
        tree = trees.get()
        try:
            killed = is_killed(mutant, package, tree)
        finally:
            trees.put(tree)
        if not killed:
            print(f"  survived: {mutant.module}:{mutant.line}: {mutant.was.strip()!r} -> {mutant.text.strip()!r}")
        return None if killed else mutant

    with ThreadPoolExecutor(workers) as pool:
        return [left for left in pool.map(one, mutants) if left is not None]


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--packages", nargs="+", choices=TESTS, default=list(TESTS))
    asked.add_argument("--sample", type=int, default=25, help="mutants of each package")
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    asked.add_argument("--out", type=Path, help="where the record goes")
    given = asked.parse_args()
    found = {}
    with tempfile.TemporaryDirectory(prefix="tilewright-mutants-") as folder:
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(given.workers):
            trees.put(copied(Path(folder) / str(number)))
        for package in given.packages:
            mutants = drawn(package, given.sample, given.seed)
            left = score(package, mutants, trees, given.workers)
            killed = len(mutants) - len(left)
            print(f"{package}: {killed} of {len(mutants)} killed, {100 * killed / len(mutants):.0f} %", flush=True)
            found[package] = {"mutants": len(mutants), "killed": killed, "survived": [asdict(one) for one in left]}
    if given.out is not None:
        origin = {"seed": given.seed, "command": command(), "commit": commit(), "date": now()}
        given.out.write_text(json.dumps({**origin, "packages": found}, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
