"""Work items on the hardware: strided batches, split-K added up in order or in a cluster, groups by offsets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.lowering.work_items import BY_THREADS, by_threads, part_of, stacked
from tilewright.dtypes import BF16, F16, F32, Array
from tilewright.ir.kernel import FLAGS_OF_A_TILE
from tilewright.ir.work import Problems, SplitK
from tilewright.kernels.mma import MmaConfig
from tilewright.kernels.simt import SimtConfig
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.kernels.wgmma_presets import PING_PONG, at_depth, clustered, persistent
from tilewright.problem import Gemm, Order, check, make_operands
from tilewright.problem.reference import Operands, view
from tilewright.runtime.driver import Gpu, gpu_problem, open_gpu
from tilewright.runtime.memory import DeviceArray
from tilewright.schedule import Schedule
from tilewright.toolchain import Build, arguments, build, grid_of


def schedule_at(gemm: Gemm, config: WgmmaConfig) -> Schedule:
    return at_depth(config, gemm).schedule(gemm)


pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

KINDS: dict[str, WgmmaConfig] = {
    "cooperative": persistent(128, 128, 2, subtile=64),
    "cluster": clustered(persistent(64, 128, 1, subtile=64)),
    "ping-pong": replace(PING_PONG, tile=(128, 128, 64), subtile=64, stages=3),
    "from registers": persistent(128, 128, 2, subtile=0),
}
EVERY = (*KINDS, *BY_THREADS)


def problem_of(name: str, m: int, n: int, k: int, **options: Any) -> tuple[Gemm, Schedule]:
    """A problem and the schedule of a kind: of `KINDS`, or of `BY_THREADS`, which any GPU runs."""
    if name in BY_THREADS:
        return by_threads(name, m, n, k, **options)
    gemm = Gemm(m, n, k, BF16, out=BF16, **options)
    return gemm, schedule_at(gemm, KINDS[name])


@pytest.fixture(scope="module")
def gpu() -> Gpu:
    assert gpu_problem() is None
    return open_gpu()


def launched(
    built: Build, gpu: Gpu, arrays: Sequence[Array], scalars: Sequence[int] = (), *, part_of_k: int = 0, batch: int = 1
) -> Array:
    """C after two launches on one set of flags, of which the second must find them as the first did."""
    gemm, loaded = built.gemm, built.load(gpu)
    on_gpu = [DeviceArray.of(gpu, one) for one in arrays]
    start = arrays[2].copy()
    grid = grid_of(built.kernel, gemm, part_of_k=part_of_k, batch=batch)
    values = (*arguments(gemm, [array.pointer for array in on_gpu], part_of_k=part_of_k), *scalars)
    results = []
    try:
        for _ in range(2):
            on_gpu[2].upload(start)
            loaded.launch(gpu.stream, grid, built.kernel.block, values)
            gpu.synchronize()
            results.append(on_gpu[2].download())
    finally:
        for array in on_gpu:
            array.close()
    np.testing.assert_array_equal(*results)
    return results[0]


@pytest.mark.parametrize("shared", ["", "A", "B"])
@pytest.mark.parametrize("name", EVERY)
def test_a_strided_batch(gpu: Gpu, name: str, shared: str) -> None:
    (gemm, schedule), count = problem_of(name, 200, 136, 200), 7
    built = replace(build(gemm, schedule), problems=Problems.STRIDED)
    each = [make_operands(gemm, seed=seed) for seed in range(count)]
    arrays = [stacked([getattr(one, n) for one in each], shared=n.upper() in shared) for n in "abc"]
    steps = [0 if n in shared else a.size // count for n, a in zip("ABC", arrays, strict=True)]
    c = launched(built, gpu, arrays, (*steps, count), batch=count)
    for number, one in enumerate(each):
        own = replace(one, **{n.lower(): getattr(each[0], n.lower()) for n in shared})
        verdict = check(own, gemm.out.decode(view(gemm, "C", c[number * steps[2] :][: one.c.size])))
        assert verdict.ok, (number, verdict.message)


@pytest.mark.parametrize("size", [(200, 136, 4104), (1000, 1280, 5120)])
@pytest.mark.parametrize("stream_k", [False, True])
@pytest.mark.parametrize("name", EVERY)
def test_partial_sums_add_up_in_order(gpu: Gpu, name: str, stream_k: bool, size: tuple[int, int, int]) -> None:
    gemm, schedule = problem_of(name, *size, beta=0.5)
    built = replace(build(gemm, schedule), split_k=SplitK.ORDERED, stream_k=stream_k)
    operands = make_operands(gemm)
    tiles = grid_of(built.kernel, gemm, part_of_k=1024)[0]
    workspace = np.full(tiles * built.kernel.partial_elements, np.nan, np.float32)
    flags = np.zeros(tiles * FLAGS_OF_A_TILE, np.int32)
    arrays = (operands.a, operands.b, operands.c, workspace, flags)
    verdict = check(operands, gemm.out.decode(view(gemm, "C", launched(built, gpu, arrays, part_of_k=1024))))
    assert verdict.ok, verdict.message


def test_partial_sums_of_a_persistent_kernel(gpu: Gpu) -> None:
    gemm = Gemm(200, 136, 4104, BF16, out=F32)
    built = replace(build(gemm, schedule_at(gemm, KINDS["from registers"])), split_k=SplitK.PARTIALS)
    operands = make_operands(gemm)
    parts = -(-gemm.k // 1024)
    c = np.full(parts * gemm.m * gemm.ldc, np.nan, np.float32)
    found = launched(built, gpu, (operands.a, operands.b, c), part_of_k=1024)
    total = found.reshape(parts, gemm.m, gemm.ldc)[:, :, : gemm.n].sum(0, dtype=np.float32)
    assert check(operands, total).ok


@pytest.mark.parametrize("size", [(8, 2048, 8192), (77, 2048, 10944), (200, 136, 4104), (5, 72, 8), (3, 64, 456)])
@pytest.mark.parametrize("blocks", [2, 4, 8])
@pytest.mark.parametrize("tile", [(16, 64, True), (40, 128, True), (64, 64, False), (64, 128, False)])
def test_sums_of_a_cluster(gpu: Gpu, tile: tuple[int, int, bool], blocks: int, size: tuple[int, int, int]) -> None:
    m, n, swap_ab = tile
    gemm = Gemm(*size, BF16, out=BF16, beta=0.5, b=Order.COL)
    config = WgmmaConfig((m, n, 64), 1, swap_ab=swap_ab, persistent=False, raster_rows=4, cluster_k=blocks)
    operands = make_operands(gemm)
    c = launched(build(gemm, config.schedule(gemm)), gpu, (operands.a, operands.b, operands.c))
    verdict = check(operands, BF16.decode(view(gemm, "C", c)))
    assert verdict.ok, verdict.message


@pytest.mark.parametrize("size", [(160, 3456, 1152), (949, 82, 1291), (33, 65, 8)])
@pytest.mark.parametrize("blocks", [2, 4, 8])
@pytest.mark.parametrize(
    "config",
    [
        SimtConfig((64, 256, 16), (64, 64), unroll=8),
        SimtConfig((64, 64, 16), (32, 32), unroll=8, copied=1, columns_together=1),
        MmaConfig((64, 64, 32), (32, 32), stages=3),
    ],
    ids=["vectors", "elements", "mma"],
)
def test_sums_of_a_cluster_without_roles(
    gpu: Gpu, config: SimtConfig | MmaConfig, blocks: int, size: tuple[int, int, int]
) -> None:
    dtype = BF16 if isinstance(config, MmaConfig) else F32
    gemm = Gemm(*size, dtype, out=dtype, beta=0.5, b=Order.COL)
    operands = make_operands(gemm)
    built = build(gemm, replace(config, cluster_k=blocks).schedule(gemm))
    c = launched(built, gpu, (operands.a, operands.b, operands.c))
    verdict = check(operands, dtype.decode(view(gemm, "C", c)))
    assert verdict.ok, verdict.message


def assert_a_batch_is_right(gpu: Gpu, gemm: Gemm, config: WgmmaConfig, count: int) -> None:
    built = replace(build(gemm, config.schedule(gemm)), problems=Problems.STRIDED)
    each = [make_operands(gemm, seed=seed) for seed in range(count)]
    arrays = [stacked([getattr(one, name) for one in each], shared=False) for name in "abc"]
    steps = [array.size // count for array in arrays]
    c = launched(built, gpu, arrays, (*steps, count), batch=count)
    for number, one in enumerate(each):
        assert check(one, gemm.out.decode(view(gemm, "C", c[number * steps[2] :][: one.c.size]))).ok, number


def test_sums_of_the_clusters_of_a_strided_batch(gpu: Gpu) -> None:
    gemm, count = Gemm(24, 136, 1032, F16, out=F32, b=Order.COL), 70
    config = WgmmaConfig((24, 64, 64), 1, swap_ab=True, persistent=False, cluster_k=4)
    assert_a_batch_is_right(gpu, gemm, config, count)


@pytest.mark.parametrize("beta", [0.0, -0.5])
@pytest.mark.parametrize("size", [(200, 424, 96), (1000, 1160, 40), (77, 8, 64)])
@pytest.mark.parametrize(
    "config",
    [
        WgmmaConfig((128, 160, 64), ping_pong=True, stages=3, raster_rows=4, subtile=160, subtile_stages=1),
        WgmmaConfig((64, 256, 64), ping_pong=True, cluster=(2, 1), raster_rows=4, subtile=256, subtile_stages=1),
        WgmmaConfig((128, 256, 64), stages=3, cluster=(1, 2), raster_rows=4, subtile=128, subtile_stages=2),
    ],
    ids=["ping-pong", "clusters", "two stages"],
)
def test_rows_that_begin_inside_sectors_leave_whole(
    gpu: Gpu, config: WgmmaConfig, size: tuple[int, int, int], beta: float
) -> None:
    assert_a_batch_is_right(gpu, Gemm(*size, BF16, out=BF16, beta=beta), config, 5)


@pytest.mark.parametrize("rows", [[130, 0, 1, 64, 0, 77, 28], [0, 0, 0], [1000] * 3, [3, 0, 1] * 100])
@pytest.mark.parametrize("name", EVERY)
def test_groups_along_m(gpu: Gpu, name: str, rows: list[int]) -> None:
    gemm, schedule = problem_of(name, sum(rows) + 20, 136, 200)
    built = replace(build(gemm, schedule), problems=Problems.GROUPED_M)
    ends, whole = np.cumsum(rows).astype(np.int32), make_operands(gemm)
    each = [make_operands(gemm, seed=seed).b for seed in range(len(rows))]
    b = stacked(each, shared=False)
    arrays = (whole.a, b, whole.c, ends)
    c = launched(built, gpu, arrays, (b.size // len(rows), len(rows), 0), batch=len(rows))
    for group, (count, end) in enumerate(zip(rows, ends.tolist(), strict=True)):
        begin = end - count
        part = replace(gemm, m=count, lda=gemm.lda, ldb=gemm.ldb, ldc=gemm.ldc)
        a, old = part_of(gemm, "A", whole.a, "m", begin, end), part_of(gemm, "C", whole.c, "m", begin, end)
        result = gemm.out.decode(view(part, "C", part_of(gemm, "C", c, "m", begin, end)))
        verdict = check(Operands(part, a, each[group], old), result)
        assert verdict.ok, (group, verdict.message)
    np.testing.assert_array_equal(c[ends[-1] * gemm.ldc :], whole.c[ends[-1] * gemm.ldc :])


@pytest.mark.parametrize("lengths", [[130, 0, 1, 64, 0, 77, 28], [0, 0, 0], [1000] * 3])
@pytest.mark.parametrize("name", EVERY)
def test_groups_along_k(gpu: Gpu, name: str, lengths: list[int]) -> None:
    gemm, schedule = problem_of(name, 72, 136, max(sum(lengths), 1), a=Order.COL, b=Order.ROW, beta=0.5)
    built = replace(build(gemm, schedule), problems=Problems.GROUPED_K)
    ends, whole = np.cumsum(lengths).astype(np.int32), make_operands(gemm)
    each = [make_operands(gemm, seed=seed).c for seed in range(len(lengths))]
    stack = stacked(each, shared=False)
    step = stack.size // len(lengths)
    c = launched(built, gpu, (whole.a, whole.b, stack, ends), (step, len(lengths)), batch=len(lengths))
    for group, (count, end) in enumerate(zip(lengths, ends.tolist(), strict=True)):
        begin = end - count
        part = replace(gemm, k=count, lda=gemm.lda, ldb=gemm.ldb, ldc=gemm.ldc)
        a, b = whole.a[begin * gemm.lda : end * gemm.lda], whole.b[begin * gemm.ldb : end * gemm.ldb]
        result = gemm.out.decode(view(gemm, "C", c[group * step :][: each[group].size]))
        verdict = check(Operands(part, a, b, each[group]), result)
        assert verdict.ok, (group, verdict.message)
