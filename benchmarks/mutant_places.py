"""Places of a module where a fault can be planted, and the module with the fault or with a probe there.

A mutant changes one place: a comparison, an arithmetic operator, `and` or `or`, a `not`, a whole number. A probe stands
at the same place and tells whether the fault would change a value there: a test in which no value changes cannot fail.
"""

from __future__ import annotations

import ast
import hashlib
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCES = Path("src/tilewright")
PROBE = "__mutant_probe__"

Meaning = Callable[[Any, Any], Any]


def _is_in(left: Any, right: Any) -> Any:
    return left in right


def _is_not_in(left: Any, right: Any) -> Any:
    return left not in right


def _all(left: Any, right: Any) -> Any:
    return left() and right()


def _any(left: Any, right: Any) -> Any:
    return left() or right()


SWAPPED: dict[type[ast.AST], tuple[str, Meaning, Meaning]] = {
    ast.Lt: ("<=", operator.lt, operator.le),
    ast.LtE: ("<", operator.le, operator.lt),
    ast.Gt: (">=", operator.gt, operator.ge),
    ast.GtE: (">", operator.ge, operator.gt),
    ast.Eq: ("!=", operator.eq, operator.ne),
    ast.NotEq: ("==", operator.ne, operator.eq),
    ast.In: ("not in", _is_in, _is_not_in),
    ast.NotIn: ("in", _is_not_in, _is_in),
    ast.Add: ("-", operator.add, operator.sub),
    ast.Sub: ("+", operator.sub, operator.add),
    ast.Mult: ("//", operator.mul, operator.floordiv),
    ast.FloorDiv: ("*", operator.floordiv, operator.mul),
    ast.Mod: ("//", operator.mod, operator.floordiv),
    ast.LShift: (">>", operator.lshift, operator.rshift),
    ast.RShift: ("<<", operator.rshift, operator.lshift),
    ast.BitAnd: ("|", operator.and_, operator.or_),
    ast.BitOr: ("&", operator.or_, operator.and_),
}
"""The operator that stands in a mutant, and what both mean."""

JOINED: dict[type[ast.AST], str] = {ast.And: "or", ast.Or: "and"}


@dataclass(frozen=True)
class Mutant:
    """A changed place. start, end: bytes of the module that `text` replaces. node: kind and place of an expression."""

    name: str
    module: str
    line: int
    start: int
    end: int
    was: str
    text: str
    node: tuple[str, int, int, int, int]

    @property
    def place(self) -> str:
        return f"{self.module}:{self.line}"

    @property
    def change(self) -> str:
        return f"{self.was.strip()} -> {self.text.strip() or 'nothing'}"

    def mutated(self) -> bytes:
        whole = (ROOT / self.module).read_bytes()
        return whole[: self.start] + self.text.encode() + whole[self.end :]


def _place(node: ast.expr) -> tuple[str, int, int, int, int]:
    assert node.end_lineno is not None and node.end_col_offset is not None
    return type(node).__name__, node.lineno, node.col_offset, node.end_lineno, node.end_col_offset


class _Source:
    """The bytes of a module, by line and column."""

    def __init__(self, module: Path) -> None:
        self.module = str(module)
        self.bytes = (ROOT / module).read_bytes()
        self.lines = self.bytes.splitlines(keepends=True)
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))
        self.seen: Counter[str] = Counter()

    def at(self, line: int, column: int) -> int:
        return self.starts[line - 1] + column

    def mutant(self, node: ast.expr, line: int, start: int, end: int, was: str, text: str) -> Mutant:
        """Its name stays the same while its line does, wherever the line goes."""
        key = f"{self.module}|{self.lines[line - 1].decode().strip()}|{was.strip()}|{text.strip()}"
        self.seen[key] += 1
        name = hashlib.sha256(f"{key}|{self.seen[key]}".encode()).hexdigest()[:12]
        return Mutant(name, self.module, line, start, end, was, text, _place(node))

    def between(self, node: ast.expr, left: ast.expr, right: ast.expr, text: str) -> Mutant | None:
        """The operator between two expressions, where nothing but it stands there."""
        assert left.end_lineno is not None and left.end_col_offset is not None
        start, end = self.at(left.end_lineno, left.end_col_offset), self.at(right.lineno, right.col_offset)
        was = self.bytes[start:end].decode()
        if was.strip(" \n()") == "" or any(sign in was for sign in "#()"):
            return None
        return self.mutant(node, left.end_lineno, start, end, was, f" {text} ")


def mutants_of(module: Path) -> Iterator[Mutant]:
    """Every mutant of a module, in the order of its text."""
    source = _Source(module)
    for node in ast.walk(_without_annotations(ast.parse(source.bytes))):
        found = None
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in SWAPPED:
                found = source.between(node, left, right, SWAPPED[type(op)][0])
            case ast.BinOp(left=left, op=op, right=right) if type(op) in SWAPPED:
                found = source.between(node, left, right, SWAPPED[type(op)][0])
            case ast.BoolOp(op=op, values=[left, right]):
                found = source.between(node, left, right, JOINED[type(op)])
            case ast.UnaryOp(op=ast.Not()):
                start = source.at(node.lineno, node.col_offset)
                found = source.mutant(node, node.lineno, start, start + len("not "), "not", "")
            case ast.Constant(value=int() as value) if type(value) is int:
                _, line, column, end_line, end_column = _place(node)
                start, end = source.at(line, column), source.at(end_line, end_column)
                found = source.mutant(node, line, start, end, str(value), str(value + 1))
        if found is not None:
            yield found


def _without_annotations(tree: ast.Module) -> ast.Module:
    """What runs: types say nothing at run time, texts of errors are pinned elsewhere, and where NumPy is to find the
    length of a dimension, -2 says so as well as -1."""

    class Bare(ast.NodeTransformer):
        def visit_Call(self, node: ast.Call) -> ast.AST:
            self.generic_visit(node)
            if isinstance(node.func, ast.Attribute) and node.func.attr == "reshape":
                node.args = [
                    ast.copy_location(ast.Constant(""), one) if _is_minus_one(one) else one for one in node.args
                ]
            return node

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


def _is_minus_one(node: ast.expr) -> bool:
    return ast.unparse(node) == "-1"


def digest(files: Sequence[Path]) -> str:
    """What the files say, in twelve digits."""
    found = hashlib.sha256()
    for file in files:
        found.update(file.read_bytes())
    return found.hexdigest()[:12]


def all_of(package: str) -> list[Mutant]:
    modules = sorted(path.relative_to(ROOT) for path in (ROOT / SOURCES / package).rglob("*.py"))
    return [mutant for module in modules for mutant in mutants_of(module)]


def drawn(package: str, sample: int, seed: int) -> list[Mutant]:
    """So many mutants of a package. Those of lines that an edit leaves alone stay in the draw."""
    by_chance = sorted(all_of(package), key=lambda mutant: hashlib.sha256(f"{seed} {mutant.name}".encode()).digest())
    return sorted(by_chance[:sample], key=lambda mutant: (mutant.module, mutant.start))


def probed(module: str, mutants: Sequence[Mutant]) -> ast.Module:
    """A module that calls PROBE where mutants change it: with a name, and the operands of an operator."""
    by_node = {mutant.node: mutant.name for mutant in mutants}
    inside: set[str] = set()

    class Probes(ast.NodeTransformer):
        """In a pattern, and outside of every function, there is no place for a call: functions tell instead."""

        functions = 0

        def visit(self, node: ast.AST) -> Any:
            name = by_node.get(_place(node)) if isinstance(node, ast.expr) else None
            self.generic_visit(node)
            if name is None or not self.functions or not isinstance(node, ast.expr):
                return node
            inside.add(name)
            told: list[ast.expr] = [ast.Constant(name)]
            if isinstance(node, ast.Compare):
                told += [node.left, node.comparators[0]]
            elif isinstance(node, ast.BinOp):
                told += [node.left, node.right]
            elif isinstance(node, ast.BoolOp) and not _binds(node):
                told += [ast.Lambda(_NO_ARGUMENTS, value) for value in node.values]
            call = ast.Call(ast.Name(PROBE, ast.Load()), told, [])
            if len(told) == 1:
                both = ast.Tuple([call, node], ast.Load())
                return ast.copy_location(ast.Subscript(both, ast.Constant(1), ast.Load()), node)
            return ast.copy_location(call, node)

        def visit_MatchValue(self, node: ast.MatchValue) -> ast.AST:
            return node

        def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
            node.decorator_list = [self.visit(one) for one in node.decorator_list]
            node.args = self.visit(node.args)
            self.functions += 1
            node.body = [self.visit(one) for one in node.body]
            self.functions -= 1
            return node

        def generic_visit(self, node: ast.AST) -> ast.AST:
            if isinstance(node, ast.MatchValue):
                return self.visit_MatchValue(node)
            if isinstance(node, ast.FunctionDef):
                return self.visit_FunctionDef(node)
            return super().generic_visit(node)

    tree: ast.Module = Probes().visit(ast.parse((ROOT / module).read_bytes()))
    outside = [mutant.name for mutant in mutants if mutant.name not in inside]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and outside:
            first = 1 if ast.get_docstring(node) is not None else 0
            node.body[first:first] = [
                ast.Expr(ast.Call(ast.Name(PROBE, ast.Load()), [ast.Constant(name)], [])) for name in outside
            ]
    return ast.fix_missing_locations(tree)


_NO_ARGUMENTS = ast.arguments([], [], None, [], [], None, [])


def _binds(node: ast.BoolOp) -> bool:
    """Whether it does what a function of its own cannot do in its place."""
    return any(isinstance(one, ast.NamedExpr | ast.Yield | ast.YieldFrom | ast.Await) for one in ast.walk(node))


def meanings(mutants: Sequence[Mutant]) -> dict[str, tuple[Meaning, Meaning]]:
    """What the operator of a place means, in the module and in the mutant."""
    found: dict[str, tuple[Meaning, Meaning]] = {}
    for module in {mutant.module for mutant in mutants}:
        by_node = {mutant.node: mutant.name for mutant in mutants if mutant.module == module}
        for node in ast.walk(ast.parse((ROOT / module).read_bytes())):
            if isinstance(node, ast.BoolOp) and _place(node) in by_node:
                found[by_node[_place(node)]] = (_all, _any) if isinstance(node.op, ast.And) else (_any, _all)
            elif isinstance(node, ast.BinOp | ast.Compare) and _place(node) in by_node:
                op = node.op if isinstance(node, ast.BinOp) else node.ops[0]
                found[by_node[_place(node)]] = SWAPPED[type(op)][1:]
    return found


def changed_codes(mutant: Mutant) -> dict[CodeType, CodeType]:
    """The code of each function that the mutant changes, by what it was. Empty: what it changes runs at import."""
    path = str(ROOT / mutant.module)
    pairs = [
        (
            compile((ROOT / mutant.module).read_bytes(), path, "exec", dont_inherit=True),
            compile(mutant.mutated(), path, "exec", dont_inherit=True),
        )
    ]
    found: dict[CodeType, CodeType] = {}
    for old, new in pairs:
        inner = [[one for one in code.co_consts if isinstance(one, CodeType)] for code in (old, new)]
        pairs += zip(*inner, strict=True)
        if old != new and old.co_name != "<module>" and _is_function(old):
            found[old] = new
    return {} if _changes_at_import(pairs[0]) else found


def _is_function(code: CodeType) -> bool:
    return bool(code.co_flags & 0x2)  # CO_NEWLOCALS: not the body of a module or class


def _changes_at_import(pair: tuple[CodeType, CodeType]) -> bool:
    """Whether instructions change that run when the module is imported: its own, and those of its classes."""
    old, new = pair
    own = [[one for one in code.co_consts if not isinstance(one, CodeType)] for code in pair]
    if old.co_code != new.co_code or own[0] != own[1]:
        return True
    classes = zip(
        *[[one for one in code.co_consts if isinstance(one, CodeType) and not _is_function(one)] for code in pair],
        strict=True,
    )
    return any(_changes_at_import(one) for one in classes)
