"""Operands of auxiliary kernels, drawn at random: gaps hold NaN."""

from __future__ import annotations

import numpy as np

from tilewright.dtypes import I32, Array
from tilewright.problem.coded_product import CodedProduct
from tilewright.problem.emulation import scales_of
from tilewright.problem.problem import Problem
from tilewright.problem.quantization import Quantization
from tilewright.problem.reduction import Reduction, _view
from tilewright.problem.relayout import Relayout
from tilewright.problem.row_sums import RowSums
from tilewright.problem.scaling import Scaling
from tilewright.problem.splitting import Splitting
from tilewright.problem.storages import Storages, lines_of
from tilewright.problem.weight_coding import WeightCoding, _source


def drawn_quantization(problem: Quantization, *, seed: int = 0) -> Storages:
    """A random normal source of drawn magnitudes, with some infinities, NaN and zeros; gaps hold NaN."""
    rng = np.random.default_rng(seed)
    arrays = {matrix.name: poisoned(problem, matrix.name) for matrix in problem.matrices}
    target = lines_of(arrays["source"], 0, problem.lines, problem.length, problem.leading)
    values = rng.standard_normal(target.shape, dtype=np.float32)
    values *= np.exp2(rng.integers(-12, 12, (problem.lines, 1))).astype(np.float32)
    strange = rng.choice(np.array([np.inf, -np.inf, np.nan, 0.0], np.float32), target.shape)
    target[...] = problem.dtype.encode(np.where(rng.random(target.shape) < 0.05, strange, values))
    if problem.groups == "all":
        arrays["largest"][:] = 300
    return Storages(problem, arrays)


def drawn_partials(problem: Reduction, *, seed: int = 0) -> Storages:
    """Random normal matrices; gaps, and what beta = 0 leaves unread, hold NaN."""
    rng = np.random.default_rng(seed)
    arrays: dict[str, Array] = {}
    for matrix in problem.matrices:
        storage = arrays[matrix.name] = poisoned(problem, matrix.name)
        added = problem.operand(matrix.name)
        if added is not None and added.is_vector:
            storage[...] = matrix.dtype.encode(rng.standard_normal(storage.size, dtype=np.float32))
        elif matrix.name == "partials" or _reads(problem, matrix.name):
            target = _view(problem, matrix.name, storage)
            target[...] = matrix.dtype.encode(rng.standard_normal(target.shape, dtype=np.float32))
    return Storages(problem, arrays)


def drawn_sources(problem: Relayout, *, seed: int = 0) -> Storages:
    """Random normal sources whose gaps hold NaN; copies hold NaN."""
    rng = np.random.default_rng(seed)
    arrays = {matrix.name: poisoned(problem, matrix.name) for matrix in problem.matrices}
    for suffix, copy in zip(problem.names, problem.copies, strict=True):
        source = arrays[f"source{suffix}"]
        for number in range(problem.count):
            target = lines_of(source, number * copy.step, copy.lines, copy.length, copy.leading)
            target[...] = problem.dtype.encode(rng.standard_normal(target.shape, dtype=np.float32))
    return Storages(problem, arrays)


def drawn_scaling(problem: Scaling, *, seed: int = 0) -> Storages:
    """A random normal source of drawn magnitudes, with some infinities, NaN and zeros; gaps hold NaN."""
    rng = np.random.default_rng(seed)
    arrays = {matrix.name: poisoned(problem, matrix.name) for matrix in problem.matrices}
    for number in range(problem.count):
        first = number * problem.step
        target = lines_of(arrays["source"], first, problem.lines, problem.length, problem.leading)
        kept = (1, problem.length) if problem.across else (problem.lines, 1)
        values = rng.standard_normal(target.shape, dtype=np.float32)
        with np.errstate(over="ignore", under="ignore"):
            values *= np.exp2(rng.integers(-149, 127, kept)).astype(np.float32)
        strange = rng.choice(np.array([np.inf, -np.inf, np.nan, 0.0], np.float32), target.shape)
        target[...] = np.where(rng.random(target.shape) < 0.1, strange, values)
    return Storages(problem, arrays)


def drawn_splitting(problem: Splitting, *, seed: int = 0) -> Storages:
    """A random normal source, with some numbers of any magnitude, infinities and NaN; gaps hold NaN."""
    rng = np.random.default_rng(seed)
    arrays = {matrix.name: poisoned(problem, matrix.name) for matrix in problem.matrices}
    for number in range(problem.count):
        target = lines_of(arrays["source"], number * problem.step, problem.lines, problem.length, problem.leading)
        values = rng.standard_normal(target.shape, dtype=np.float32)
        drawn = rng.integers(0, 2**32, target.shape, dtype=np.uint64).astype(np.uint32).view(np.float32)
        target[...] = np.where(rng.random(target.shape) < 0.25, drawn, values)
    if problem.flags:
        arrays["flag"][:] = 0
    if "scales" in arrays:
        for number in range(problem.count):
            first = number * problem.step
            source = lines_of(arrays["source"], first, problem.lines, problem.length, problem.leading)
            scales = arrays["scales"][number * problem.scale_step :][: problem.scaled]
            scales[:] = scales_of(source, axis=0 if problem.across else 1)
    return Storages(problem, arrays)


def drawn_weight(problem: WeightCoding, *, seed: int = 0) -> Storages:
    """A random normal source of drawn magnitudes, with groups of zeros, and one with NaN."""
    rng = np.random.default_rng(seed)
    arrays = {matrix.name: poisoned(problem, matrix.name) for matrix in problem.matrices if matrix.name != "codes"}
    arrays["codes"] = np.zeros(problem.storage_elements("codes"), problem.codes_dtype.numpy)
    weight = problem.weight
    values = rng.standard_normal((weight.k, weight.n), dtype=np.float32)
    values *= np.exp2(rng.integers(-12, 4, (1, weight.n))).astype(np.float32)
    values[:32, 0] = 0
    values[-1, weight.n - 1] = np.nan
    _source(problem, arrays["source"])[...] = problem.dtype.encode(values)
    return Storages(problem, arrays)


def drawn_product(problem: CodedProduct, *, seed: int = 0) -> Storages:
    """Random normal activations, a weight of random codes and scales, normal C where beta reads it; gaps hold NaN."""
    rng = np.random.default_rng(seed)
    weight = problem.weight
    arrays = {matrix.name: poisoned(problem, matrix.name) for matrix in problem.matrices if matrix.name in ("A", "C")}
    for name, length, leading in (("A", problem.k, problem.lda), ("C", problem.n, problem.ldc)):
        target = lines_of(arrays[name], 0, problem.m, length, leading)
        if name == "A" or problem.beta:
            dtype = problem.dtype if name == "A" else problem.out
            target[...] = dtype.encode(rng.standard_normal(target.shape, dtype=np.float32))
    if weight.codes.bits == 4:
        numbers = rng.integers(-8, 8, (weight.n, weight.k)).astype(np.float32)
    else:
        numbers = weight.codes.largest * rng.uniform(-1, 1, (weight.n, weight.k)).astype(np.float32)
    arrays["codes"] = weight.pack(numbers)
    scales = np.exp2(rng.uniform(-6, 2, (weight.n, weight.groups))).astype(np.float32)
    arrays["scales" if weight.group else "scale_n"] = weight.lay_scales(scales)
    if problem.epilogue.bias:
        arrays["bias"] = problem.out.encode(rng.standard_normal(problem.n, dtype=np.float32))
    return Storages(problem, {matrix.name: arrays[matrix.name] for matrix in problem.matrices})


def poisoned(problem: Problem, name: str) -> Array:
    """The storage of a matrix, all of it NaN."""
    dtype = next(matrix.dtype for matrix in problem.matrices if matrix.name == name)
    return dtype.encode(np.full(problem.storage_elements(name), np.nan, np.float32))


def _reads(problem: Reduction, name: str) -> bool:
    return (problem.beta != 0 and name == problem.epilogue.addend) or any(
        name == one.name for one in problem.epilogue.reads
    )


def drawn_rows(problem: RowSums, *, seed: int = 0) -> Storages:
    """A random normal source, weights, and indices of which some name no row; gaps hold NaN."""
    rng = np.random.default_rng(seed)
    arrays = {one.name: poisoned(problem, one.name) for one in problem.matrices if one.dtype is not I32}
    target = lines_of(arrays["source"], 0, problem.from_lines, problem.length, problem.leading)
    target[...] = problem.dtype.encode(rng.standard_normal(target.shape, dtype=np.float32))
    index = rng.integers(0, max(problem.from_lines, 1), problem.indices, dtype=np.int32)
    strange = rng.choice(np.array([-1, -(2**31), problem.from_lines, 2**31 - 1], np.int32), problem.indices)
    arrays["index"] = np.where(rng.random(problem.indices) < 0.2, strange, index).astype(np.int32)
    if problem.weighted:
        arrays["weights"][:] = rng.standard_normal(problem.indices, dtype=np.float32)
    if not problem.terms:
        inner = np.sort(rng.integers(0, problem.listed + 1, max(problem.lines - 1, 0)))
        ends = [0, *inner, problem.listed] if problem.lines else [0]
        arrays["begins"] = np.asarray(ends, np.int32)
    return Storages(problem, arrays)
