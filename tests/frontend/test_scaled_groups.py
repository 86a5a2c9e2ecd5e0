"""Whole calls of `scaled_grouped_matmul` on a simulated H200: every launch of a call runs on the simulator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cpu_gpu import STATE, FakeGpu, cpu_gpu, on_gpu
from simulated import SimulatedKernels
from test_scaled import drawn, number, scales

from tilewright.device.catalog import device
from tilewright.dtypes import BF16, E4M3, E5M2, F32, Array, DType
from tilewright.errors import LaunchError, ProblemError
from tilewright.frontend import scaled_grouped_matmul
from tilewright.frontend.libraries import DTypeError, library_of
from tilewright.frontend.ragged import spans_of
from tilewright.frontend.scaled import scaled_options
from tilewright.frontend.scaled_groups import words_of_scaled_groups
from tilewright.frontend.shapes import ShapeError
from tilewright.planning import dispatch
from tilewright.problem.gemm import Gemm
from tilewright.problem.tolerance import relative_bound

TOKENS, N, K = 60, 48, 144
ENDS = [17, 17, 40, 60]


@pytest.fixture(autouse=True)
def simulated_gpu() -> Iterator[None]:
    with cpu_gpu(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "Kernels", lambda gpu: SimulatedKernels(FakeGpu(), device("H200")))
        yield


def offsets(ends: list[int]) -> Any:
    return on_gpu(np.array(ends, np.int32))


def operands(k: int = K, dtype: DType = E4M3) -> tuple[Any, Any]:
    return drawn(TOKENS, k, dtype=dtype), drawn(len(ENDS), N, k, dtype=dtype).swapaxes(-1, -2)


def spread(scale: Any, shape: tuple[int, int]) -> Array:
    """A scale of A for each of its elements."""
    whole = np.asarray(scale, np.float64)
    if whole.ndim == 2 and whole.shape[1] > 1:
        return np.repeat(whole, 128, 1)[:, : shape[1]]
    return np.broadcast_to(whole.reshape(-1, 1), shape)


def spread_of_group(scale: Any, group: int, shape: tuple[int, int]) -> Array:
    """A scale of the B of a group for each of its elements."""
    whole = np.asarray(scale, np.float64)
    if whole.size == 1:
        return np.broadcast_to(whole.reshape(1, 1), shape)
    own = whole[group]
    if own.ndim == 2 and own.shape != (1, shape[1]) and own.size > 1:
        own = np.repeat(own, 128, 0)[: shape[0]]
        return own if own.shape[1] == shape[1] else np.repeat(own, 128, 1)[:, : shape[1]]
    return np.broadcast_to(own.reshape(1, -1), shape)


def check(
    a: Any, b: Any, c: Any, scale_a: Any, scale_b: Any, ends: list[int], *, every: int = 128, **formats: DType
) -> None:
    """Hold each group against its bound."""
    dtype, out = formats.get("dtype", E4M3), formats.get("out", BF16)
    left, right = number(a, dtype) * 1, number(np.ascontiguousarray(b), dtype)
    of_a = spread(scale_a, a.shape)
    for group, rows in enumerate(spans_of(ends, a.shape[0])):
        of_b = spread_of_group(scale_b, group, b.shape[1:])
        exact = (left[rows] * of_a[rows]) @ (right[group] * of_b)
        wide = [np.where(x == 0, 0, np.maximum(np.abs(x), dtype.tiny)) for x in (left[rows], right[group])]
        gemm = Gemm(a.shape[0], b.shape[2], a.shape[1], dtype, out=out)
        bound = (
            relative_bound(gemm, promote_every=every) * 1.01 * ((wide[0] * of_a[rows]) @ (wide[1] * of_b)) + out.tiny
        )
        assert (np.abs(number(c[rows], out) - exact) <= bound).all(), group


def words(arrays: tuple[Any, ...], out: Any = None, fast: bool = False) -> str:
    return words_of_scaled_groups(library_of(arrays[0]), arrays, scaled_options(out, fast))


@pytest.mark.cross_section("kind", "fast", every=2)
@pytest.mark.parametrize("fast", [False, True], ids=["promoted", "fast"])
@pytest.mark.parametrize("kind", ["tensors", "groups", "rows and columns"])
def test_scales_of_every_kind(kind: str, fast: bool) -> None:
    a, b = operands()
    scale_a = scales(TOKENS, 1) if kind == "rows and columns" else scales(1)
    scale_b = {"tensors": scales(1), "groups": scales(len(ENDS)), "rows and columns": scales(len(ENDS), N)}[kind]
    arrays = (a, b, scale_a, scale_b, offsets(ENDS))
    c = scaled_grouped_matmul(*arrays[:4], offsets=arrays[4], fast_accumulation=fast)
    assert c.shape == (TOKENS, N) and c.dtype == np.uint16
    check(a, b, c, scale_a, scale_b, ENDS, every=0 if fast else 128)
    assert words(arrays, fast=fast).startswith("wgmma(")
    assert ("promote_every=128" in words(arrays, fast=fast)) is not fast


@pytest.mark.parametrize("columns", [1, 128])
def test_scales_of_blocks(columns: int) -> None:
    a, b = operands(k=272)
    scale_a, scale_b = scales(3, TOKENS).T, scales(len(ENDS), 3, -(-N // columns))
    arrays = (a, b, scale_a, scale_b, offsets(ENDS))
    c = scaled_grouped_matmul(*arrays[:4], offsets=arrays[4], out_dtype="f32")
    check(a, b, c, scale_a, scale_b, ENDS, out=F32)
    assert words(arrays, "f32").startswith("wgmma(")


def test_other_orders_are_copied_and_transposed_forms_are_the_same() -> None:
    a, b = operands()
    scale_a, scale_b = scales(TOKENS), scales(len(ENDS), N)
    expected = scaled_grouped_matmul(a, b, scale_a, scale_b, offsets=offsets(ENDS))
    check(a, b, expected, scale_a, scale_b, ENDS)
    columns = on_gpu(np.ascontiguousarray(a.T)).T
    rows = on_gpu(np.ascontiguousarray(b))
    behind = on_gpu(np.concatenate([np.zeros(3, np.uint8), np.asarray(a).reshape(-1)]))[3:].reshape(a.shape)
    for one, other in ((columns, b), (a, rows), (behind, b)):
        np.testing.assert_array_equal(
            scaled_grouped_matmul(one, other, scale_a, scale_b, offsets=offsets(ENDS)), expected
        )
    turned = scaled_grouped_matmul(b.swapaxes(-1, -2), a.T, scale_b, scale_a, offsets=offsets(ENDS))
    np.testing.assert_array_equal(turned, expected.T)


def test_sizes_that_tma_cannot_load_are_multiplied_by_threads() -> None:
    a, b = operands(k=41)
    scale_a, scale_b = scales(TOKENS), scales(len(ENDS), N)
    c = scaled_grouped_matmul(a, b, scale_a, scale_b, offsets=offsets(ENDS), out_dtype="f32")
    check(a, b, c, scale_a, scale_b, ENDS, out=F32)
    a, b = operands(k=141)
    with pytest.raises(LaunchError, match="pad k to a multiple of 16"):
        scaled_grouped_matmul(a, b, scales(TOKENS, 2), scales(len(ENDS), 2, 1), offsets=offsets(ENDS))


def test_e5m2_and_offsets_that_are_none() -> None:
    a, b = drawn(TOKENS, K, dtype=E5M2), drawn(len(ENDS), N, K, dtype=E5M2).swapaxes(-1, -2)
    for ends in ([70, -3, 20, 2**31 - 1], [5, 3, 20, 10]):
        c = scaled_grouped_matmul(a, b, scales(1), scales(len(ENDS)), offsets=offsets(ends), out_dtype="f32")
        check(a, b, c, scales(1), scales(len(ENDS)), ends, dtype=E5M2, out=F32)


@pytest.mark.parametrize("kind", ["rows and columns", "blocks"])
def test_gathered_rows_with_their_scales(kind: str) -> None:
    a, b = operands()
    rows = np.random.default_rng(1).integers(0, TOKENS, TOKENS, np.int32)
    scale_a = scales(TOKENS) if kind == "rows and columns" else scales(2, TOKENS).T
    scale_b = scales(len(ENDS), N) if kind == "rows and columns" else scales(len(ENDS), 2, 1)
    c = scaled_grouped_matmul(a, b, scale_a, scale_b, offsets=offsets(ENDS), rows=on_gpu(rows))
    check(a[rows], b, c, np.asarray(scale_a)[rows], scale_b, ENDS)
    with pytest.raises(ShapeError, match="of which `rows` gathers"):
        scaled_grouped_matmul(a, b, scales(7), scale_b, offsets=offsets(ENDS), rows=on_gpu(rows))


def test_nothing_to_multiply() -> None:
    a, b = operands()
    assert scaled_grouped_matmul(a[:0], b, scales(1), scales(1), offsets=offsets(ENDS)).shape == (0, N)
    nothing = scaled_grouped_matmul(a, b[:0], scales(1), scales(1), offsets=offsets([]))
    assert nothing.shape == (TOKENS, N)
    c = scaled_grouped_matmul(a[:, :0], b[:, :0], scales(TOKENS), scales(len(ENDS), N), offsets=offsets(ENDS))
    assert not np.asarray(c).any()


def test_a_new_kind_of_call_in_a_capture_is_refused() -> None:
    a, b = operands()
    given = {"offsets": offsets(ENDS)}
    STATE.capturing = True
    with pytest.raises(LaunchError, match="recording a CUDA graph"):
        scaled_grouped_matmul(a, b, scales(1), scales(1), **given)
    STATE.capturing = False
    scaled_grouped_matmul(a, b, scales(1), scales(1), **given)
    STATE.capturing = True
    scaled_grouped_matmul(a, b, scales(1), scales(1), **given)


@pytest.mark.cross_section("kind", every=2)
@pytest.mark.parametrize("kind", ["tensors", "rows and columns", "blocks"])
def test_groups_that_use_the_first_rows_of_their_room(kind: str) -> None:
    room, counts = 24, [5, 0, 24, 99]
    a, b = drawn(4, room, K), drawn(4, N, K).swapaxes(-1, -2)
    scale_a = {"tensors": scales(1), "rows and columns": scales(4, room), "blocks": scales(4, room, 2)}[kind]
    scale_b = {"tensors": scales(4), "rows and columns": scales(4, N), "blocks": scales(4, 2, 1)}[kind]
    c = scaled_grouped_matmul(a, b, scale_a, scale_b, counts=offsets(counts), expected_rows=8)
    assert c.shape == (4, room, N)
    for group, count in enumerate((5, 0, 24, 24)):
        some, own = slice(0, count), slice(group, group + 1)
        of_a, of_b = scale_a if kind == "tensors" else scale_a[group][some], scale_b[own]
        check(a[group][some], b[own], c[group][some], of_a, of_b, [count])
    with pytest.raises(ShapeError, match="beside a of shape"):
        scaled_grouped_matmul(a, b, scales(4, 7), scale_b, counts=offsets(counts))
    with pytest.raises(ProblemError, match="takes offsets or counts"):
        scaled_grouped_matmul(a, b, scale_a, scale_b)


WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "rows": ({"scale_a": scales(TOKENS - 1)}, ShapeError, "scale_a has shape"),
    "columns": ({"scale_b": scales(3, N)}, ShapeError, "beside scale_b of shape"),
    "rows beside blocks": ({"scale_a": scales(TOKENS, 2)}, ShapeError, "scales of blocks stand beside others"),
    "apart": ({"scale_b": scales(4, 2 * N)[:, ::2]}, ProblemError, "kernels read neighbours"),
    "f16 scales": ({"scale_a": on_gpu(np.ones(TOKENS, np.float16))}, DTypeError, "scales are f32"),
    "bf16": ({"a": on_gpu(np.zeros((TOKENS, K), np.uint16))}, DTypeError, "operands with scales are of FP8"),
    "sums": ({"b": drawn(K, N)}, ShapeError, "takes no a of shape"),
    "groups": ({"offsets": offsets([3])}, ShapeError, "1 offset for "),
    "wide offsets": ({"offsets": on_gpu(np.array(ENDS, np.int64))}, DTypeError, "offsets are int32"),
    "two dimensions": ({"offsets": offsets(ENDS).reshape(2, 2)}, ShapeError, "offsets have one dimension"),
    "a list": ({"offsets": ENDS}, ProblemError, "offsets is a list"),
}


@pytest.mark.parametrize("scale_a", [None, 0.5, [1.0]], ids=repr)
def test_scales_that_are_no_arrays(scale_a: Any) -> None:
    (a, b), rows = operands(), offsets(list(range(TOKENS)))
    for given in ({"counts": offsets([3] * 4)}, {"offsets": offsets(ENDS), "rows": rows}, {"offsets": offsets(ENDS)}):
        with pytest.raises(ProblemError, match=f"scale_a is a {type(scale_a).__name__}"):
            left = a.reshape(4, 15, K) if "counts" in given else a
            scaled_grouped_matmul(left, b, scale_a, scales(4, N), **given)
    with pytest.raises(ShapeError, match="gathers rows of a matrix, and a has shape"):
        scaled_grouped_matmul(a[0], b, scales(TOKENS), scales(4, N), offsets=offsets(ENDS), rows=rows)


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_asked(name: str) -> None:
    change, error, said = WRONG[name]
    a, b = operands()
    given = {"a": a, "b": b, "scale_a": scales(TOKENS), "scale_b": scales(len(ENDS), N), "offsets": offsets(ENDS)}
    given |= change
    with pytest.raises(error, match=said):
        scaled_grouped_matmul(given.pop("a"), given.pop("b"), given.pop("scale_a"), given.pop("scale_b"), **given)
