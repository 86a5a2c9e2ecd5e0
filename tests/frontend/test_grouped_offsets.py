"""`grouped_matmul` with offsets: the sizes of groups lie on the GPU and are never read by the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from cpu_gpu import CpuArrays, State, cpu_gpu, on_gpu
from test_matmul import assert_right, drawn

from tilewright.dtypes import BF16, F32, DType
from tilewright.errors import LaunchError, TilewrightError
from tilewright.frontend import grouped_matmul
from tilewright.frontend.ragged import words_of_groups
from tilewright.planning.dispatch import Dispatcher
from tilewright.planning.packing import Groups

ENDS = [[33, 33, 40, 100], [0, 0, 0, 70], [100], [1, 2, 3, 4, 5], [90, 100]]


@pytest.fixture
def gpu() -> Iterator[State]:
    with cpu_gpu() as state:
        yield state


def spans(ends: list[int]) -> list[slice]:
    return [slice(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def offsets(ends: list[int]) -> Any:
    return on_gpu(np.array(ends, np.int32))


@pytest.mark.cross_section("dtype", "orders", every=2)
@pytest.mark.parametrize("orders", ["NN", "NT", "TN"])
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_rows_of_each_group_by_its_matrix(gpu: State, dtype: DType, orders: str) -> None:
    for ends in ENDS:
        a, b = drawn(100, 40, dtype=dtype, order=orders[0]), drawn(len(ends), 40, 24, dtype=dtype, order=orders[1])
        gpu.launches.clear()
        result = grouped_matmul(a, b, offsets=offsets(ends), alpha=0.5)
        assert result.shape == (100, 24) and len(gpu.launches) == 1
        for rows, matrix in zip(spans(ends), b, strict=True):
            assert_right(result[rows], a[rows], matrix, dtype=dtype, alpha=0.5)


@pytest.mark.parametrize("orders", ["NN", "TN", "NT"])
def test_sums_over_the_tokens_of_each_group(gpu: State, orders: str) -> None:
    for ends in ENDS:
        a, b = drawn(30, 100, order=orders[0]), drawn(100, 20, order=orders[1])
        result = grouped_matmul(a, b, offsets=offsets(ends))
        assert result.shape == (len(ends), 30, 20)
        for rows, own in zip(spans(ends), result, strict=True):
            assert_right(own, a[:, rows], b[rows])


def test_the_same_transposed(gpu: State) -> None:
    ends = [33, 33, 40, 100]
    a, b = drawn(4, 24, 40), drawn(40, 100)
    result = grouped_matmul(a, b, offsets=offsets(ends))
    assert result.shape == (24, 100)
    for rows, matrix in zip(spans(ends), a, strict=True):
        assert_right(result[:, rows], matrix, b[:, rows])


def test_operands_of_any_strides(gpu: State) -> None:
    ends = [33, 33, 40, 100]
    a, b = drawn(100, 80)[:, ::2], drawn(8, 40, 24)[::2]
    result = grouped_matmul(a, b, offsets=offsets(ends))
    for rows, matrix in zip(spans(ends), b, strict=True):
        assert_right(result[rows], a[rows], matrix)


def test_offsets_that_are_scattered(gpu: State) -> None:
    a, b = drawn(100, 40), drawn(4, 40, 24)
    every_other = offsets([33, -1, 33, -1, 40, -1, 100])[::2]
    for _ in range(2):
        result = grouped_matmul(a, b, offsets=every_other)
        for rows, matrix in zip(spans([33, 33, 40, 100]), b, strict=True):
            assert_right(result[rows], a[rows], matrix)


def test_other_sizes_of_the_groups_are_the_same_call(gpu: State, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = drawn(100, 40), drawn(4, 40, 24)
    grouped_matmul(a, b, offsets=offsets(ENDS[0]))
    compiled = list(gpu.compiled)
    gpu.capturing = True
    monkeypatch.delattr(CpuArrays, "upload")  # nothing travels from the host
    result = grouped_matmul(a, b, offsets=offsets(ENDS[1]))
    assert gpu.compiled == compiled
    assert_right(result[:70], a[:70], b[3])


def test_in_a_capture_a_new_kind_of_call_is_refused(gpu: State) -> None:
    gpu.capturing = True
    with pytest.raises(LaunchError, match="recording a CUDA graph, and no kernel for groups"):
        grouped_matmul(drawn(100, 40), drawn(4, 40, 24), offsets=offsets(ENDS[0]))


class Noted:
    """In the place of a plan: where its launches would find their arrays."""

    words, scratch_bytes = "wgmma", 0

    def __init__(self) -> None:
        self.addresses: list[tuple[int, ...]] = []

    def run(self, stream: int, addresses: tuple[int, ...]) -> None:
        self.addresses.append(addresses)


def test_a_kernel_that_reads_the_offsets_itself_is_given_them(gpu: State, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, asked = Noted(), []
    monkeypatch.setattr(Dispatcher, "ragged", lambda self, request: asked.append(request) or plan)
    a, b, ends = drawn(100, 40), drawn(4, 40, 24), offsets(ENDS[0])
    first, second = (grouped_matmul(a, b, offsets=ends) for _ in range(2))
    gradient = grouped_matmul(a.T, first, offsets=ends)
    grouped_matmul(b.swapaxes(1, 2), a.T, offsets=ends)
    at = [array.ctypes.data for array in (a, b, first, second, gradient, ends)]
    assert plan.addresses[:2] == [(at[0], at[1], result, 0, 0, 0, at[5]) for result in at[2:4]]
    assert plan.addresses[2] == (at[0], at[2], at[4], 0, 0, 0, at[5])
    assert plan.addresses[3][:2] == (at[0], at[1])
    assert [request.groups for request in asked] == [Groups(4, "m", 40 * 24), Groups(4, "k", 40 * 24)]
    assert words_of_groups(a, b, ends) == "wgmma" and not gpu.launches


def test_nothing_to_multiply_is_no_launch(gpu: State) -> None:
    assert grouped_matmul(drawn(0, 40), drawn(2, 40, 24), offsets=offsets([0, 0])).shape == (0, 24)
    assert grouped_matmul(drawn(5, 40), drawn(0, 40, 24), offsets=offsets([])).shape == (5, 24)
    assert not gpu.launches


@pytest.mark.filterwarnings("ignore:tilewright.matmul computes with NumPy")
def test_arrays_of_numpy_are_multiplied_group_by_group() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((50, 6), np.float32), rng.standard_normal((3, 6, 5), np.float32)
    ends = np.array([20, 20, 50], np.int32)
    result = grouped_matmul(a, b, offsets=ends)
    sums = grouped_matmul(a.T, result, offsets=ends)
    turned = grouped_matmul(b.swapaxes(1, 2), a.T, offsets=ends)
    for number, rows in enumerate(spans(ends.tolist())):
        np.testing.assert_allclose(result[rows], a[rows] @ b[number], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(sums[number], a[rows].T @ result[rows], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(turned, result.T, rtol=1e-5, atol=1e-5)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "another k": (
        lambda: grouped_matmul(drawn(9, 4), drawn(2, 5, 6), offsets=offsets([4, 9])),
        "grouped_matmul: a of shape (9, 4) does not go with b of shape (2, 5, 6).",
    ),
    "another number of groups": (
        lambda: grouped_matmul(drawn(9, 5), drawn(2, 5, 6), offsets=offsets([4, 6, 9])),
        "grouped_matmul: 3 offsets for 2 groups, those of b of shape (2, 5, 6).",
    ),
    "other numbers of tokens": (
        lambda: grouped_matmul(drawn(5, 9), drawn(8, 6), offsets=offsets([4, 9])),
        "grouped_matmul: a of shape (5, 9) does not go with b of shape (8, 6).",
    ),
    "two batches": (
        lambda: grouped_matmul(drawn(2, 9, 5), drawn(2, 5, 6), offsets=offsets([4, 9])),
        "grouped_matmul takes no a of shape (2, 9, 5) and b of shape (2, 5, 6) with offsets.",
    ),
    "offsets of 64 bits": (
        lambda: grouped_matmul(drawn(9, 5), drawn(2, 5, 6), offsets=on_gpu(np.array([4, 9]))),
        "offsets are int32, and these are int64.",
    ),
    "offsets of two dimensions": (
        lambda: grouped_matmul(drawn(9, 5), drawn(2, 5, 6), offsets=on_gpu(np.zeros((1, 2), np.int32))),
        "offsets have one dimension, and these have shape (1, 2).",
    ),
    "offsets on the host": (
        lambda: grouped_matmul(drawn(9, 5), drawn(2, 5, 6), offsets=np.array([4, 9], np.int32)),
        "offsets is an array of NumPy, and a is one of the CPU's GPU.",
    ),
    "a bias": (
        lambda: grouped_matmul(drawn(9, 5), drawn(2, 5, 6), offsets=offsets([4, 9]), bias=[drawn(6), drawn(6)]),
        "grouped_matmul with offsets adds no bias and has no activation.",
    ),
    "two formats": (
        lambda: grouped_matmul(drawn(9, 5), drawn(2, 5, 6, dtype=BF16), offsets=offsets([4, 9])),
        "Cannot multiply f32 by bf16.",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused(name: str, gpu: State) -> None:
    call, headline = REFUSED[name]
    with pytest.raises(TilewrightError) as told:
        call()
    assert told.value.headline == headline


COUNTS = [3, 0, 16, -2, 99]


@pytest.mark.parametrize("orders", ["NN", "NT"])
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_groups_that_use_the_first_rows_of_their_room(gpu: State, dtype: DType, orders: str) -> None:
    a, b = drawn(5, 16, 40, dtype=dtype), drawn(5, 40, 24, dtype=dtype, order=orders[1])
    for _ in range(2):
        result = grouped_matmul(a, b, counts=offsets(COUNTS), expected_rows=4)
        assert result.shape == (5, 16, 24) and len(gpu.launches) == 1
        gpu.launches.clear()
        for own, x, y, count in zip(result, a, b, (3, 0, 16, 0, 16), strict=True):
            assert_right(own[:count], x[:count], y, dtype=dtype)
    apart = drawn(5, 20, 40, dtype=dtype)[:, :16]
    for own, x, y in zip(grouped_matmul(apart, b, counts=offsets([16] * 5)), apart, b, strict=True):
        assert_right(own, x, y, dtype=dtype)


def test_groups_with_no_room(gpu: State) -> None:
    for groups, capacity in ((0, 16), (3, 0)):
        a, b = drawn(groups, capacity, 40), drawn(groups, 40, 24)
        assert grouped_matmul(a, b, counts=offsets([0] * groups)).shape == (groups, capacity, 24)


def test_what_counts_cannot_be(gpu: State) -> None:
    a, b, counts = drawn(5, 16, 40), drawn(5, 40, 24), offsets(COUNTS)
    with pytest.raises(ValueError, match=r"give \(groups, capacity, k\)"):
        grouped_matmul(a[0], b, counts=counts)
    for wrong, said in (({"a": [1.0]}, "Cannot multiply a list"), ({"b": None}, "b is a NoneType")):
        with pytest.raises(TilewrightError, match=said):
            grouped_matmul(**{"a": a, "b": b, "counts": counts} | wrong)
    with pytest.raises(ValueError, match="with 4 counts"):
        grouped_matmul(a, b, counts=counts[:4])
    with pytest.raises(ValueError, match="does not go with b"):
        grouped_matmul(a, b[:, :39], counts=counts)
    with pytest.raises(TypeError, match="counts are int32"):
        grouped_matmul(a, b, counts=on_gpu(np.array(COUNTS)))
    with pytest.raises(TilewrightError, match="offsets or counts, and was given both"):
        grouped_matmul(a, b, counts=counts, offsets=counts)
    with pytest.raises(TilewrightError, match="expected_rows = 0 is not"):
        grouped_matmul(a, b, counts=counts, expected_rows=0)
    with pytest.raises(TilewrightError, match="no bias, no activation"):
        grouped_matmul(a, b, counts=counts, activation="relu")
