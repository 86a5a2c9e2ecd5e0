"""`autotune`: the first call of a new problem measures candidates, on copies; the fastest serves later calls."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from cpu_gpu import State, cpu_gpu, on_gpu
from test_matmul import assert_right, drawn, values

from tilewright.bench import quick
from tilewright.dtypes import F32
from tilewright.frontend import autotune, linear_gated, matmul
from tilewright.frontend.compute import words_of


class Clock:
    """In the place of `quick.times_us`: copies are made and candidates run on the CPU; the last is the fastest."""

    def __init__(self, gpu: State) -> None:
        self.gpu = gpu
        self.problems = 0
        self.fastest: list[str] = []

    def times_us(
        self, gpu: Any, stream: int, copies: Sequence[quick.Copy], candidates: Sequence[Callable[[int], None]]
    ) -> list[float]:
        self.problems += 1
        for to, start, size_bytes in copies:
            ctypes.memmove(to, start, size_bytes)
        for candidate in candidates:
            self.gpu.launches.clear()
            for _ in range(2):
                candidate(0)
            self.fastest = self.gpu.launches[len(self.gpu.launches) // 2 :]
        self.gpu.launches.clear()
        return [float(len(candidates) - number) for number in range(len(candidates))]


@pytest.fixture(autouse=True)
def gpu() -> Iterator[State]:
    with cpu_gpu() as state:
        yield state


@pytest.fixture(autouse=True)
def clock(gpu: State, monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock(gpu)
    monkeypatch.setattr(quick, "times_us", made.times_us)
    return made


def test_functions_and_gated_products_are_measured(clock: Clock) -> None:
    a, b, gate = drawn(64, 80), drawn(80, 96), drawn(64, 96)
    with autotune():
        found = matmul(a, b, epilogue=lambda acc, gate: acc * gate, operands={"gate": gate})
        joined = linear_gated(a, drawn(48, 80), drawn(48, 80, seed=1), activation="relu")
    np.testing.assert_allclose(found, np.asarray(a) @ np.asarray(b) * np.asarray(gate), rtol=1e-4, atol=1e-4)
    first, last = (np.asarray(a) @ np.asarray(drawn(48, 80, seed=seed)).T for seed in (0, 1))
    np.testing.assert_allclose(joined, np.maximum(first, 0) * last, rtol=1e-4, atol=1e-4)
    assert clock.problems == 2


def test_the_fastest_is_kept_and_a_problem_is_measured_once(gpu: State, clock: Clock) -> None:
    a, b = drawn(64, 80), drawn(80, 96)
    matmul(a, b)
    estimated = words_of(a, b)
    with autotune():
        assert_right(matmul(a, b), a, b)
        assert gpu.launches == clock.fastest
        fastest = words_of(a, b)
        assert fastest != estimated
        assert_right(matmul(a, b), a, b)
    assert clock.problems == 1
    gpu.launches.clear()
    assert_right(matmul(a, b), a, b)
    assert gpu.launches == clock.fastest and words_of(a, b) == fastest, "behind the block the winner serves on"
    with autotune():
        matmul(a, b)
        assert clock.problems == 1
        matmul(drawn(64, 80), drawn(80, 97))
        assert clock.problems == 2


def test_outside_of_a_block_nothing_is_measured(clock: Clock) -> None:
    matmul(drawn(20, 30), drawn(30, 40))
    with autotune(), autotune():
        pass
    matmul(drawn(20, 30), drawn(30, 41))
    assert clock.problems == 0


def test_no_array_of_the_user_is_written_but_by_the_call(clock: Clock) -> None:
    a, b, out = drawn(40, 50), drawn(50, 60), drawn(40, 60)
    before = values(out, F32)
    with autotune():
        assert matmul(a, b, c=out, out=out, beta=0.5) is out
    assert_right(out, a, b, added=0.5 * before)
    assert clock.problems == 1


LAID_OUT: dict[str, Callable[[], tuple[Any, Any]]] = {
    "reversed batch": lambda: (drawn(4, 20, 16)[::-1], drawn(4, 16, 24)),
    "transposed": lambda: (drawn(30, 40, order="T"), drawn(40, 50, order="T")),
    "broadcast": lambda: (drawn(3, 1, 20, 16), drawn(2, 16, 24)),
    "long k": lambda: (drawn(20, 3000), drawn(3000, 40)),
}


@pytest.mark.cross_section("copies", "name", every=4, at=2)
@pytest.mark.parametrize("copies", [1, 16])
@pytest.mark.parametrize("name", LAID_OUT)
def test_operands_of_any_layout(name: str, copies: int, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.frontend.autotuning._MOST_COPIES", copies)
    monkeypatch.setattr("tilewright.frontend.autotuning.CANDIDATES", 2)  # each is compiled
    a, b = LAID_OUT[name]()
    bias = drawn(b.shape[-1])
    c = drawn(*np.matmul(a, b).shape)
    with autotune():
        assert_right(matmul(a, b, bias=bias, c=c), a, b, added=values(bias, F32) + values(c, F32))
        room = on_gpu(np.zeros(np.matmul(a, b).shape, np.float32))[..., ::-1, :]
        assert_right(matmul(a, b, out=room), a, b)
    assert clock.problems >= 2


@pytest.mark.parametrize("asked", [{"deterministic": "bitwise"}, {"batch_invariant": True}])
def test_where_bits_must_stay_nothing_is_measured(asked: dict[str, Any], clock: Clock) -> None:
    with autotune():
        matmul(drawn(20, 30), drawn(30, 40), **asked)
    assert clock.problems == 0


@pytest.mark.parametrize("state", ["capturing", "deterministic"])
def test_nor_in_a_capture_or_a_deterministic_program(state: str, gpu: State, clock: Clock) -> None:
    a, b = drawn(20, 30), drawn(30, 40)
    matmul(a, b)
    setattr(gpu, state, True)
    with autotune():
        assert_right(matmul(a, b), a, b)
    assert clock.problems == 0


def test_without_room_for_copies_the_estimate_serves(gpu: State, clock: Clock) -> None:
    a, b = drawn(20, 30), drawn(30, 40)
    gpu.has_room = False
    with autotune():
        assert_right(matmul(a, b), a, b)
    assert clock.problems == 0
    gpu.has_room = True
    with autotune():
        matmul(a, b)
    assert clock.problems == 1
