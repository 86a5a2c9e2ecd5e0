"""Products that ranks share, as PyTorch's tensors ask for them: the launches of their plans, on the simulator."""

from __future__ import annotations

import itertools
from typing import Any
from unittest.mock import patch

import pytest

torch = pytest.importorskip("torch")
from simulated import simulated_dispatcher  # noqa: E402

from tilewright.distributed.pytorch import shared  # noqa: E402
from tilewright.errors import LaunchError, SimulationError  # noqa: E402
from tilewright.frontend.options import PLAIN  # noqa: E402
from tilewright.kernels.wgmma import WgmmaConfig  # noqa: E402
from tilewright.lowering.rank_sums import flags_of  # noqa: E402
from tilewright.planning.beside_products import TileParts  # noqa: E402
from tilewright.planning.packing import Shards  # noqa: E402


def products(rows: tuple[int, ...], rank: int, flags: Any) -> Any:
    return shared.ArrivingProducts(rows, rank, flags.data_ptr(), PLAIN, "cpu")


def aligned(*shape: int) -> Any:
    """Integers in bf16, at a multiple of 256 bytes."""
    count = shape[0] * shape[1]
    room = torch.empty(count + 128, dtype=torch.bfloat16)
    first = -room.data_ptr() % 256 // 2
    values = torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(count)).to(torch.bfloat16)
    return room[first : first + count].view(shape).copy_(values)


@pytest.fixture
def on_a_simulated_gpu() -> Any:
    made = simulated_dispatcher()
    with (
        patch.object(shared, "dispatcher", lambda device: made),
        patch.object(shared, "device_of", lambda library, views: 0),
    ):
        yield


@pytest.mark.usefixtures("on_a_simulated_gpu")
def test_several_b_are_multiplied_when_all_flags_are_set() -> None:
    rows, a = (40, 30), aligned(70, 72)
    flags = torch.ones(2, dtype=torch.int32)
    found = products(rows, 1, flags)
    for number, b in enumerate((aligned(72, 64), aligned(72, 8))):
        out = aligned(70, b.shape[1])
        found.start(number, a, b, out, 0)
        assert torch.equal(out, (a.float() @ b.float()).to(torch.bfloat16))


@pytest.mark.usefixtures("on_a_simulated_gpu")
def test_a_flag_that_is_not_set_is_waited_for_unless_nobody_is() -> None:
    a, b, out = aligned(70, 72), aligned(72, 64), aligned(70, 64)
    flags = torch.tensor([0, 1], dtype=torch.int32)
    found = products((40, 30), 1, flags)
    with pytest.raises(SimulationError, match="Deadlock"):
        found.start(0, a, b, out, 0)
    found.start(0, a, b, out, 0, waits=False)
    assert torch.equal(out, (a.float() @ b.float()).to(torch.bfloat16))


@pytest.mark.usefixtures("on_a_simulated_gpu")
def test_rows_that_tma_cannot_read_are_refused() -> None:
    flags = torch.ones(2, dtype=torch.int32)
    with pytest.raises(LaunchError, match="waits for rows of A that arrive"):
        products((4, 3), 0, flags).start(0, aligned(7, 9), aligned(9, 8), aligned(7, 8), 0)


RECEIVED, FLAGS = (1 << 24, 1 << 25, 1 << 26), (1 << 21, 1 << 22, 1 << 23)


def sums_of(rows: tuple[int, ...], rank: int, room_bytes: int = 1 << 24, flag_bytes: int = 1 << 20) -> Any:
    count, sent = len(rows), lambda size: torch.empty(size, dtype=torch.uint8)
    memory = shared.PartsMemory(FLAGS[:count], flag_bytes, RECEIVED[:count], room_bytes, sent)
    return shared.SummedProducts(rows, rank, memory, PLAIN, "cpu")


@pytest.mark.usefixtures("on_a_simulated_gpu")
def test_sums_over_ranks_are_of_whole_tiles() -> None:
    """A rank's launch is told its numbers, and where it sends and receives."""
    told: list[Any] = []
    sums = sums_of((128, 64), 1)
    a, b, out = aligned(192, 72), aligned(72, 64), aligned(64, 64)
    plan = sums.plan(0, a, b)
    (step,) = plan.steps
    assert step.launch.options["batching"] == {"shards": 2, "own_rank": 1, "most_rows": 128}
    with patch.object(type(step.launch), "launch", lambda self, stream, *addresses: told.extend(addresses)):
        sums.start(0, a, b, out, 0)
    assert told[:3] == [a.data_ptr(), b.data_ptr(), out.data_ptr() - 128 * 64 * 2]
    assert told[4:6] == [sums._sent.data_ptr(), sums._sent_flags.data_ptr()]
    assert told[6:] == [one.data_ptr() for one in sums._peers]
    assert [one.tolist() for one in sums._peers] == [list(RECEIVED[:2]), list(FLAGS[:2])]
    assert sums.words == {((64,), plan.words, step.launch.grid[0])}


@pytest.mark.usefixtures("on_a_simulated_gpu")
def test_rows_that_end_inside_tiles_are_not_summed_over_ranks() -> None:
    with pytest.raises(LaunchError, match="adds up over ranks"):
        sums_of((100, 92), 0).plan(0, aligned(192, 72), aligned(72, 64))


@pytest.mark.usefixtures("on_a_simulated_gpu")
@pytest.mark.parametrize("room", [(1 << 13, 1 << 20), (1 << 24, 1 << 13)])
def test_parts_of_tiles_beyond_the_memory_for_them_are_refused(room: tuple[int, int]) -> None:
    """Or flags of them."""
    with pytest.raises(LaunchError, match="more parts of tiles than there is memory for"):
        sums_of((128, 64), 0, *room).plan(0, aligned(192, 72), aligned(72, 64))


@pytest.mark.parametrize("columns", [8, 3584, 14336, 28672])
@pytest.mark.parametrize("most_rows", [1, 300, 4096])
def test_there_is_room_for_the_parts_of_any_tile(most_rows: int, columns: int) -> None:
    """28672 columns are 150 tiles of 192, which end behind them."""
    room, shards = shared.parts_elements((most_rows, 1), columns), Shards((most_rows, 1), 0, summed=True)
    sizes = itertools.product((16, 64, 128, 208, 256), range(8, 257, 8), ((1, 1), (2, 1), (1, 4), (2, 2)))
    for m, n, cluster in sizes:
        parts = TileParts.of(shards, WgmmaConfig((m, n, 64), cluster=cluster), columns, 1)
        assert parts.slot_bytes <= room, (m, n, cluster)
        if parts.tile_bytes >= 2048:
            assert 4 * flags_of(2, parts.tiles) <= shared.parts_flag_bytes(2, room)
