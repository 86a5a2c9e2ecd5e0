"""Groups by offsets: which kernel is chosen, how it is launched, and that what is chosen is right where it is run."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any, Literal

import pytest
from planned import alignment_of, paper_dispatcher

from tests.lowering.work_items import check_groups_along_k, check_groups_along_m
from tilewright.device.catalog import device
from tilewright.dtypes import BF16, F16, F32, TF32
from tilewright.ir.kernel import MOST_GROUPS
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.planning.assembly import Request
from tilewright.planning.kernels import schedule_of
from tilewright.planning.packing import Alignment, Groups
from tilewright.planning.ragged import SAFE, ragged_plan, ranked_ragged, reads_groups_by_tma
from tilewright.problem import Gemm, Order
from tilewright.winners.plan_config import PlanConfig

H200 = device("H200")
TRIED = 12


def along_m(tokens: int, n: int, k: int, count: int, *, b: Order = Order.COL, **formats: Any) -> Request:
    gemm = Gemm(tokens, n, k, b=b, **({"dtype": BF16, "out": BF16} | formats))
    return Request(gemm, alignment_of(gemm), groups=Groups(count, "m", n * k))


def along_k(m: int, n: int, tokens: int, count: int, **formats: Any) -> Request:
    gemm = Gemm(m, n, tokens, a=Order.COL, b=Order.ROW, **({"dtype": BF16, "out": BF16} | formats))
    return Request(gemm, alignment_of(gemm), groups=Groups(count, "k", m * n))


def kernel_of(config: PlanConfig) -> WgmmaConfig:
    assert isinstance(config.kernel, WgmmaConfig)
    return config.kernel


REQUESTS = {
    "eight large": along_m(8192, 14336, 4096, 8),
    "many of 64": along_m(4096, 1408, 2048, 64),
    "many of 16": along_m(2048, 2048, 7168, 128, b=Order.ROW),
    "f16, one group": along_m(1000, 1000, 1000, 1, dtype=F16, out=F16),
    "tf32": along_m(1000, 1000, 1000, 4, dtype=F32, out=F32, product=TF32),
    "f32 out": along_m(1000, 1000, 1000, 4, out=F32),
    "weight gradients": along_k(4096, 14336, 8192, 8),
    "short weight gradients": along_k(2048, 7168, 2048, 128),
}


def test_a_gpu_whose_tensor_cores_lack_a_format_does_not_multiply_it_by_wgmma() -> None:
    without = replace(H200, tensor=replace(H200.tensor, bf16_f32=0))
    assert reads_groups_by_tma(REQUESTS["eight large"], H200)
    assert not reads_groups_by_tma(REQUESTS["eight large"], without)


@pytest.mark.parametrize("name", REQUESTS)
def test_groups_are_one_launch_of_resident_blocks(name: str) -> None:
    request = REQUESTS[name]
    plan = paper_dispatcher(H200).ragged(request)
    assert plan.words.startswith("wgmma") and not plan.scratch_bytes
    (step,) = plan.steps
    assert step.launch.source.resident and step.launch.grid[1:] == (1, 1)  # type: ignore[attr-defined]
    pointers = [p.name for p in step.launch.source.parameters if p.is_pointer]  # type: ignore[attr-defined]
    assert pointers == ["A", "B", "C", "group_ends"]


@pytest.mark.cross_section("name", every=3)
@pytest.mark.parametrize("name", REQUESTS)
def test_each_of_the_first_choices_can_be_lowered(name: str) -> None:
    request = REQUESTS[name]
    kernels = paper_dispatcher(H200).kernels
    for config in islice(ranked_ragged(request, H200), TRIED):
        assert ragged_plan(kernels, request, config).steps


def test_skinny_groups_have_tiles_to_match() -> None:
    for rows, most in ((16, 64), (64, 64), (4096, 256)):
        config = kernel_of(next(ranked_ragged(along_m(64 * rows, 4096, 4096, 64), H200)))
        assert config.m <= most and config.persistent
        assert rows < 1024 or config.m >= 128


def test_a_few_more_tokens_are_served_by_the_same_kernel() -> None:
    one, other = along_m(8192, 4096, 4096, 8), along_m(8200, 4096, 4096, 8)
    assert next(ranked_ragged(one, H200)) == next(ranked_ragged(other, H200))


def test_more_groups_than_a_launch_counts_are_several_launches() -> None:
    count = 2 * MOST_GROUPS + 3
    plan = paper_dispatcher(H200).ragged(along_m(16 * count, 256, 512, count))
    told = [step.launch.args[-2:] for step in plan.steps]  # type: ignore[attr-defined]
    assert told == [(MOST_GROUPS, 0), (MOST_GROUPS, MOST_GROUPS), (3, 2 * MOST_GROUPS)]
    one = paper_dispatcher(H200).ragged(along_k(256, 256, 16 * count, count))
    assert len(one.steps) == 1


def test_groups_with_counts_are_planned_for_the_rows_that_are_expected() -> None:
    request = along_m(64 * 128, 4096, 7168, 64)
    assert request.groups is not None
    sizes = []
    for expected in (0, 8):
        groups = replace(request.groups, capacity=128, expected=expected)
        (step,) = paper_dispatcher(H200).ragged(replace(request, groups=groups)).steps
        assert step.launch.args[-3:] == (64, 0, 128)  # type: ignore[attr-defined]
        sizes.append(kernel_of(next(ranked_ragged(replace(request, groups=groups), H200))).m)
    assert sizes[1] <= 16 < sizes[0]


NARROW = Alignment(2, 2, 2)
BY_THREADS = {
    "f32": (along_m(1000, 1000, 1000, 4, dtype=F32, out=F32), "H200", "simt"),
    "f32 along k": (along_k(1000, 1000, 1000, 4, dtype=F32, out=F32), "H200", "simt"),
    "tf32, B in rows": (along_m(999, 999, 1000, 4, b=Order.ROW, dtype=F32, out=F32, product=TF32), "H200", "mma"),
    "rows of 2 bytes more": (along_m(1000, 1000, 1001, 4), "H200", "mma"),
    "A in columns": (
        Request(Gemm(8192, 64, 64, BF16, out=BF16, a=Order.COL), NARROW, groups=Groups(8, "m", 4096)),
        "H200",
        "mma",
    ),
    "A in rows along k": (
        Request(Gemm(64, 64, 8192, BF16, out=BF16), NARROW, groups=Groups(8, "k", 4096)),
        "H200",
        "mma",
    ),
    "a step backwards": (replace(REQUESTS["eight large"], groups=Groups(8, "m", -64)), "H200", "mma"),
    "without k": (along_m(1000, 1000, 0, 4), "H200", "mma"),
    "before Hopper": (REQUESTS["eight large"], "RTX 3090", "mma"),
    "tf32 without tensor cores for it": (REQUESTS["tf32"], "T4", "simt"),
}


@pytest.mark.parametrize("name", BY_THREADS)
def test_where_tma_cannot_threads_copy_and_find_the_groups(name: str) -> None:
    request, gpu, family = BY_THREADS[name]
    plan = paper_dispatcher(device(gpu)).ragged(request)
    assert plan.words.startswith(f"{family}(") and "persistent=True" in plan.words and not plan.scratch_bytes
    (step,) = plan.steps
    assert step.launch.source.resident and step.launch.grid[1:] == (1, 1)  # type: ignore[attr-defined]
    assert not any(p.tensor_map for p in step.launch.source.parameters)  # type: ignore[attr-defined]


def test_the_last_resort_is_lowered_for_everything() -> None:
    for request, gpu, _ in BY_THREADS.values():
        kernels = paper_dispatcher(device(gpu)).kernels
        assert ragged_plan(kernels, request, SAFE).steps


def test_a_result_that_tma_cannot_store_is_stored_by_threads() -> None:
    request = replace(REQUESTS["eight large"], alignment=Alignment(16, 16, 4))
    plan = paper_dispatcher(H200).ragged(request)
    maps = {p.tensor_map.pointer for p in plan.steps[0].launch.source.parameters if p.tensor_map}  # type: ignore[attr-defined]
    assert maps == {"A", "B"}


Size = Literal["m", "k"]
SIMULATED: dict[str, tuple[Size, Gemm, list[int]]] = {
    "skinny": ("m", Gemm(60, 136, 136, BF16, out=BF16, b=Order.COL), [5, 0, 17, 1, 30]),
    "some rows": ("m", Gemm(200, 136, 136, BF16, out=BF16), [70, 0, 65, 64]),
    "many rows": ("m", Gemm(700, 264, 72, BF16, out=BF16, b=Order.COL), [300, 0, 260, 130]),
    "f16 along k": ("k", Gemm(136, 136, 200, F16, out=F16, a=Order.COL), [70, 0, 65, 64]),
    "along k": ("k", Gemm(264, 264, 400, BF16, out=BF16, a=Order.COL), [300, 0, 90]),
    "f32": ("m", Gemm(90, 72, 40, b=Order.COL), [70, 0, 17]),
    "f32 along k": ("k", Gemm(40, 72, 90, a=Order.COL), [70, 0, 17]),
    "tf32": ("m", Gemm(90, 72, 40, product=TF32), [5, 0, 70, 9]),
    "unaligned leading dimension": ("m", Gemm(90, 72, 41, BF16, out=BF16, b=Order.COL), [70, 0, 17]),
}


@pytest.mark.cross_section("name", "number", every=3)
@pytest.mark.parametrize("number", range(2))
@pytest.mark.parametrize("name", SIMULATED)
def test_what_is_chosen_is_right(name: str, number: int) -> None:
    """The first and the third choice, of 4 blocks that have several tiles each."""
    along, gemm, sizes = SIMULATED[name]
    step = gemm.n * gemm.k if along == "m" else gemm.m * gemm.n
    request = Request(gemm, alignment_of(gemm), groups=Groups(len(sizes), along, step))
    config = list(islice(ranked_ragged(request, H200), 3))[2 * number]
    check = check_groups_along_m if along == "m" else check_groups_along_k
    check(gemm, schedule_of(gemm, config), sizes, resident_blocks=4)
