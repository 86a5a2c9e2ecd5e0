"""Which kernel computes which problem, on GPUs that are known by their data sheets; and how often one is compiled."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from random import Random

import pytest
from cpu_gpu import State, cpu_gpu
from planned import PaperKernels, alignment_of, asked, paper_dispatcher, planned
from test_matmul import drawn

from tilewright.device.catalog import device
from tilewright.dtypes import BF16, F16, F32, TF32
from tilewright.errors import LaunchError
from tilewright.frontend import matmul
from tilewright.planning.assembly import Request
from tilewright.planning.dispatch import SAFE, Dispatcher
from tilewright.planning.kernels import Built, build_of
from tilewright.planning.packing import Alignment, Stack, as_read
from tilewright.problem import Gemm
from tilewright.problem.epilogue import Accumulated, Combined, Epilogue
from tilewright.problem.functions import Activation, Operation
from tilewright.problem.gemm import orders_of
from tilewright.schedule import Schedule
from tilewright.toolchain import Build
from tilewright.winners.order import order_of

FORMATS = {
    "f32": {"dtype": F32},
    "tf32": {"dtype": F32, "product": TF32},
    "f16": {"dtype": F16, "out": F16},
    "bf16": {"dtype": BF16, "out": BF16},
}


@cache
def known(name: str) -> Dispatcher:
    return paper_dispatcher(device(name))


def problem(m: int, n: int, k: int, dtype: str, orders: str = "NN", **options: object) -> Gemm:
    a, b = orders_of(orders)
    return Gemm(m, n, k, a=a, b=b, **FORMATS[dtype], **options)  # type: ignore[arg-type]


TABLE = [
    # beside the suite, whose kernels stand in tests/golden/choices: device, problem, the kernel, launches
    ("H200", (4096, 4096, 4096, "f16", "TT"), "wgmma", 1),
    ("H200", (4096, 4096, 4095, "bf16", "NN"), "wgmma, A packed", 2),
    ("H200", (33, 33, 33, "bf16", "NN"), "mma", 1),  # narrower copies beat copies before
    ("H200", (8192, 1, 8192, "bf16", "NN"), "gemv", 1),
    ("H200", (1, 8192, 4097, "bf16", "NN"), "wgmma", 1),
    ("H200", (1, 8191, 8192, "f32", "NN"), "gemv, k in 2 parts", 2),  # rows of B do not
    ("H200", (1, 8192, 128, "bf16", "NN"), "wgmma", 1),
    ("H200", (8192, 1, 8192, "f32", "NN"), "gemv", 1),
    ("H200", (1, 8192, 8192, "f32", "NT"), "gemv", 1),
    ("H200", (1, 1, 1000003, "f32", "NN"), "gemv, k in 123 parts", 2),
    ("H200", (5, 5, 0, "bf16", "NN"), "mma", 1),
    ("T4", (1024, 1024, 1024, "f16", "NN"), "simt", 1),
    ("T4", (1024, 1024, 1024, "bf16", "NN"), "simt", 1),
    ("T4", (1024, 1024, 1024, "tf32", "NN"), "simt", 1),
    ("T4", (1024, 1024, 1024, "f32", "NN"), "simt", 1),
]


@pytest.mark.parametrize(("name", "call", "kernel", "launches"), TABLE, ids=str)
def test_the_kernel_of_a_problem(name: str, call: tuple[int, int, int, str, str], kernel: str, launches: int) -> None:
    plan = known(name).plan(asked(*call))
    family = plan.words.split("(")[0].split(",")[0]
    rest = plan.words.rpartition(")")[2].split(", ")[1:] if "(" in plan.words else plan.words.split(", ")[1:]
    assert ", ".join([family, *rest]) == kernel
    assert len(plan.steps) == launches


def test_a_result_that_tma_cannot_store_is_stored_otherwise() -> None:
    plan = known("H200").plan(Request(problem(4096, 4096, 4096, "bf16"), Alignment(16, 16, 4)))
    (step,) = plan.steps
    assert plan.words.startswith("wgmma")
    assert {p.tensor_map.pointer for p in step.launch.source.parameters if p.tensor_map} == {"A", "B"}


def test_no_workspace_is_no_pads_and_no_parts() -> None:
    for shape in (
        (4095, 4097, 4093, "bf16"),
        (512, 512, 16384, "bf16"),
        (1, 8192, 8192, "bf16"),
        (512, 512, 16384, "f32"),
    ):
        plan = planned(known("H200"), problem(*shape), without_workspace=True)
        assert plan.scratch_bytes == 0 and len(plan.steps) == 1


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("name", ["H200", "RTX 3090", "T4"])
def test_a_stack_is_one_launch(name: str, dtype: str) -> None:
    for m, n, k in ((512, 512, 512), (65, 33, 40), (1, 128, 512)):
        gemm = problem(m, n, k, dtype)
        plan = planned(known(name), gemm, Stack(24, m * k, k * n, m * n))
        assert len(plan.steps) == 1 + plan.words.endswith("packed"), plan.words
        assert all(24 in (step.launch.grid[2], step.launch.args[-1]) for step in plan.steps)


def test_a_stack_of_odd_rows_is_padded_as_one() -> None:
    plan = planned(known("H200"), problem(2047, 2049, 2045, "bf16"), Stack(6, 2047 * 2045, 2045 * 2049, 2047 * 2049))
    assert "A and B packed" in plan.words
    copies, product = plan.steps
    assert copies.launch.grid[2] == 6 and product.launch.args[-1] == 6


SQUARE = 512 * 512
STACKS = {
    "one after the other": (Stack(24, SQUARE, SQUARE, SQUARE), "wgmma", {"A", "B", "C"}),
    "one B for all": (Stack(24, SQUARE, 0, SQUARE), "wgmma", {"A", "B", "C"}),
    "one A for all": (Stack(24, 0, SQUARE, SQUARE), "wgmma", {"A", "B", "C"}),
    "A backwards": (Stack(24, -SQUARE, SQUARE, SQUARE), "mma", set()),
    "C backwards": (Stack(24, SQUARE, SQUARE, -SQUARE), "wgmma", {"A", "B"}),
}


@pytest.mark.parametrize("name", STACKS)
def test_tma_has_a_map_of_a_stack_whose_matrices_follow_each_other(name: str) -> None:
    stack, family, by_tma = STACKS[name]
    plan = planned(known("H200"), problem(512, 512, 512, "bf16"), stack)
    (step,) = plan.steps
    maps = {p.tensor_map.pointer for p in step.launch.source.parameters if p.tensor_map}
    assert plan.words.startswith(family) and maps == by_tma


def test_the_schedule_of_a_new_kernel_is_applied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    applied: list[Gemm] = []
    programs = Schedule.programs
    monkeypatch.setattr(Schedule, "programs", lambda self, gemm: applied.append(gemm) or programs(self, gemm))
    gemm = problem(1000, 1000, 1000, "bf16")
    paper_dispatcher(device("H200")).plan(Request(gemm, alignment_of(gemm)))
    assert applied == [gemm]


def test_matrices_that_begin_anywhere_are_copied_for_tma() -> None:
    gemm, apart = problem(2048, 2048, 2048, "bf16"), 2048 * 2048 + 3
    plan = known("H200").plan(Request(gemm, Alignment(2, 16, 16), Stack(6, apart, 2048 * 2048, 2048 * 2048)))
    assert plan.words.startswith("wgmma") and plan.words.endswith("A packed")


@pytest.mark.parametrize("size", [64, 512])
def test_many_problems_are_shared_out_over_resident_blocks(size: int) -> None:
    plan = planned(known("H200"), problem(size, size, size, "bf16"), Stack(512, size * size, size * size, size * size))
    (step,) = plan.steps
    assert step.launch.source.resident and step.launch.grid[1:] == (1, 1)


@pytest.mark.cross_section("name", "dtype", every=6)
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("name", ["H200", "RTX 3090", "T4"])
def test_every_epilogue_has_a_kernel(name: str, dtype: str) -> None:
    for shape in ((2048, 2048, 2048), (257, 129, 66), (64, 64, 8192), (1, 512, 512)):
        for epilogue in (Epilogue("n"), Epilogue("m", True, Activation.GELU), Epilogue(None, True)):
            plan = planned(known(name), problem(*shape, dtype, epilogue=epilogue, beta=0.5))
            assert plan.words != str(SAFE) or name == "T4"


@pytest.mark.cross_section("name", "dtype", every=4)
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("name", ["H200", "RTX 3090"])
def test_one_order_of_summation_for_every_size(name: str, dtype: str) -> None:
    orders = set()
    for m in (1, 7, 64, 500, 5000):
        gemm = problem(m, 4096, 8192, dtype)
        best = next(known(name)._ranked(Request(gemm, alignment_of(gemm), fixed_order=True)))
        orders.add(order_of(build_of(as_read(gemm, best), best)))
        assert "split_k" not in planned(known(name), gemm, fixed_order=True).words
    assert len(orders) == 1


def test_sums_in_one_order_have_kernels_whatever_k_leaves_of_a_tile() -> None:
    """Of k = 1000 a tile of 8 is filled, which large products take, and one of 16 is not, which one row takes."""
    dispatcher = paper_dispatcher(device("H200"))
    for k in (1000, 1004, 1016):
        for m in (1, 7, 64, 300, 5000):
            gemm = problem(m, 700, k, "f32")
            assert next(dispatcher._ranked(Request(gemm, alignment_of(gemm), fixed_order=True)), None) is not None


def test_a_kernel_serves_every_size_of_its_class() -> None:
    dispatcher = paper_dispatcher(device("H200"))
    assert isinstance(dispatcher.kernels, PaperKernels)
    for m in (4096, 4224, 8192, 6144):
        planned(dispatcher, problem(m, 4096, 4096, "bf16"))
    sizes = len(dispatcher.kernels.made)
    for alpha in (1.0, 0.5):
        planned(dispatcher, problem(4096, 4096, 4096, "bf16", alpha=alpha, beta=alpha))
    assert sizes <= 4
    assert len(dispatcher.kernels.made) <= sizes + 1  # one that adds C, whatever the factors


@pytest.mark.cross_section("format", "odd", every=8)
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("odd", [False, True])
def test_a_configuration_has_few_kernels_however_many_shapes(format: str, odd: bool) -> None:
    """Of one at most: for exact sizes and others, of which rows may end inside vectors, into C and parts of sums."""
    dispatcher = paper_dispatcher(device("H200"))
    assert isinstance(dispatcher.kernels, PaperKernels)
    rng = Random(1)
    chosen = set()
    for _ in range(60):
        m, n, k = (rng.choice((64, 128, 1024, 4096)) * rng.randint(1, 4) + odd for _ in range(3))
        chosen.add(dispatcher.plan(asked(m, n, k, format, "NN")).words.split("split_k")[0])
    passes = ("copy_", "reduce_", "gemv_")
    products = [one for one in dispatcher.kernels.made if not one.startswith(passes)]
    assert 1 < len(products) <= (3 if odd else 4) * len(chosen)


def test_threads_that_ask_the_same_plan_it_once() -> None:
    dispatcher = paper_dispatcher(device("H200"))
    assert isinstance(dispatcher.kernels, PaperKernels)
    request = asked(4096, 4096, 4096, "bf16", "NN")
    with ThreadPoolExecutor(4) as threads:
        plans = list(threads.map(lambda _: dispatcher.plan(request), range(8)))
    assert all(plan is plans[0] for plan in plans) and len(dispatcher.kernels.made) == 1


def test_plans_that_are_kept_are_so_many_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond, they are made anew, and are the same."""
    monkeypatch.setattr("tilewright.planning.dispatch._KEPT_PLANS", 3)
    dispatcher, other = paper_dispatcher(device("H200")), paper_dispatcher(device("H200"))
    sizes = [256, 512, 768, 1024, 1280, 256]
    for made, size in enumerate(sizes, 1):
        request = asked(size, size, size, "f16", "NN")
        assert dispatcher.plan(request).words == other.plan(request).words
        known = [one for one in sizes[:made] if dispatcher.known(asked(one, one, one, "f16", "NN")) is not None]
        assert size in known and len(set(known)) <= 3


def test_matrices_beyond_31_bits_have_kernels_of_their_own() -> None:
    plan = planned(known("H200"), problem(70000, 70000, 128, "f32"))
    assert "near" not in plan.steps[0].launch.source.text.split("assumes")[1].splitlines()[0]
    assert "long long" in plan.steps[0].launch.source.text


def test_a_gpu_with_little_shared_memory_gets_tiles_that_fit() -> None:
    small = replace(device("RTX 3090"), max_shared_bytes_per_block=64 * 1024, shared_bytes_per_sm=64 * 1024)
    plan = planned(paper_dispatcher(small), problem(4096, 4096, 4096, "bf16"))
    assert plan.steps[0].launch.source.dynamic_shared_bytes <= 64 * 1024


class WithoutTf32(PaperKernels):
    """A compiler that refuses every kernel of tensor cores for tf32."""

    def _loaded(self, built: Build) -> Built:
        if built.gemm.multiplies_tf32:
            raise LaunchError("refused")
        return super()._loaded(built)


@pytest.mark.cross_section("pair", every=2)
@pytest.mark.parametrize("pair", [False, True], ids=["one product", "two products"])
def test_tf32_is_multiplied_as_f32_where_no_kernel_of_tensor_cores_can_be_had(pair: bool) -> None:
    dispatcher = paper_dispatcher(device("H200"))
    dispatcher.kernels = WithoutTf32(dispatcher.gpu, dispatcher.spec)
    gated = Epilogue(function=Combined(Operation.TIMES, Accumulated(0), Accumulated(1)))
    gemm = problem(64, 64, 64, "tf32", epilogue=gated if pair else Epilogue())
    plan = dispatcher.plan(Request(gemm, Alignment(16, 16, 16), without_workspace=True))
    assert plan.words.startswith("simt")


@pytest.mark.parametrize("name", ["T4", "H200"])
def test_a_group_of_tf32_has_a_kernel_with_tensor_cores_for_it_and_without(name: str) -> None:
    dispatcher = paper_dispatcher(device(name))
    if name == "H200":
        dispatcher.kernels = WithoutTf32(dispatcher.gpu, dispatcher.spec)
    requests = tuple(Request(problem(size, 64, 64, "tf32"), Alignment(16, 16, 16)) for size in (64, 128, 192, 256))
    assert not dispatcher.is_better_alone(requests)
    assert "mma" not in dispatcher.group(requests).launch.source.text


# -- compilations, counted on the stand-in for a GPU ------------------------------------------------------------------


@pytest.fixture
def gpu() -> Iterator[State]:
    with cpu_gpu() as state:
        yield state


def test_a_new_shape_of_a_class_compiles_nothing(gpu: State) -> None:
    matmul(drawn(33, 35), drawn(35, 37))
    matmul(drawn(33, 36), drawn(36, 40))  # rows that begin at 16 bytes
    compiled = list(gpu.compiled)
    for m, n, k in ((39, 41, 43), (50, 45, 33), (35, 36, 40), (52, 60, 44)):
        matmul(drawn(m, k), drawn(k, n))
    assert gpu.compiled == compiled and len(compiled) == 2


def test_other_factors_compile_nothing(gpu: State) -> None:
    a, b, c = drawn(33, 35), drawn(35, 37), drawn(33, 37)
    matmul(a, b, c=c)
    compiled = list(gpu.compiled)
    for alpha, beta in ((0.5, 1.0), (1.0, -2.0)):
        matmul(a, b, c=c, alpha=alpha, beta=beta)
    assert gpu.compiled == compiled


def test_the_second_call_is_not_planned(gpu: State, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, bias = drawn(3, 33, 35), drawn(35, 37), drawn(37)
    for options in ({}, {"bias": bias}, {"c": drawn(3, 33, 37)}, {"activation": "relu", "alpha": 2.0}):
        first = matmul(a, b, **options)
        with monkeypatch.context() as patch:
            patch.setattr("tilewright.frontend.compute.views_of", None)
            assert (matmul(a, b, **options) == first).all()
