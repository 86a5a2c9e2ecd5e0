"""The kernels that stand as text: copies of operands, the sum of parts, thin products."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from cpu_gpu import STATE, CpuKernel

from tilewright.artifacts import CudaSource
from tilewright.dtypes import BF16, F16, F32, DType
from tilewright.planning.passes.finish import finish_source
from tilewright.planning.passes.pad import LINES, pad_grid, pad_source, padded, whole_pieces
from tilewright.planning.passes.thin import thin_source
from tilewright.planning.passes.turn import turn_grid, turn_source
from tilewright.problem.epilogue import Activation, Epilogue
from tilewright.runtime.nvrtc import compile_cuda
from tilewright.runtime.sass import disassemble
from tilewright.units import round_up

MATRICES = [(1, 1, 1), (5, 7, 7), (33, 65, 70), (64, 32, 33), (3, 300, 301)]


def aligned(count: int, dtype: DType, at: int = 0) -> Any:
    """Numbers that begin `at` elements behind a multiple of 16 bytes, in front of poison."""
    room = np.full(count + 64, 99, dtype.storage)
    start = (-room.ctypes.data % 16) // dtype.bytes + at
    return room[start : start + count]


def assert_ends_with_zeros(rows: Any, length: int, dtype: DType) -> None:
    """To the end of a piece of 16 bytes; what lies behind is not written."""
    end = round_up(length, 16 // dtype.bytes)
    assert (rows[:, length:end] == 0).all(), "a vector at the end of a row holds something else"
    assert (rows[:, end:] == 99).all(), "what lies between the rows was written"


def run(source: CudaSource, grid: tuple[int, int, int], *arguments: Any) -> None:
    STATE.order = 2
    given = [a.ctypes.data if isinstance(a, np.ndarray) else a for a in arguments]
    launch = CpuKernel(source).prepare(grid, (source.threads_per_block, 1, 1), tuple(given))
    launch.launch(0, *(value for value, p in zip(given, source.parameters, strict=True) if p.is_pointer))


@pytest.mark.parametrize("at", [0, 1, 3])
@pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=str)
@pytest.mark.parametrize(("lines", "length", "leading"), MATRICES)
def test_a_padded_copy_is_a_copy(lines: int, length: int, leading: int, dtype: DType, at: int) -> None:
    count = 2  # of a stack
    step, wide = lines * leading + 5, padded(length, dtype)
    source, target = aligned(count * step, dtype, at), aligned(count * lines * wide, dtype)
    source[:] = np.arange(source.size) % 2000
    whole = whole_pieces(length, dtype)
    x, y, _ = pad_grid([(lines, whole)], dtype)
    numbers = (lines, length, lines, whole, leading, wide, step, lines * wide)
    run(pad_source(dtype), (x, y, count), source, target, *numbers)
    for i in range(count):
        expected = source[i * step :][: lines * leading].reshape(lines, leading)[:, :length]
        copied = target[i * lines * wide :][: lines * wide].reshape(lines, wide)
        np.testing.assert_array_equal(copied[:, :length], expected)
        assert_ends_with_zeros(copied, length, dtype)


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize(("large", "small"), [((33, 65, 70), (5, 7, 7)), ((5, 7, 7), (3, 2100, 2101))])
def test_two_matrices_are_copied_by_one_launch(large: Any, small: Any, dtype: DType) -> None:
    """Each of a stack of two, of its own size; in either order."""
    for sizes in ((large, small), (small, large)):
        arguments: list[Any] = []
        made = []
        for lines, length, leading in sizes:
            step, wide = lines * leading + 5, padded(length, dtype)
            source, target = aligned(2 * step, dtype, 1), aligned(2 * lines * wide, dtype)
            source[:] = np.arange(source.size) % 2000
            whole = whole_pieces(length, dtype)
            arguments += [source, target, lines, length, lines, whole, leading, wide, step, lines * wide]
            made.append((source, target, lines, length, leading, wide, step))
        x, y, z = pad_grid([(lines, length) for lines, length, _ in sizes], dtype)
        run(pad_source(dtype, 2), (x, y, 2 * z), *arguments)
        for source, target, lines, length, leading, wide, step in made:
            for i in range(2):
                expected = source[i * step :][: lines * leading].reshape(lines, leading)[:, :length]
                copied = target[i * lines * wide :][: lines * wide].reshape(lines, wide)[:, :length]
                np.testing.assert_array_equal(copied, expected)


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize(("lines", "length", "leading"), MATRICES)
def test_a_turned_copy_is_the_transpose(lines: int, length: int, leading: int, dtype: DType) -> None:
    count = 2
    step, wide = lines * leading + 5, padded(lines, dtype)
    source, target = aligned(count * step, dtype), aligned(count * length * wide, dtype)
    source[:] = np.arange(source.size) % 2000
    to = length, whole_pieces(lines, dtype)
    x, y, _ = turn_grid(*to)
    numbers = (lines, length, *to, leading, wide, step, length * wide)
    run(turn_source(dtype), (x, y, count), source, target, *numbers)
    for i in range(count):
        expected = source[i * step :][: lines * leading].reshape(lines, leading)[:, :length].T
        turned = target[i * length * wide :][: length * wide].reshape(length, wide)
        np.testing.assert_array_equal(turned[:, :lines], expected)
        assert_ends_with_zeros(turned, lines, dtype)


@pytest.mark.parametrize("turned", [False, True], ids=["copied", "turned"])
def test_a_copy_that_is_larger_goes_on_with_zeros(turned: bool) -> None:
    """More lines than its source, and longer ones, to whole tiles of 64 x 128."""
    lines, length, leading, to = 33, 65, 70, (64, 128)
    source, target = aligned(lines * leading, F32), aligned(to[0] * to[1], F32)
    source[:] = np.arange(source.size)
    to = to[::-1] if turned else to
    size = (length, lines) if turned else (lines, length)
    text, grid = (turn_source(F32), turn_grid(*to)) if turned else (pad_source(F32), pad_grid([to], F32))
    run(text, grid, source, target, lines, length, *to, leading, to[1], 0, 0)
    expected = source.reshape(lines, leading)[:, :length]
    copied = target.reshape(to)
    np.testing.assert_array_equal(copied[: size[0], : size[1]], expected.T if turned else expected)
    assert (copied[size[0] :] == 0).all() and (copied[:, size[1] :] == 0).all()


def test_more_lines_than_a_grid_has_blocks_for() -> None:
    lines, length = 270_000, 3
    source, target = aligned(lines * length, F32), aligned(lines * 4, F32)
    source[:] = np.arange(source.size)
    assert pad_grid([(lines, length)], F32)[1] * LINES < lines
    numbers = (lines, length, lines, 4, length, 4, 0, 0)
    run(pad_source(F32), pad_grid([(lines, length)], F32), source, target, *numbers)
    np.testing.assert_array_equal(target.reshape(lines, 4)[:, :3], source.reshape(lines, length))


@pytest.mark.parametrize("arch", ["sm_75", "sm_86", "sm_90a"])
def test_all_of_them_compile(arch: str) -> None:
    sources = [pad_source(F32), pad_source(BF16), pad_source(F32, 2), pad_source(BF16, 2), turn_source(F32)]
    sources += [finish_source(out, Epilogue("m", True, Activation.GELU), width=4) for out in (F32, F16, BF16)]
    sources += [
        thin_source(dtype, F32, rows=rows, width=16 // dtype.bytes, across=across)
        for dtype, rows in ((F32, 16), (F16, 4), (BF16, 1))
        for across in (True, False)
    ]
    for source in sources:
        assert compile_cuda(source, arch).resources.spill_load_bytes <= 8, source.entry


@pytest.mark.parametrize(
    "source",
    [pad_source(BF16, 2), turn_source(F32), finish_source(BF16, Epilogue("n", True), width=4)],
    ids=lambda source: source.entry,
)
def test_nothing_is_touched_before_the_grids_before_have_ended(source: CudaSource) -> None:
    """Nor moved there by the compiler; and no load takes for constant what they may still write."""
    code = [line for line in disassemble(compile_cuda(source, "sm_90a")).splitlines() if "/*" in line]
    waits = next(i for i, line in enumerate(code) if "ACQBULK" in line)
    touched = [i for i, line in enumerate(code) if re.search(r"\b(LDG|STG|LD|ST|RED|ATOM)\b", line)]
    assert source.overlapped and touched and waits < touched[0]
    assert any("PREEXIT" in line for line in code[:waits]), "the next kernel is not told that it may start"
    assert not any("CONSTANT" in code[i] for i in touched)
    assert "griddepcontrol" not in disassemble(compile_cuda(source, "sm_86"))


def test_the_thin_kernel_fills_the_gpu_and_waits_for_its_turn() -> None:
    source = thin_source(F32, F32, rows=1, width=4, across=True)
    assert not source.overlapped and "griddepcontrol" not in source.text and "__restrict__" in source.text
