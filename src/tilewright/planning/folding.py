"""What follows a kernel that writes partial results of folds: each line of them as one number, in one order.

Eight partial results are folded in ascending order, and so are those of each eight, until no more than 32 are left,
which one launch folds. Kernels that hold whole rows of 64 columns have folded the first eights themselves. The order
depends on the length of a line alone, so a call gives the same bits in every run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tilewright.dtypes import F32
from tilewright.kernels.reduce import ReduceConfig
from tilewright.lowering.epilogue_results import MOST_LEFT, TOGETHER, folds_of
from tilewright.planning.kernels import Kernels, build_of
from tilewright.planning.packing import TMA_BYTES, as_read
from tilewright.planning.plan import Place, Role, Step
from tilewright.problem.functions import Operation
from tilewright.problem.gemm import Gemm
from tilewright.problem.reduction import Reduction
from tilewright.problem.values import Fold
from tilewright.units import round_up
from tilewright.winners.plan_config import PlanConfig

_ALIGNMENT = 256

Where = tuple[int, int]
"""A place of a call, and bytes beyond it."""


def in_groups(gemm: Gemm, config: PlanConfig) -> Gemm:
    """The problem, its folds in the groups that a plan's kernel makes. Raises LoweringError where it makes none."""
    if all(one.fold is None for one in gemm.epilogue.written):
        return gemm
    folds = folds_of(build_of(as_read(gemm, config), config).program)
    results = []
    for one in gemm.epilogue.results:
        if one.operand.fold is not None:
            one = replace(one, operand=replace(one.operand, fold=folds[one.operand.name]))
        results.append(one)
    return replace(gemm, epilogue=replace(gemm.epilogue, results=tuple(results)))


@dataclass
class Folding:
    """The launches behind a kernel. at: bytes of the workspace that are taken."""

    kernels: Kernels
    gemm: Gemm
    at: int

    def __post_init__(self) -> None:
        self.steps: list[Step] = []
        self.partials: dict[str, Where] = {}
        names = [one.name for one in (*self.gemm.epilogue.named, *self.gemm.epilogue.written)]
        for added in self.gemm.epilogue.written:
            if added.fold is not None:
                self._fold(added.name, added.fold, (Place.OPERAND + names.index(added.name), 0))

    def _fold(self, name: str, fold: Fold, target: Where) -> None:
        if fold.codes is not None:
            self.partials[name] = target
            return
        operand = self.gemm.operand(name)
        length, parts = self.gemm.line_of(operand), self.gemm.groups_of(operand)
        self.partials[name] = source = self._room(parts * length)
        if not fold.whole:
            self._lines(fold.operation, source, parts, length, target)
            return
        line = self._room(length)
        self._lines(fold.operation, source, parts, length, line)
        self._lines(fold.operation, line, length, 1, target)

    def _room(self, elements: int) -> Where:
        here = Place.SCRATCH, self.at
        self.at = round_up(self.at + elements * F32.bytes, _ALIGNMENT)
        return here

    def _lines(
        self,
        operation: Operation,
        source: Where,
        parts: int,
        length: int,
        target: Where,
    ) -> None:
        """`parts` vectors one behind the other to one."""
        while parts > MOST_LEFT:
            whole, rest = divmod(parts, TOGETHER)
            found = self._room((whole + bool(rest)) * length)
            self._launch(operation, source, found, whole, length, TOGETHER)
            if rest:
                done = whole * length * F32.bytes
                behind = source[0], source[1] + TOGETHER * done
                self._launch(operation, behind, (found[0], found[1] + done), 1, length, rest)
            source, parts = found, whole + bool(rest)
        self._launch(operation, source, target, 1, length, parts)

    def _launch(self, operation: Operation, source: Where, target: Where, rows: int, length: int, parts: int) -> None:
        assert operation is Operation.PLUS or operation is Operation.MAXIMUM
        problem = Reduction(rows, length, parts, parts * length, length, operation=operation)
        aligned = TMA_BYTES if length * F32.bytes % TMA_BYTES == 0 else F32.bytes
        config = ReduceConfig.of(problem, aligned, overlapped=self.kernels.overlaps)
        launch = self.kernels.auxiliary(config, problem)
        what = f"{parts} partial results of each element"
        self.steps.append(Step(launch, (source, target), Role.FOLD, what, problem.compulsory_bytes))


def places_of(gemm: Gemm, partials: Mapping[str, Where]) -> dict[str, Where]:
    """Where the operands of the functions lie, and what is written beside C."""
    names = [one.name for one in (*gemm.epilogue.named, *gemm.epilogue.written)]
    return {name: (int(Place.OPERAND) + number, 0) for number, name in enumerate(names)} | dict(partials)
