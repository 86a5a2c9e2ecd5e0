"""Whole calls of `matmul(precision=...)` on a simulated H200: every launch of a call runs on the simulator."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from cpu_gpu import CpuArrays, FakeGpu, State, cpu_gpu, on_gpu
from simulated import SimulatedKernels, SimulatedLaunch

import tilewright as tw
from tilewright.device.catalog import device
from tilewright.dtypes import Array
from tilewright.errors import LaunchError, ProblemError
from tilewright.frontend import grouped_matmul, guard_flags, matmul, prepare
from tilewright.frontend.compute import words_of
from tilewright.frontend.libraries import DTypeError
from tilewright.frontend.options import PRECISIONS, options_asked
from tilewright.planning import dispatch, kernels
from tilewright.planning.plan import Place
from tilewright.problem.emulation import ALGORITHMS, BF16X6
from tilewright.suite.peers import by_tilewright, words_of_problem
from tilewright.suite.problems import Problem

U = 2.0**-24


@pytest.fixture(autouse=True)
def gpu_state() -> Iterator[State]:
    with cpu_gpu() as state, pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "Kernels", lambda gpu: SimulatedKernels(FakeGpu(), device("H200")))
        yield state


def drawn(*shape: int, seed: int = 0) -> Any:
    return on_gpu(np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(np.float32))


def share(precision: str, a: Any, b: Any, c: Any) -> float:
    """The largest error of an element, as a share of the bound of an algorithm."""
    wide = np.asarray(a, np.float64), np.asarray(b, np.float64)
    how = ALGORITHMS[precision]
    bound: Array = how.units(a.shape[-1]) * U * (abs(wide[0]) @ abs(wide[1]))
    return float((abs(np.asarray(c, np.float64) - wide[0] @ wide[1]) / bound).max())


def words(a: Any, b: Any, precision: str) -> str:
    return words_of(a, b, options_asked(1.0, None, None, precision, None, False, None, False))


@pytest.mark.cross_section("precision", every=2)
@pytest.mark.parametrize("precision", ALGORITHMS)
def test_a_call_keeps_the_bound_of_its_algorithm(precision: str) -> None:
    for a, b in ((drawn(40, 70), drawn(70, 24)), (drawn(70, 33).T, drawn(24, 70).T)):
        c = matmul(a, b, precision=precision)
        assert c.dtype == np.float32 and share(precision, a, b, c) <= 1
        assert words(a, b, precision).startswith(f"{precision}: pieces by wgmma")
        np.testing.assert_array_equal(matmul(a, b, precision=precision), c)


def test_out_factors_residual_bias_and_activation() -> None:
    a, b, c, bias = drawn(24, 40), drawn(40, 16), drawn(24, 16), drawn(16)
    out = on_gpu(np.zeros((24, 16), np.float32))
    options: dict[str, Any] = {"alpha": 0.5, "beta": -2.0, "bias": bias, "activation": "relu"}
    assert matmul(a, b, out=out, c=c, precision="bf16x6", **options) is out
    expected = np.maximum(0, 0.5 * (a.astype(np.float64) @ b) - 2.0 * c + bias)
    np.testing.assert_allclose(out, expected, atol=2e-5)


@pytest.mark.parametrize("shapes", [((3, 20, 40), (3, 40, 16)), ((3, 20, 40), (40, 16)), ((20, 40), (3, 40, 16))])
def test_batches_broadcast_as_any_others(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    a, b = (drawn(*shape) for shape in shapes)
    c = matmul(a, b, precision="bf16x6")
    assert c.shape == (3, 20, 16) and share("bf16x6", a, b, c) <= 1


def test_vectors_and_empty_sums() -> None:
    a, b = drawn(40), drawn(40, 16)
    assert share("bf16x6", a[None], b, matmul(a, b, precision="bf16x6")[None]) <= 1
    assert (matmul(drawn(5, 0), drawn(0, 7), precision="bf16x6") == 0).all()


def test_emulated_takes_f32_arithmetic_where_that_is_as_fast_or_no_algorithm_is_as_good() -> None:
    small = drawn(24, 40), drawn(40, 16)
    matmul(*small, precision="f32_emulated")
    assert words(*small, "f32_emulated").startswith("simt")
    short = drawn(24, 8), drawn(8, 16)
    matmul(*short, precision="f32_emulated")
    assert "pieces" not in words(*short, "f32_emulated")


def test_the_suite_says_what_ran_of_pieces() -> None:
    a, b = drawn(24, 70), drawn(70, 16)
    for name, first in (("bf16x6", "bf16x6: pieces by wgmma"), ("f32_emulated", "simt")):
        problem = Problem(24, 16, 70, name)
        by_tilewright(problem)(a, b)
        assert words_of_problem(problem, a, b).startswith(first)


def test_other_formats_are_multiplied_as_without_it() -> None:
    a, b = (on_gpu(drawn(16, 16, seed=seed).astype(np.float16)) for seed in (1, 2))
    plain = matmul(a, b)
    np.testing.assert_array_equal(matmul(a, b, precision="bf16x6"), plain)


def test_what_cannot_be_asked() -> None:
    a, b = drawn(8, 8), drawn(8, 8)
    with pytest.raises(ProblemError, match="bf16x7") as told:
        matmul(a, b, precision="bf16x7")  # type: ignore[arg-type]
    assert all(name in str(told.value) for name in PRECISIONS)
    with pytest.raises(ProblemError, match="grouped_matmul has no precision 'bf16x6'"):
        grouped_matmul([a], [b], precision="bf16x6")


def test_without_its_guard_emulated_is_the_product_of_scaled_pieces() -> None:
    a, b = drawn(16, 1024), drawn(1024, 16)
    a[3, 5] = 2.0**-40
    expected = np.array(matmul(a, b, precision="f16x3"))
    np.testing.assert_array_equal(matmul(a, b, precision="f32_emulated", guard="off"), expected)
    np.testing.assert_array_equal(matmul(a, prepare(b, guard="off")), expected)
    assert tw.plan(a, b, precision="f32_emulated", guard="off").ran() == ("f16x3",)
    for options, said in (
        ({"precision": "bf16x6", "guard": "off"}, "has no guard"),
        ({"guard": "of"}, "'on' or 'off'"),
    ):
        with pytest.raises(ProblemError, match=said):
            matmul(a, b, **options)  # type: ignore[arg-type]


def test_linear_takes_a_precision() -> None:
    x, weight = drawn(24, 70), drawn(16, 70)
    expected = np.array(matmul(x, weight.T, precision="bf16x6"))
    np.testing.assert_array_equal(tw.linear(x, weight, precision="bf16x6"), expected)


def test_a_gpu_without_wgmma_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "Kernels", kernels.Kernels)
    with cpu_gpu():
        a, b = drawn(8, 64), drawn(64, 8)
        with pytest.raises(LaunchError, match="wgmma"):
            matmul(a, b, precision="bf16x6")
        assert share("bf16x6", a, b, matmul(a, b, precision="f32_emulated")) <= 1


@pytest.mark.cross_section("precision", every=3, at=1)
@pytest.mark.parametrize("precision", ["bf16x6", "tf32x3", "f16x3"])
def test_a_prepared_weight_gives_the_same_bits_and_is_not_split_again(precision: Any) -> None:
    weights = (drawn(70, 24), drawn(24, 70).T, drawn(70, 48)[:, ::2])
    for weight, shape in zip(weights, ((40, 70), (3, 20, 70), (9, 70)), strict=True):
        prepared = prepare(weight, precision=precision)
        assert prepared.shape == (70, 24)
        a = drawn(*shape, seed=1)
        found = matmul(a, prepared)
        np.testing.assert_array_equal(found, matmul(a, weight, precision=precision))
        np.testing.assert_array_equal(matmul(a, prepared, precision=precision), found)
        (call, *_) = prepared._calls.values()
        ((_, plan),) = call._parts
        places = [place for step in plan.steps for place, _ in step.pointers]
        assert Place.PIECES in places and Place.B not in places


@pytest.mark.usefixtures("device_chooses")
def test_a_prepared_weight_keeps_the_flag_of_its_range() -> None:
    a, weight = drawn(20, 1024), drawn(1024, 24)
    deep = on_gpu(np.array(weight))
    deep[5, 3] = 2.0**-40
    for one, precision in ((weight, "f16x3"), (deep, "bf16x6")):
        expected = matmul(a, one, precision=precision)
        np.testing.assert_array_equal(matmul(a, one, precision="f32_emulated"), expected)
        prepared = prepare(one, precision="f32_emulated")
        np.testing.assert_array_equal(matmul(a, prepared), expected)
    stack = drawn(2, 20, 1024)
    found = matmul(stack, prepare(weight, precision="f32_emulated"))
    np.testing.assert_allclose(found, stack.astype(np.float64) @ weight, atol=1e-3)


@pytest.fixture
def device_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    """f32_emulated by scaled pieces where it would be too small for them to be faster."""
    monkeypatch.setattr(dispatch, "prefers_f32", lambda *_: False)
    monkeypatch.setattr(dispatch.Dispatcher, "_pieces_us", lambda _, one: float(one.algorithm is BF16X6))


@pytest.mark.usefixtures("device_chooses")
def test_what_the_device_chose_can_be_asked_afterwards() -> None:
    a, b = drawn(16, 1024), drawn(1024, 16)
    asked = tw.plan(a, b, precision="f32_emulated")
    assert {one.condition for one in asked.launches} == {"always", "flags are clear", "a flag is raised"}
    with pytest.raises(LaunchError, match="has not chosen a plan yet"):
        asked.ran()
    matmul(a, b, precision="f32_emulated")
    assert asked.ran() == ("f16x3",)
    a[3, 5] = 2.0**-40
    assert asked.ran() == ("f16x3",), "the call was made before"
    matmul(a, b, precision="f32_emulated")
    assert asked.ran() == ("bf16x6",) == tw.plan(a, b, precision="f32_emulated").ran()
    a[3, 5] = 1
    matmul(a, b, precision="f32_emulated")
    assert asked.ran() == ("f16x3",)
    other = drawn(8, 1024)
    matmul(other, b, precision="f32_emulated")
    assert asked.ran() == ("f16x3",) == tw.plan(other, b, precision="f32_emulated").ran()


@pytest.mark.usefixtures("device_chooses")
def test_what_the_last_replay_of_a_graph_chose(gpu_state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, out = drawn(8, 1024), drawn(1024, 16), drawn(8, 16)
    recorded: list[Any] = []
    launch = SimulatedLaunch.launch

    def record(self: SimulatedLaunch, stream: int, *addresses: int) -> None:
        recorded.append((self, stream, addresses))
        launch(self, stream, *addresses)

    eager = np.array(matmul(a, b, out=out, precision="f32_emulated"))
    asked = tw.plan(a, b, out=out, precision="f32_emulated")
    memory = np.full(1 << 20, 0xFF, np.uint8)  # the graph's own, which is there for its replays
    with monkeypatch.context() as patch:
        patch.setattr(SimulatedLaunch, "launch", record)
        patch.setattr(CpuArrays, "scratch", lambda *_: ((memory.ctypes.data + 255) // 256 * 256, memory))
        gpu_state.capturing = True
        matmul(a, b, out=out, precision="f32_emulated")
        with pytest.raises(LaunchError, match="recording a CUDA graph"):
            asked.ran()
        gpu_state.capturing = False
    for value, how in ((2.0**-40, "bf16x6"), (1.0, "f16x3"), (2.0**-40, "bf16x6")):
        a[3, 5] = value
        for one, stream, addresses in recorded:
            launch(one, stream, *addresses)
        assert asked.ran() == (how,)
    matmul(a + 0 * a, b, out=on_gpu(out), precision="f32_emulated")
    a[3, 5] = 1.0
    matmul(a, b, out=out, precision="f32_emulated")
    assert asked.ran() == ("f16x3",), "the last call is not the recorded one"
    assert eager.shape == out.shape


@pytest.mark.usefixtures("device_chooses")
def test_what_ran_of_a_prepared_weight() -> None:
    a, weight = drawn(8, 1024), drawn(1024, 16)
    prepared = prepare(weight, precision="f32_emulated")
    matmul(a, prepared)
    assert tw.plan(a, prepared).ran() == ("f16x3",) == tw.plan(a, prepared, precision="f32_emulated").ran()
    roles = [one.role for one in tw.plan(a, prepared).launches if one.condition == "always"]
    assert roles == ["split"]
    weight[5, 3] = 2.0**-40
    deep = prepare(weight, precision="f32_emulated")
    for _ in range(2):
        matmul(a, deep)
        assert tw.plan(a, deep).ran() == ("bf16x6",), "the flag of its range stays raised"
    assert tw.plan(a, prepared).ran() == ("f16x3",)
    with pytest.raises(ProblemError, match="was prepared for precision='f32_emulated'"):
        tw.plan(a, prepared, precision="bf16x6")


def test_what_ran_where_the_device_does_not_choose() -> None:
    a, b = drawn(24, 70), drawn(70, 16)
    assert tw.plan(a, b, precision="bf16x6").ran() == ("bf16x6",)
    (ran,) = tw.plan(a, b).ran()
    assert ran.startswith("simt") and ran == tw.plan(a, b).words


def test_a_prepared_weight_with_an_epilogue_and_in_other_places() -> None:
    weight, a, bias = drawn(40, 16), drawn(24, 40), drawn(16)
    prepared = prepare(weight, precision="bf16x6")
    out = on_gpu(np.zeros((16, 24), np.float32)).T
    for options in ({"bias": bias, "activation": "relu"}, {"alpha": 2.0, "c": drawn(24, 16)}, {"out": out}):
        expected = np.array(matmul(a, weight, precision="bf16x6", **options))
        np.testing.assert_allclose(matmul(a, prepared, **options), expected, rtol=1e-5, atol=1e-5)


def test_emulated_with_a_prepared_weight_still_takes_f32_where_that_is_faster() -> None:
    weight, a = drawn(64, 16), drawn(4, 64)
    prepared = prepare(weight)
    np.testing.assert_array_equal(matmul(a, prepared), matmul(a, weight, precision="f32_emulated"))


def test_what_cannot_be_prepared() -> None:
    with pytest.raises(ProblemError, match="host memory"):
        prepare(np.ones((8, 8), np.float32))
    with pytest.raises(ProblemError, match="no pieces of a weight of 64 rows"):
        prepare(drawn(64, 8), precision="tf32")
    with pytest.raises(ProblemError, match=r"shape \(3, 8, 8\)"):
        prepare(drawn(3, 8, 8), precision="bf16x6")
    with pytest.raises(DTypeError, match="f16"):
        prepare(on_gpu(np.ones((8, 8), np.float16)))
    with pytest.raises(ProblemError, match="prepared for precision='bf16x6'"):
        matmul(drawn(8, 64), prepare(drawn(64, 8), precision="bf16x6"), precision="bf16x9")


def test_flags_are_given_once_and_there_are_some_for_a_recording() -> None:
    room = guard_flags.room_of(FakeGpu())  # type: ignore[arg-type]
    with pytest.raises(LaunchError, match="make the same call once before the capture"):
        room.flags(1, capturing=True)
    found = [room.flags(count, capturing=False) for count in (1, 3, 1 << 14, 1)]
    spans = sorted((one.address, one.address + 12 * one.count) for one in found)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    while True:
        before = room.flags(64, capturing=False)
        if before.memory is not found[-1].memory:
            break
    assert room.flags(64, capturing=True).memory is before.memory
    last = room.flags(2, capturing=False)
    assert last.fell_back() == [False, False], "flags begin at 0"
    last.memory.array[last.start // 4 + 5] = 1
    assert last.fell_back() == [False, True]
