"""Guards and offsets of single accesses, carried out: which elements are touched, against those that there are."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from tests.lowering.scalar_runs import Thread
from tilewright.dtypes import F32
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import Const, Expr, Ref, Var
from tilewright.ir.kernel import Variant
from tilewright.ir.program import Program
from tilewright.ir.stmt import Alloc, Body, For, If, Move
from tilewright.ir.work import Problems
from tilewright.ladders import find_rung
from tilewright.lowering.coordinates import base_of, end_of, origin_of, size_of
from tilewright.lowering.flatten_indices import flatten_indices
from tilewright.lowering.guard_edges import guard_edges
from tilewright.lowering.narrow_accesses import narrow_accesses
from tilewright.problem import Gemm
from tilewright.toolchain import build

SIZES = {"M": 5, "N": 6, "K": 7}
ROW, COLUMN = Var("row"), Var("column")
DIMS = {"A": "mk", "B": "kn", "C": "mn"}
Element = tuple[int, int]


def program() -> Program:
    gemm = Gemm(256, 256, 64)
    return build(gemm, find_rung("worklog/1")).program


def access(name: str, width: int, *, asynchronous: bool = False) -> Move:
    """A load of A or B, or a store of C, of `width` elements from (row, column) on."""
    matrix = Ref(Buffer(name, Space.GLOBAL, F32, (), tuple(DIMS[name])), (ROW, COLUMN))
    space = Space.SHARED if asynchronous else Space.REGISTER
    own = Ref(Buffer("own", space, F32, (8,)), (Const(0),))
    if name == "C":
        return Move(matrix, own, width)
    return Move(own, matrix, width, asynchronous=asynchronous)


def touched(body: Body, row: int, column: int) -> list[list[Element]]:
    """The elements of the matrix that each access touches."""
    thread, found = Thread({**SIZES, "row": row, "column": column}), []

    def run(body: Body) -> None:
        for stmt in body:
            match stmt:
                case If():
                    run(stmt.then if thread.value(stmt.condition) else stmt.otherwise)
                case For():
                    for number in range(thread.value(stmt.extent)):
                        thread.names[stmt.var] = number
                        run(stmt.body)
                case Move() if stmt.guard is None or thread.value(stmt.guard):
                    place = stmt.src if stmt.src.buffer.space is Space.GLOBAL else stmt.dst
                    r, c = (thread.value(at) for at in place.index)
                    count = stmt.width if stmt.valid is None else thread.value(stmt.valid)
                    found.append([(r, c + element) for element in range(count)])
                case Move() | Alloc():
                    pass
                case _:
                    raise AssertionError(stmt)

    run(body)
    return found


def inside(name: str, exact: str, elements: list[Element]) -> list[Element]:
    """Those in the matrix; a dimension that is `exact` has as many elements as are asked for."""
    sizes = [1 << 30 if dim in exact else SIZES[dim.upper()] for dim in DIMS[name]]
    return [(row, column) for row, column in elements if row < sizes[0] and column < sizes[1]]


EXACT = ["", "m", "n", "k", "mk", "mnk"]


@pytest.mark.parametrize("exact", EXACT)
@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("name", "ABC")
def test_a_guarded_access_touches_what_lies_inside_and_no_more(name: str, width: int, exact: str) -> None:
    """A whole vector at once; of one that is cut off, one element after the other."""
    body = guard_edges((access(name, width),), program(), frozenset(exact), Variant())  # type: ignore[arg-type]
    for row, column in product(range(9), range(9)):
        elements = [(row, column + element) for element in range(width)]
        there, found = inside(name, exact, elements), touched(body, row, column)
        assert [one for part in found for one in part] == there
        assert len(found) == (1 if there == elements else len(there))


@pytest.mark.parametrize("exact", EXACT)
@pytest.mark.parametrize("name", "AB")
def test_an_asynchronous_copy_reads_as_many_elements_as_there_are_at_once(name: str, exact: str) -> None:
    body = guard_edges((access(name, 4, asynchronous=True),), program(), frozenset(exact), Variant())  # type: ignore[arg-type]
    for row, column in product(range(9), range(9)):
        there = inside(name, exact, [(row, column + element) for element in range(4)])
        assert touched(body, row, column) == ([there] if there else [])


@pytest.mark.parametrize("name", "AB")
def test_whole_vectors_are_guarded_by_their_first_element(name: str) -> None:
    """Where rows are known to hold whole vectors."""
    body = guard_edges((access(name, 4),), program(), frozenset(), Variant(whole=True))
    for row, column in product(range(9), range(9)):
        elements = [(row, column + element) for element in range(4)]
        assert touched(body, row, column) == ([elements] if inside(name, "", elements[:1]) else [])


@pytest.mark.parametrize("name", ["A", "B"])
def test_lines_that_are_filled_up_are_read_without_a_guard(name: str) -> None:
    one = access(name, 4)
    assert guard_edges((one,), program(), frozenset("k"), Variant(frozenset("k"), filled=True)) == (one,)
    assert guard_edges((one,), program(), frozenset("k"), Variant(frozenset("k"))) != (one,)


def test_what_is_settled_or_no_matrix_has_no_guard() -> None:
    settled = replace(access("A", 4), settled=True)
    own = Ref(Buffer("own", Space.SHARED, F32, (8,)), (Var("row"),))
    workspace = Ref(Buffer("parts", Space.GLOBAL, F32, ()), (Var("row"),))
    body: Body = (settled, Move(own, workspace, 2), Move(own, own, 2))
    assert guard_edges(body, program(), frozenset(), Variant()) == body


def test_a_loop_that_counts_a_dimension_never_leaves_it() -> None:
    plan = program()
    counted = next(loop for loop in plan.loops if loop.axes[0].dim == "k")
    assert counted.axes[0].extent is None and counted.axes[0].stride == 1
    digit, load = Var(counted.axes[0].name), access("A", 1)

    def guard(row: Expr, column: Expr, exact: str = "") -> bool:
        one = replace(load, src=replace(load.src, index=(row, column)))
        ((found),) = guard_edges((one,), plan, frozenset(exact), Variant())  # type: ignore[arg-type]
        return isinstance(found, Move) and found.guard is not None

    assert not guard(ROW, digit, "m") and guard(ROW, digit + 1, "m") and guard(ROW, COLUMN, "m")
    assert guard(ROW, digit)


@pytest.mark.parametrize("alignment", [1, 4, 8, 16])
@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize("name", "ABC")
def test_no_access_is_wider_than_its_alignment(name: str, width: int, alignment: int) -> None:
    """The same elements, in order, in as few accesses as there can be."""
    move = access(name, width)
    body = narrow_accesses((move,), program(), Variant(alignment_bytes=alignment))
    each = min(width, max(alignment // 4, 1))
    expected = [[(3, first + element) for element in range(each)] for first in range(8, 8 + width, each)]
    assert touched(body, 3, 8) == expected
    settled = replace(move, settled=True)
    assert narrow_accesses((settled,), program(), Variant(alignment_bytes=alignment)) == (settled,)


@pytest.mark.parametrize("near", [False, True])
@pytest.mark.parametrize("name", "ABC")
def test_offsets_are_rows_of_the_leading_dimension(name: str, near: bool) -> None:
    """Far ones do not overflow 32 bits: their factors are 64 bits wide."""
    (move,) = flatten_indices((access(name, 2),), program(), near=near)
    assert isinstance(move, Move)
    place = move.dst if name == "C" else move.src
    leading = f"ld{name.lower()}"
    for row, column, rows in [(0, 3, 11), (4, 5, 11), (1 << 20, 7, 1 << 20)]:
        names = {**SIZES, "row": row, "column": column, leading: rows}
        (offset,) = place.index
        assert Thread(names).value(offset) == row * rows + column
    assert place.index[0].dtype.bytes == (4 if near else 8)


def test_a_branch_that_is_never_taken_is_left_out_and_a_guard_that_holds_as_well() -> None:
    move = access("A", 1)
    no, yes = (If(Const(value), (replace(move, width=1 + value),), (move,)) for value in (0, 1))
    always = replace(move, guard=Const(1))
    found = flatten_indices((no, yes, always), program(), near=True)
    assert [stmt.width for stmt in found if isinstance(stmt, Move)] == [1, 2, 1]
    assert all(isinstance(stmt, Move) and stmt.guard is None for stmt in found)


@pytest.mark.parametrize(
    ("problems", "dim", "expected"),
    [
        (Problems.ONE, "m", (5, 0, 5)),
        (Problems.GROUPED_M, "m", (2, 3, 5)),
        (Problems.GROUPED_M, "k", (7, 0, 7)),
        (Problems.GROUPED_K, "k", (2, 3, 5)),
        (Problems.GROUPED_K, "m", (5, 0, 5)),
    ],
)
def test_a_group_begins_and_ends_where_its_names_say(problems: Problems, dim: str, expected: tuple[int, ...]) -> None:
    """size, first index, index behind the last; of groups of two rows (or k) from the third on."""
    plan = replace(program(), problems=problems)
    names = {**SIZES, "m_first": 3, "m_size": 2, "k_first": 3, "k_size": 2}
    found = (size_of(plan, dim), origin_of(plan, dim), end_of(plan, dim))  # type: ignore[arg-type]
    assert tuple(Thread(names).value(one) for one in found) == expected


def test_matrices_begin_a_step_apart_in_64_bits() -> None:
    base = base_of(program(), "A", Var("number"))
    assert base.dtype.bytes == 8
    assert Thread({"number": 3, "A_step": 10}).value(base) == 30
