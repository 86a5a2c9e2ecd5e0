"""C of a product with a coded weight, from sums in shared memory."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.dtypes import F32
from tilewright.ir.buffer import Buffer
from tilewright.ir.expr import Binary, Const, Expr, Load, Op, Ref, Var, binary, both, real
from tilewright.ir.expr import ceil_div as ceil_div_of
from tilewright.ir.finish import store_finished
from tilewright.ir.kernel import SIZES
from tilewright.ir.stmt import Alloc, Assign, Body, For, Let, Move
from tilewright.kernels.statements import THREAD, at, below, element_of, least, registers, times, together, unrolled
from tilewright.problem.coded_product import CodedProduct
from tilewright.problem.weight_codes import unpacked_exponent


@dataclass(frozen=True)
class SumsStore:
    """sums: (parts, rows, columns and a pad), which are added in the order of the parts. rows, columns: of C, of a
    block. threads: that share out the elements, the first of the block. first_row, first_column: of the block's part
    of C. vector: neighbours of a row that a thread finishes at once. may_be_empty: rows may begin behind C's last."""

    problem: CodedProduct
    sums: Buffer
    rows: int
    columns: int
    threads: int
    first_row: Expr
    first_column: Expr
    vector: int = 1
    may_be_empty: bool = False

    def body(self) -> Body:
        """Sums of all parts in their order, and C."""
        parts = self.sums.shape[0]
        along = self.columns // self.vector
        number, column = Var("number"), Var("column")
        total, part = registers("whole", F32, self.vector), registers("warp_sum", F32, parts * self.vector)
        outputs = Var("outputs")
        there = below(number, outputs)
        exponent = unpacked_exponent(self.problem.weight.codes, self.problem.dtype)

        def load(w: Expr) -> Move:
            place = at(self.sums, w, number // along, self._times(number % along))
            return Move(at(part, self._times(w)), place, self.vector, there, origin="sums")

        def first(e: Expr) -> Assign:
            return Assign(at(total, e), Load(part, (e,)), origin="sums")

        def add(w: Expr, e: Expr) -> Assign:
            addend = Load(part, (self._times(w + 1) + e,))
            return Assign(at(total, e), Binary(Op.ADD, Load(total, (e,)), addend), origin="sums")

        def rescale(e: Expr) -> Assign:
            return Assign(at(total, e), Binary(Op.MUL, Load(total, (e,)), real(2.0**-exponent)), origin="sums")

        body = together(
            Let("number", Var("round") * self.threads + THREAD),
            Let("row", self.first_row + number // along),
            Let("column", self.first_column + self._times(number % along)),
            (Alloc(total), Alloc(part)),
            unrolled("w", parts, load),
            unrolled("e", self.vector, first),
            unrolled("w", parts - 1, lambda w: unrolled("e", self.vector, lambda e: add(w, e))) if parts > 1 else (),
            unrolled("e", self.vector, rescale) if exponent else (),
            store_finished(
                self.problem.epilogue,
                self.problem.out,
                lambda e: Load(total, (e,)),
                self._place,
                width=self.vector,
                guard=both(there, below(column, SIZES["n"])),
            ),
        )
        left = SIZES["m"] - self.first_row
        rows = least(Const(self.rows), binary(Op.MAX, left, 0) if self.may_be_empty else left)
        return together(Let("outputs", rows * along), For("round", ceil_div_of(outputs, self.threads), body))

    def _times(self, vectors: Expr) -> Expr:
        return vectors * self.vector if self.vector > 1 else vectors

    def _place(self, name: str) -> Ref:
        """The first element of C, or of what the epilogue reads, that belongs to this thread's output."""
        dtype = next(matrix.dtype for matrix in self.problem.matrices if matrix.name == name)
        if name == "C":
            return element_of(name, dtype, times(Var("row"), "ldc", near=True) + Var("column"))
        return element_of(name, dtype, Var("column"))
