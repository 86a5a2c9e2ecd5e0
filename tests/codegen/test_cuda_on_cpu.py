"""The emitted text computes what it should: it is run, thread by thread, on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import cuda_on_cpu
import handmade_kernels as handmade
import numpy as np
import pytest

from tilewright.artifacts import CudaSource
from tilewright.codegen import print_cuda
from tilewright.codegen.prelude import PRELUDE
from tilewright.dtypes import BF16, F16
from tilewright.ir.buffer import Space
from tilewright.ir.kernel import SAFE, Kernel, Variant
from tilewright.ir.program import Level, Route
from tilewright.ladders import LADDERS, Rung
from tilewright.lowering import lower
from tilewright.problem import Gemm
from tilewright.problem.gemm import Order
from tilewright.schedule import (
    Accumulate,
    Bind,
    Distribute,
    Epilogue,
    Pipeline,
    Reorder,
    Schedule,
    Split,
    Stage,
    Tensorize,
    Transfer,
)

pytestmark = pytest.mark.skipif(cuda_on_cpu.GXX is None, reason="needs g++")

FACTORS = ((1.0, 0.0), (0.5, -1.0), (1.0, 1.0))


def runs_by_thread(rung: Rung) -> bool:
    """Whether each thread runs by itself: what the lanes of a warp do together, threads of a CPU cannot."""
    return not any(isinstance(step, Tensorize) for step in rung.schedule(rung.gemm(256, 256, 256)))


OF_LADDERS = [[rung for rung in ladder if runs_by_thread(rung)] for ladder in LADDERS.values()]
RUNGS = [rung for rungs in OF_LADDERS for rung in rungs]
TOP_RUNGS = [rungs[-1] for rungs in OF_LADDERS if rungs]


def problems(gemm: Gemm, shapes: tuple[tuple[int, int, int], ...], gap: int) -> list[Gemm]:
    """`gemm` at each shape with each of `FACTORS`, `gap` elements or a little more between the rows."""
    found = []
    for m, n, k in shapes:
        for alpha, beta in FACTORS:
            tight = replace(gemm, m=m, n=n, k=k, alpha=alpha, beta=beta, lda=0, ldb=0, ldc=0)
            wide = {ld: -(-getattr(tight, ld) // gap) * gap + gap for ld in ("lda", "ldb", "ldc")}
            found.append(replace(tight, **wide))
    return found


def assert_right(kernel: Kernel, problems: list[Gemm], folder: Path) -> None:
    program = cuda_on_cpu.build(kernel, print_cuda(kernel), folder)
    for number, gemm in enumerate(problems):
        verdict = program.verdict(gemm, order=number % 3)
        assert verdict.ok, f"{kernel.name} {gemm} alpha={gemm.alpha} beta={gemm.beta}: {verdict.message}"


AWKWARD = ((33, 35, 37), (1, 1, 1), (64, 31, 65))


@pytest.mark.parametrize(
    "kernel",
    [handmade.naive(), handmade.naive(BF16), handmade.shared_tiles(), handmade.shared_tiles(F16)],
    ids=lambda kernel: f"{kernel.name}_{kernel.gemm.dtype}",
)
def test_guarded_kernels_are_right_at_any_shape(kernel: Kernel, tmp_path: Path) -> None:
    assert_right(kernel, problems(kernel.gemm, AWKWARD, gap=3), tmp_path)


@pytest.mark.parametrize("slots", [2, 3, 7])
def test_asynchronous_copies_arrive_early_or_late(slots: int, tmp_path: Path) -> None:
    """Seven slots are more than 48 KiB, so this also runs dynamic shared memory."""
    kernel = handmade.ring(slots=slots)
    assert_right(kernel, problems(kernel.gemm, ((33, 35, 37), (1, 1, 1), (40, 31, 203)), gap=4), tmp_path)


@pytest.mark.parametrize(
    "kernel",
    [handmade.vectorized(), handmade.vectorized(F16), handmade.vectorized(BF16)],
    ids=lambda kernel: f"{kernel.name}_{kernel.gemm.dtype}",
)
def test_vector_accesses_are_right_at_any_m(kernel: Kernel, tmp_path: Path) -> None:
    assert_right(kernel, problems(kernel.gemm, ((67, 128, 24), (1, 64, 8), (130, 64, 64)), gap=8), tmp_path)


def rung_kernel(rung: Rung, variant: Variant) -> Kernel:
    gemm = rung.gemm(256, 256, 64)
    schedule = rung.schedule(gemm)
    *_, program = schedule.programs(gemm)
    return lower(program, variant, name=f"{rung.ladder}_{rung.slug}", heading=schedule.text.splitlines())


def rung_name(rung: Rung) -> str:
    return rung.title.replace(" ", "_")


@pytest.mark.cross_section("rung", every=13)
@pytest.mark.parametrize("rung", RUNGS, ids=rung_name)
def test_rungs_are_right_with_nothing_assumed(rung: Rung, tmp_path: Path) -> None:
    kernel = rung_kernel(rung, SAFE)
    chosen = problems(kernel.gemm, ((130, 67, 35), (1, 1, 1), (7, 129, 9)), gap=3)
    assert_right(kernel, chosen[::4], tmp_path)  # each shape with other factors


@pytest.mark.cross_section("rung", every=3, at=1)
@pytest.mark.parametrize("rung", TOP_RUNGS, ids=rung_name)
def test_top_rungs_are_right_with_all_assumed(rung: Rung, tmp_path: Path) -> None:
    kernel = rung_kernel(rung, Variant(frozenset(("m", "n", "k"))))
    tile = kernel.tile
    assert_right(kernel, problems(kernel.gemm, ((tile["m"] * 2, tile["n"], tile["k"] * 5),), gap=4), tmp_path)


@pytest.mark.cross_section("rung", every=3)
@pytest.mark.parametrize("rung", TOP_RUNGS, ids=rung_name)
def test_top_rungs_are_right_where_vectors_hang_over_an_edge(rung: Rung, tmp_path: Path) -> None:
    kernel = rung_kernel(rung, Variant())
    assert_right(kernel, problems(kernel.gemm, ((130, 67, 35), (1, 1, 1)), gap=4), tmp_path)


@pytest.mark.cross_section("order", "stages", every=2)
@pytest.mark.parametrize("order", [Order.ROW, Order.COL])
@pytest.mark.parametrize("stages", [2, 3])
def test_rows_at_any_two_bytes_are_copied_through_registers(order: Order, stages: int, tmp_path: Path) -> None:
    """Copies of 16 bytes in the schedule, rows at multiples of 2: the harness ends a program that misaligns one."""
    gemm = Gemm(64, 64, 64, F16, out=F16, a=order, b=order)
    schedule = Schedule(
        *(Split(dim, 32, into=(f"{dim}_block", f"{dim}_in")) for dim in ("m", "n", "k")),
        Reorder("m_block", "n_block", "m_in", "n_in", "k_block", "k_in"),
        *(Bind(f"{dim}_block", level) for dim, level in (("m", Level.GRID_Y), ("n", Level.GRID_X))),
        *(Bind(f"{dim}_in", level) for dim, level in (("m", Level.BLOCK_Y), ("n", Level.BLOCK_X))),
        Accumulate(over="k_block"),
        *(Stage(name, Space.SHARED, under="k_block") for name in ("A", "B")),
        *(Distribute(f"{name}_tile", vector=8) for name in ("A", "B")),
        *(Transfer(f"{name}_tile", Route.ASYNC) for name in ("A", "B")),
        Pipeline("k_block", stages),
        Epilogue(),
    )
    *_, program = schedule.programs(gemm)
    kernel = lower(program, SAFE, name="odd_rows")
    assert "cp_async" not in print_cuda(kernel).text
    for gap in (1, 3):
        assert_right(kernel, problems(gemm, ((33, 35, 37), (1, 1, 1), (64, 31, 101)), gap=gap)[::2], tmp_path)


# What the tests above must notice.


def broken(kernel: Kernel, source: CudaSource, gemm: Gemm, folder: Path, order: int) -> str:
    """What is said of a text that is wrong on purpose; empty if nobody notices."""
    program = cuda_on_cpu.build(kernel, source, folder)
    try:
        verdict = program.verdict(gemm, order=order)
    except AssertionError as crash:
        return str(crash)
    return "" if verdict.ok else verdict.message


@pytest.mark.cross_section("order", every=3)
@pytest.mark.parametrize("order", [0, 1, 2])
def test_a_missing_barrier_is_noticed(order: int, tmp_path: Path) -> None:
    kernel = handmade.shared_tiles(barriers=1)
    gemm = kernel.gemm.resized(32, 32, 96)
    assert "elements are wrong" in broken(kernel, print_cuda(kernel), gemm, tmp_path, order)


def test_a_missing_wait_is_noticed(tmp_path: Path) -> None:
    kernel = handmade.ring(waits=False)
    gemm = kernel.gemm.resized(32, 32, 96)
    assert "elements are wrong" in broken(kernel, print_cuda(kernel), gemm, tmp_path, order=0)


def test_a_misaligned_vector_is_noticed(tmp_path: Path) -> None:
    kernel = handmade.vectorized(pad=3)
    gemm = kernel.gemm.resized(64, 64, 8)
    assert "misaligned" in broken(kernel, print_cuda(kernel), gemm, tmp_path, order=0)


Edit = Callable[[str], str]


@pytest.mark.cross_section("edit", every=2)
@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda text: text.replace("(m < M && k_tile * 32 + n_in < K)", "(true)"), "exit -11"),  # reads past A
        (lambda text: text.replace("if (m < M && n < N) C[", "if (m < M) C["), "between the rows of C"),
        (lambda text: text.replace("if (m < M && n < N) C[", "if (n < N) C["), "exit -11"),  # writes past C
        (lambda text: text.replace("A_tile[m_in][n_in] = a", "A_tile[m_in][n_in + 1] = a"), "out of bounds"),
        (lambda text: text.replace("if (beta != 0.0f)", "if (true)"), "elements are wrong"),  # C is NaN
    ],
    ids=["load", "store n", "store m", "index", "beta"],
)
def test_a_lost_guard_is_noticed(edit: Edit, said: str, tmp_path: Path) -> None:
    kernel = handmade.shared_tiles()
    source = print_cuda(kernel)
    mutant = replace(source, text=edit(source.text))
    assert mutant != source
    gemm = replace(kernel.gemm.resized(40, 31, 40), ldc=64)
    assert said in broken(kernel, mutant, gemm, tmp_path, order=0)


def test_bf16_rounds_as_the_host_does(tmp_path: Path) -> None:
    """The integer rounding of architectures before sm_80, on ties, infinities, NaN and random bits."""
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 2**32, 20_000, dtype=np.uint32)
    ties = (bits[:5000] & np.uint32(0xFFFF0000)) | np.uint32(0x8000)
    special = np.array([0, 0x80000000, 0x7F800000, 0xFF800000, 0x7F800001, 0xFFFFFFFF, 0x7F7FFFFF], np.uint32)
    values = np.concatenate([bits, ties, special])
    snippets = "\n".join(PRELUDE[name] for name in ("bf16_bits", "bf16_from_float"))
    loop = "for (float x; fread(&x, 4, 1, stdin);) { auto y = bf16_from_float(x); fwrite(&y, 2, 1, stdout); }"
    main = f"int main() {{ {loop} }}"
    output = cuda_on_cpu.run_text(f"{snippets}\n{main}", values.tobytes(), tmp_path)
    assert np.frombuffer(output, np.uint16).tolist() == BF16.encode(values.view(np.float32)).tolist()
