"""What copies, row sums, scales and pieces store, in slow and obvious NumPy: what their kernels are held to."""

from __future__ import annotations

import numpy as np

from tilewright.dtypes import Array
from tilewright.problem.emulation import scales_of, split
from tilewright.problem.relayout import Relayout
from tilewright.problem.row_sums import RowSums
from tilewright.problem.scaling import Scaling
from tilewright.problem.splitting import Splitting
from tilewright.problem.storages import Storages, lines_of


def relaid(storages: Storages) -> dict[str, Array]:
    """The storage of each copy after the launch, exactly; gaps as they were."""
    problem = storages.problem
    assert isinstance(problem, Relayout)
    found: dict[str, Array] = {}
    for suffix, copy in zip(problem.names, problem.copies, strict=True):
        target = found[f"target{suffix}"] = storages.storage(f"target{suffix}").copy()
        for number in range(problem.count):
            source = storages.storage(f"source{suffix}")
            held = lines_of(source, number * copy.step, copy.lines, copy.length, copy.leading)
            values = problem.out.encode(problem.dtype.decode(held.T if copy.transposed else held))
            place = lines_of(target, number * copy.to_step, copy.to_lines, copy.to_length, copy.to_leading)
            place[...] = 0
            place[: values.shape[0], : values.shape[1]] = values
    return found


def summed_rows(storages: Storages) -> Array:
    """The storage of the sums after the launch, exactly; gaps as they were."""
    problem = storages.problem
    assert isinstance(problem, RowSums)
    found = storages.storage("sums").copy()
    target = lines_of(found, 0, problem.lines, problem.length, problem.to_leading)
    stored = lines_of(storages.storage("source"), 0, problem.from_lines, problem.length, problem.leading)
    for line in range(problem.lines):
        begin, end = _terms_of(storages, line)
        index = storages.storage("index")[begin:end]
        known = [j for j, one in zip(range(begin, end), index.tolist(), strict=True) if 0 <= one < problem.from_lines]
        if problem.is_copy:
            target[line] = stored[storages.storage("index")[known[0]]] if known else 0
            continue
        total = np.zeros(problem.length, np.float32)
        for j in known:
            term = problem.dtype.decode(stored[storages.storage("index")[j]]).astype(np.float64)
            factor = float(storages.storage("weights")[j]) if problem.weighted else 1.0
            total = (total + term * factor).astype(np.float32)  # one rounding, as a multiply-add has
        target[line] = problem.dtype.encode(total)
    return found


def _terms_of(storages: Storages, line: int) -> tuple[int, int]:
    problem = storages.problem
    assert isinstance(problem, RowSums)
    if problem.terms:
        return line * problem.terms, (line + 1) * problem.terms
    begin, end = (min(max(int(one), 0), problem.listed) for one in storages.storage("begins")[line : line + 2])
    return begin, max(begin, end)


def scales_stored(storages: Storages) -> Array:
    """The storage of the scales after the launch, exactly; gaps as they were."""
    problem = storages.problem
    assert isinstance(problem, Scaling)
    target = storages.storage("target").copy()
    for number in range(problem.count):
        first = number * problem.step
        source = lines_of(storages.storage("source"), first, problem.lines, problem.length, problem.leading)
        scales = scales_of(source, axis=0 if problem.across else 1)
        inverses, behind = number * problem.apart, (problem.count + number) * problem.apart
        target[inverses : inverses + problem.scaled] = 1 / scales
        target[behind : behind + problem.scaled] = scales
    return target


def flag_stored(storages: Storages) -> bool:
    """Whether the launch raises the flag."""
    problem, raised = storages.problem, False
    assert isinstance(problem, Splitting)
    for number in range(problem.count):
        source, scale = _scaled_source(storages, number)
        with np.errstate(invalid="ignore", under="ignore"):
            scaled = abs(source * scale * scale)
        raised |= bool(((scaled < np.float32(problem.least)) & (source != 0)).any())
    return raised


def _scaled_source(storages: Storages, number: int) -> tuple[Array, Array | float]:
    """A source of a batch, and by what its numbers are multiplied twice."""
    problem = storages.problem
    assert isinstance(problem, Splitting)
    first = number * problem.step
    source = lines_of(storages.storage("source"), first, problem.lines, problem.length, problem.leading)
    if problem.own_scales:
        return source, scales_of(source, axis=1)[:, None]
    if not problem.algorithm.shift:
        return source, 1.0
    scales = storages.storage("scales")[number * problem.scale_step :][: problem.scaled]
    return source, scales[None, :] if problem.across else scales[:, None]


def inverses_stored(storages: Storages) -> Array:
    """The storage of the inverses of scales that the launch finds, exactly; gaps as they were."""
    problem = storages.problem
    assert isinstance(problem, Splitting)
    found = storages.storage("inverses").copy()
    for number in range(problem.count):
        first = number * problem.step
        source = lines_of(storages.storage("source"), first, problem.lines, problem.length, problem.leading)
        found[number * problem.scale_step :][: problem.lines] = 1 / scales_of(source, axis=1)
    return found


def pieces_stored(storages: Storages) -> Array:
    """The storage of the pieces after the launch, exactly; gaps as they were."""
    problem = storages.problem
    assert isinstance(problem, Splitting)
    target = storages.storage("target").copy()
    for number in range(problem.count):
        source, scale = _scaled_source(storages, number)
        for at, piece in enumerate(split(source, problem.algorithm, scale)):
            first = number * problem.to_step + at * problem.to_piece
            place = lines_of(target, first, problem.to_lines, problem.to_length, problem.to_leading)
            place[...] = 0
            place[: problem.lines, : problem.length] = problem.out.encode(piece)
    return target
