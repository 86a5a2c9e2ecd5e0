"""Which k each element of C sums: exact arithmetic that names what is missing, repeated or never stored.

A[m, k] holds a code for k and B holds ones, so an element of C is the sum of the codes of the k that it really took,
modulo a prime. A wrong sum differs from the right one by the codes of what is missing or repeated, and a code is found
again by its value. The same with the roles of A and B exchanged is not needed: a product needs both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tilewright.dtypes import Array
from tilewright.ir.async_stmt import TmaStore
from tilewright.ir.kernel import Kernel
from tilewright.ir.stmt import Move
from tilewright.ir.text import kernel_lines
from tilewright.ir.visit import variables, walk
from tilewright.problem.gemm import Gemm
from tilewright.problem.reference import Operands, make_operands, view
from tilewright.simulator.arithmetic import ModularArithmetic
from tilewright.simulator.findings import Access, Listener, TmaCopy
from tilewright.simulator.run import simulate

_MAX_REPORTED = 16


@dataclass(frozen=True, slots=True)
class Miscount:
    """One element of C that does not sum every k once.

    missing, repeated: the k, where one or two of them explain the sum; both empty where nothing simple does. block,
    thread: who stored the element last (None: no thread). guards: the lines that decide which k are loaded.
    """

    row: int
    column: int
    missing: tuple[int, ...]
    repeated: tuple[int, ...]
    block: tuple[int, int, int] | None
    thread: int | None
    guards: tuple[str, ...]

    @property
    def text(self) -> str:
        """One sentence and the lines it points at."""
        what = []
        if self.missing:
            what.append(f"misses k = {', '.join(map(str, self.missing))}")
        if self.repeated:
            what.append(f"repeats k = {', '.join(map(str, self.repeated))}")
        who = "no thread stores it" if self.block is None else f"stored by block {self.block}, thread {self.thread}"
        headline = f"C[{self.row}, {self.column}] {' and '.join(what) or 'is not a sum of products'}; {who}."
        return "\n".join([headline, *(f"  {line}" for line in self.guards)])


class _Stores(Listener):
    """Who stored each element of C last."""

    def __init__(self, elements: int) -> None:
        self.block = np.full((elements, 3), -1, np.int64)
        self.thread = np.full(elements, -1, np.int64)

    def accessed(self, access: Access) -> None:
        if not access.store or access.buffer.name != "C" or access.warps is None:
            return
        warps, active = access.warps, access.pattern.active_rows
        flat = (access.pattern.rows + access.offset).reshape(-1)
        chosen = np.ones(flat.size, bool) if active is None else active.reshape(-1)
        blocks = np.stack([warps.builtin(f"blockIdx.{axis}").values for axis in "xyz"], axis=1)[chosen]
        for element in range(access.width):
            self.block[flat[chosen] + element] = blocks
            self.thread[flat[chosen] + element] = warps.thread[chosen]

    def bulk_copied(self, copy: TmaCopy) -> None:
        if not isinstance(copy.site.stmt, TmaStore) or copy.site.stmt.map.operand != "C":
            return
        blocks = copy.warps.batch.coordinates[copy.warps.block_of_lane[copy.lanes]]
        for places, inside, lane, block in zip(copy.places, copy.inside, copy.lanes, blocks, strict=True):
            self.block[places[inside]] = block
            self.thread[places[inside]] = copy.warps.thread[lane]


def miscounts(kernel: Kernel, gemm: Gemm) -> tuple[Miscount, ...]:
    """The first elements of C, in row order, that do not sum every k exactly once; empty for a right kernel."""
    gemm = replace(gemm, alpha=1.0, beta=0.0)
    arithmetic = ModularArithmetic()
    codes = np.random.default_rng(0).choice(2**23, gemm.k, replace=False) + 1
    operands = _coded(gemm, codes, int(arithmetic.poison(gemm.dtype)))
    stores = _Stores(operands.c.size)
    run = simulate(kernel, operands, listeners=(stores,), detectors=False, on_finding="collect", arithmetic=arithmetic)
    sums = view(gemm, "C", np.asarray(run.c, np.int64))
    wrong = np.argwhere(sums != int(codes.sum()) % arithmetic.prime)[:_MAX_REPORTED]
    places = view(gemm, "C", np.arange(operands.c.size))
    guards = _guards(kernel)
    found = []
    for row, column in wrong.tolist():
        off = (int(sums[row, column]) - int(codes.sum())) % arithmetic.prime
        missing, repeated = _explain(off, codes, arithmetic.prime)
        at = int(places[row, column])
        stored = int(stores.thread[at]) >= 0
        x, y, z = stores.block[at].tolist()
        thread = int(stores.thread[at]) if stored else None
        found.append(Miscount(row, column, missing, repeated, (x, y, z) if stored else None, thread, guards))
    return tuple(found)


def _coded(gemm: Gemm, codes: Array, poison: int) -> Operands:
    """Residues in place of storage, so that codes need not fit the format of the operands. poison: in the gaps."""
    operands = make_operands(gemm)
    a, b = (np.full(storage.size, poison, np.int64) for storage in (operands.a, operands.b))
    view(gemm, "A", a)[...] = codes[None, :]
    view(gemm, "B", b)[...] = 1
    return replace(operands, a=a, b=b)


def _explain(off: int, codes: Array, prime: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The k that are missing and repeated, where at most two of them make up the difference modulo the prime."""
    where = {int(code): k for k, code in enumerate(codes)}
    if off in where:
        return (), (where[off],)
    short = (prime - off) % prime
    if short in where:
        return (where[short],), ()
    for code, k in where.items():
        if (short - code) in where and short != 2 * code:
            return tuple(sorted((k, where[short - code]))), ()
        if (off - code) in where:
            return (), tuple(sorted((k, where[off - code])))
        if (off + code) % prime in where:
            return (k,), (where[(off + code) % prime],)
    return (), ()


def _guards(kernel: Kernel) -> tuple[str, ...]:
    """The lines of the kernel that load from A or B where a condition on K holds."""
    paths = {
        path
        for path, stmt in walk(kernel.body)
        if isinstance(stmt, Move) and stmt.guard is not None and "K" in variables(stmt.guard)
    }
    lines = enumerate(kernel_lines(kernel), 1)
    return tuple(f"line {number}: {line.text.strip()}" for number, line in lines if line.path in paths)
