"""Calls whose tensors lie where those of an earlier one lay: when steps are issued, recorded, and replayed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

torch = pytest.importorskip("torch")

from tilewright.distributed.pytorch import replays  # noqa: E402
from tilewright.distributed.pytorch.symmetric import Call  # noqa: E402


class Graph:
    def __init__(self, log: list[str], pools: list[int]) -> None:
        self.log, self.pools = log, pools

    def capture_begin(self, pool: int, capture_error_mode: str) -> None:
        assert capture_error_mode == "thread_local"
        self.log.append("begin")
        self.pools.append(pool)

    def capture_end(self) -> None:
        self.log.append("end")

    def replay(self) -> None:
        self.log.append("replay")


class Fake:
    """A program and a GPU that write down what is asked of them."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.pools: list[int] = []
        self.capturing = False
        note = self.log.append
        workspace = SimpleNamespace(
            recording=None,
            begin=lambda caller, capturing: note("first"),
            finish=lambda caller, capturing: note("last"),
        )
        program: Any = SimpleNamespace(workspace=workspace, run=lambda call: note("steps"))
        self.replays = replays.Replays(program, 0)

    def called(self, address: int) -> list[str]:
        place: Any = SimpleNamespace(data_ptr=lambda: address)
        self.log.clear()
        self.replays.run(Call(place, [place], [place]))
        return list(self.log)


@pytest.fixture
def fake() -> Iterator[Fake]:
    made = Fake()
    cuda = SimpleNamespace(
        CUDAGraph=lambda: Graph(made.log, made.pools),
        graph_pool_handle=partial(next, count()),
        is_current_stream_capturing=lambda: made.capturing,
        current_stream=object,
        stream=lambda stream: nullcontext(),
    )
    with (
        patch.object(replays, "torch", SimpleNamespace(cuda=cuda)),
        patch.object(replays, "LIBRARY", SimpleNamespace(stream=lambda device: 7)),
    ):
        yield made


def test_the_second_call_of_the_same_addresses_is_recorded(fake: Fake) -> None:
    assert fake.called(1) == ["steps"]
    assert fake.called(2) == ["steps"]
    assert fake.called(1) == ["begin", "steps", "end", "first", "replay", "last"]
    assert fake.called(1) == ["first", "replay", "last"]


def test_graphs_share_memory_as_long_as_there_is_one(fake: Fake) -> None:
    for address in (1, 2, 1, 2):
        fake.called(address)
    for address in range(3, replays.MOST + 3):  # all graphs are forgotten
        fake.called(address)
    fake.called(3)
    assert fake.pools == [0, 0, 1]


def test_a_graph_of_the_caller_gets_the_steps(fake: Fake) -> None:
    for _ in range(3):
        fake.called(1)
    fake.capturing = True
    assert fake.called(1) == ["steps"]


def test_addresses_that_never_come_back_are_forgotten(fake: Fake) -> None:
    fake.called(0)
    fake.called(0)
    for address in range(1, replays.MOST + 1):
        assert fake.called(address) == ["steps"]
    assert fake.called(0) == ["steps"]


def test_a_failure_ends_the_recording(fake: Fake) -> None:
    fake.called(1)

    def fails(call: Call) -> None:
        raise RuntimeError("no")

    fake.replays._program.run = fails  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="no"):
        fake.called(1)
    assert fake.log == ["begin", "end"]
