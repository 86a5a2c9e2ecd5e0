"""Every rung on a real GPU: `python -m pytest -m gpu tests/gpu`."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from rung_formats import formats_for, uses_tensor_cores
from rung_runs import ORDERS, RUNGS, by_boxes, laid_out, rungs, takes
from tilewright.dtypes import Array
from tilewright.ir.kernel import SAFE, Variant
from tilewright.ladders import Rung, find_rung
from tilewright.problem import Gemm, Operands, Order, check, make_operands
from tilewright.problem.formats import format_options
from tilewright.problem.reference import view
from tilewright.runtime.driver import Gpu, gpu_problem, open_gpu
from tilewright.runtime.memory import DeviceArray
from tilewright.toolchain import arguments, build, grid_of, run_on_gpu, run_on_simulator, verify_on_gpu

# The warnings of PyTorch and CuPy at their import are not ours to fail on.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

TENSOR_FORMATS = [
    pytest.param(rung, name, id=f"{rung.name}-{name}")
    for rung in RUNGS
    if uses_tensor_cores(rung)
    for name in formats_for(rung)
]

SHAPES = [
    (1, 1, 1), (2, 3, 5), (131, 67, 19), (127, 129, 15), (257, 63, 7), (1, 300, 33), (300, 1, 9), (131, 200, 71),
    (64, 128, 0),
]  # fmt: skip


@pytest.fixture(scope="module")
def gpu() -> Gpu:
    assert gpu_problem() is None
    return open_gpu()


def taken(rung: Rung, name: str) -> dict[str, Any]:
    """The options of a format, with B turned where a rung does not take it row-major."""
    options = dict(format_options(name))
    return options if takes(rung, rung.gemm(1, 1, 1, **options)) else options | {"b": Order.COL}


def assert_right(gpu: Gpu, rung: Rung, gemm: Gemm, variant: Variant | None = None) -> None:
    gemm = laid_out(rung, gemm)
    verdict = verify_on_gpu(build(gemm, rung, variant=variant), gpu, make_operands(gemm))
    assert verdict.ok, f"{gemm}: {verdict.message}"


@pytest.mark.parametrize("rung", rungs())
def test_awkward_shapes(gpu: Gpu, rung: Rung) -> None:
    """C is NaN where beta is 0: reading it, or leaving an element unwritten, shows."""
    for shape, factors in product(SHAPES, ({}, {"alpha": -0.5, "beta": 1.25})):
        assert_right(gpu, rung, rung.gemm(*shape, **factors))


@pytest.mark.parametrize("rung", rungs())
def test_whole_tiles_and_padded_rows(gpu: Gpu, rung: Rung) -> None:
    assert_right(gpu, rung, rung.gemm(1024, 1024, 512))
    for padding in (1, 4):
        tight = rung.gemm(132, 68, 20)
        leading = {f"ld{name.lower()}": tight.leading(name) + padding for name in ("A", "B", "C")}
        assert_right(gpu, rung, rung.gemm(132, 68, 20, **leading))


@pytest.mark.parametrize("rung", rungs())
def test_storage_orders(gpu: Gpu, rung: Rung) -> None:
    for a, b, c in ORDERS:
        gemm = rung.gemm(68, 132, 21, a=a, b=b, c=c, beta=0.5)
        if takes(rung, gemm):
            assert_right(gpu, rung, gemm)


@pytest.mark.parametrize(("rung", "name"), TENSOR_FORMATS)
def test_tensor_cores_in_every_format_and_order(gpu: Gpu, rung: Rung, name: str) -> None:
    for (a, b, c), shape in product(ORDERS, ((131, 67, 45), (256, 256, 192), (512, 768, 320))):
        gemm = rung.gemm(*shape, a=a, b=b, c=c, beta=0.5, **format_options(name))
        if takes(rung, gemm) and (shape[0] == 131 or c is Order.ROW):
            assert_right(gpu, rung, gemm)


@pytest.mark.parametrize(("rung", "name"), TENSOR_FORMATS)
def test_tensor_cores_at_awkward_shapes_and_factors(gpu: Gpu, rung: Rung, name: str) -> None:
    options = taken(rung, name)
    for shape, factors in product(SHAPES, ({}, {"alpha": -0.5, "beta": 1.25})):
        assert_right(gpu, rung, rung.gemm(*shape, **factors, **options))
    assert_right(gpu, rung, rung.gemm(512, 512, 4096, **options))


@pytest.mark.parametrize(("rung", "name"), [param for param in TENSOR_FORMATS if not by_boxes(param.values[0])])
def test_tensor_cores_with_rows_of_any_alignment(gpu: Gpu, rung: Rung, name: str) -> None:
    for padding in (1, 2, 4, 8):
        tight = rung.gemm(136, 264, 72, **taken(rung, name))
        leading = {f"ld{x.lower()}": tight.leading(x) + padding for x in ("A", "B", "C")}
        assert_right(gpu, rung, replace(tight, **leading))


@pytest.mark.parametrize("rung", rungs())
def test_64_bit_offsets_on_small_sizes(gpu: Gpu, rung: Rung) -> None:
    assert_right(gpu, rung, rung.gemm(131, 67, 19, beta=0.5), SAFE)
    assert_right(gpu, rung, rung.gemm(136, 72, 24), Variant(near=False))


@pytest.mark.parametrize("shape", [(1, 1, 1), (131, 67, 19), (128, 256, 64)], ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize("rung", rungs("worklog"))
def test_the_simulator_computes_the_same_bits(gpu: Gpu, rung: Rung, shape: tuple[int, int, int]) -> None:
    for factors in ({}, {"alpha": -0.7, "beta": 1.3}):
        gemm = rung.gemm(*shape, **factors)
        operands, built = make_operands(gemm), build(gemm, rung)
        on_cpu, _ = run_on_simulator(built, operands, listeners=(), detectors=False)
        on_gpu = run_on_gpu(built, gpu, operands)
        differ = on_cpu.view(np.uint32) != on_gpu.view(np.uint32)
        assert not differ.any(), f"{int(differ.sum())} elements differ with {factors}"


def adversarial(gemm: Gemm, kind: str) -> Operands:
    """Operands that show how tensor cores sum. wide: factors within 24 binades. cancelling: most products in pairs
    whose sum is nearly 0. subnormal: factors of A are below the smallest normal number."""
    rng = np.random.default_rng(7)
    a, b = rng.standard_normal((gemm.m, gemm.k)), rng.standard_normal((gemm.k, gemm.n))
    if kind == "wide":
        a, b = (np.ldexp(x, rng.integers(-6, 7, x.shape)) for x in (a, b))
    elif kind == "cancelling":
        half = gemm.k // 2
        a[:, half : 2 * half], b[half : 2 * half] = (
            -a[:, :half],
            b[:half] * (1 + rng.integers(0, 2, b[:half].shape) / 64),
        )
    elif kind == "subnormal":
        a *= gemm.dtype.tiny / 4
    operands = make_operands(gemm)
    for name, values in (("A", a), ("B", b)):
        view(gemm, name, operands.storage(name))[...] = gemm.dtype.encode(values.astype(np.float32))
    return operands


@pytest.mark.parametrize("kind", ["normal", "wide", "cancelling", "subnormal"])
@pytest.mark.parametrize(("rung", "name"), TENSOR_FORMATS)
def test_tensor_cores_give_the_same_bits(gpu: Gpu, rung: Rung, name: str, kind: str) -> None:
    if gpu.compute_capability[0] != 9:
        pytest.skip("sums of tensor cores are known bit for bit for compute capability 9.0")
    gemm = laid_out(rung, rung.gemm(200, 136, 200, **taken(rung, name)))
    operands, built = adversarial(gemm, kind), build(gemm, rung)
    on_cpu, _ = run_on_simulator(built, operands, listeners=(), detectors=False)
    on_gpu = run_on_gpu(built, gpu, operands)
    differ = on_cpu.astype(np.float32).view(np.uint32) != on_gpu.astype(np.float32).view(np.uint32)
    assert not differ.any(), f"{int(differ.sum())} of {differ.size} elements differ"


@pytest.mark.parametrize("rung", rungs())
def test_twice_the_same_bits(gpu: Gpu, rung: Rung) -> None:
    gemm = rung.gemm(515, 387, 131, beta=0.5)
    gemm = laid_out(rung, gemm)
    operands, built = make_operands(gemm), build(gemm, rung)
    first, *others = (run_on_gpu(built, gpu, operands).copy() for _ in range(5))
    assert all(first.tobytes() == again.tobytes() for again in others)


def rows_of(gpu: Gpu, c: DeviceArray, row: int, columns: int) -> Array:
    """One row of a large C, without a copy of the rest."""
    from cuda.bindings import driver

    from tilewright.runtime.driver import driver_answer

    host = np.empty(columns, np.float32)
    where = c.pointer + row * columns * 4  # a Python integer: no overflow
    driver_answer(driver.cuMemcpyDtoH(host.ctypes.data, where, host.nbytes), f"copying row {row}")
    return host


def test_a_result_of_more_than_2_to_the_31_elements(gpu: Gpu) -> None:
    """70000 x 70000 in f32 is 19.6 GB on the device; three dozen of its rows come to the host."""
    side, k = 70_000, 8
    if gpu.memory_bytes < 24 << 30:
        pytest.skip(f"{gpu.name} has no room for 19.6 GB")
    gemm = Gemm(side, side, k)
    built = build(gemm, find_rung("worklog/6"))
    assert not built.variant.near
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape, dtype=np.float32) for shape in ((side, k), (k, side)))
    beyond = 2**31 // side
    rows = [0, 1, 127, 128, side // 2, beyond - 1, beyond, beyond + 1, 2**32 // side, 2**32 // side + 1]
    rows += [side - 129, side - 128, side - 2, side - 1]
    with (
        DeviceArray.of(gpu, a) as on_a,
        DeviceArray.of(gpu, b) as on_b,
        DeviceArray(gpu, (side, side), np.float32) as on_c,
    ):
        on_c.poison()
        args = arguments(gemm, [array.pointer for array in (on_a, on_b, on_c)])
        built.load(gpu).launch(gpu.stream, grid_of(built.kernel, gemm), built.kernel.block, args)
        gpu.synchronize()
        computed = np.stack([rows_of(gpu, on_c, row, side) for row in rows])
    part = Gemm(len(rows), side, k)
    operands = make_operands(part)
    operands.a[:], operands.b[:] = a[rows].reshape(-1), b.reshape(-1)
    verdict = check(operands, computed)
    assert verdict.ok, verdict.message


@pytest.mark.parametrize("name", ["worklog/6", "worklog/12", "te/4"])
def test_unaligned_pointers(gpu: Gpu, name: str) -> None:
    """Operands that start 4 bytes after an aligned address, which only the safe variant takes."""
    rung = find_rung(name)
    gemm = rung.gemm(130, 70, 33, beta=0.5)
    operands, built = make_operands(gemm), build(gemm, rung, variant=SAFE)
    hosts = [np.concatenate([np.full(1, np.nan, np.float32), x]) for x in (operands.a, operands.b, operands.c)]
    arrays = [DeviceArray.of(gpu, host) for host in hosts]
    args = arguments(gemm, [array.pointer + 4 for array in arrays])
    built.load(gpu).launch(gpu.stream, grid_of(built.kernel, gemm), built.kernel.block, args)
    gpu.synchronize()
    stored = arrays[2].download()
    assert gemm.c is Order.ROW and np.isnan(stored[0])
    assert check(operands, stored[1:].reshape(gemm.m, gemm.n)).ok
