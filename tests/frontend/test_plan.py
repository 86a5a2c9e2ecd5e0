"""`tilewright.plan`: what a call runs, told without a GPU, is what the dispatcher would run."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from made_up_winners import a_winner
from planned import asked, paper_dispatcher

import tilewright as tw
from tilewright.device.catalog import device
from tilewright.errors import LaunchError, ProblemError, UnknownName
from tilewright.frontend.libraries import DTypeError
from tilewright.frontend.shapes import ShapeError
from tilewright.planning import account
from tilewright.planning.account import ALWAYS, FLAG_RAISED, FLAGS_CLEAR
from tilewright.planning.dispatch import use_database
from tilewright.planning.estimates import estimates
from tilewright.problem.emulation import BF16X6


@pytest.fixture(autouse=True)
def nothing_compiled_or_tuned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(account, "_has_compiler", lambda: False)
    use_database(None)
    yield
    from tilewright.planning import dispatch

    dispatch._DATABASE.clear()


@pytest.mark.parametrize(
    ("m", "n", "k", "format", "orders"),
    [
        (256, 256, 256, "bf16", "NN"),
        (64, 64, 8192, "bf16", "NT"),
        (255, 257, 253, "f32", "NN"),
        (1, 512, 512, "f32", "TN"),
    ],
)
def test_it_is_what_the_dispatcher_plans_and_its_launches_add_up_to_the_estimate(
    m: int, n: int, k: int, format: str, orders: str
) -> None:
    found = tw.plan((m, k), (k, n), dtype=format, orders=orders, device="H200")
    planner, request = paper_dispatcher(device("H200")), asked(m, n, k, format, orders)
    assert found.words == planner.plan(request).words
    assert found.estimated_us == pytest.approx(next(iter(estimates(request, planner.spec)))[0])
    assert found.tflops == pytest.approx(2 * m * n * k / found.estimated_us / 1e6)
    (product,) = found.products
    assert (product.m, product.n, product.k, product.runs.chosen_by) == (m, n, k, "the estimate")
    assert [one.role for one in found.launches].count("product") == 1
    assert all(one.condition == ALWAYS and one.kernel and f"{one.grid[0]}" in str(found) for one in found.launches)
    assert all("__global__" in one.cuda for one in found.launches)


def test_launches_around_a_product() -> None:
    split_k = tw.plan((64, 8192), (8192, 64), dtype="bf16", device="A100")
    assert [one.role for one in split_k.launches] == ["product", "reduction"]
    assert split_k.scratch_bytes > 0 and split_k.launches[1].what.startswith("C of ")
    padded = tw.plan((1535, 6001), (6001, 1535), device="H200")
    assert padded.launches[0].role == "copy" and padded.launches[-1].role == "reduction"
    request, spec = asked(64, 64, 8192, "bf16", "NN"), device("A100")
    assert split_k.estimated_us == pytest.approx(next(iter(estimates(request, spec)))[0])  # the reduction counts once


def test_pieces_and_the_plan_behind_them() -> None:
    found = tw.plan((4096, 4096), (4096, 4096), precision="f32_emulated", orders="NT", device="H200", best=2)
    assert [one.role for one in found.launches[:4]] == ["split", "scale", "split", "product"]  # rows of A by one launch
    conditions = [one.condition for one in found.launches]
    assert conditions == [ALWAYS] * 3 + [FLAGS_CLEAR] + [FLAG_RAISED] * 3
    assert found.bound == 4096
    (product,) = found.products
    fallback_us = product.runs.fallback_us
    assert fallback_us is not None and found.estimated_us < fallback_us
    alone = tw.plan((4096, 4096), (4096, 4096), precision="bf16x6", orders="NT", device="H200")
    assert alone.bound == BF16X6.units(4096) and alone.products[0].runs.fallback_us is None
    assert fallback_us > alone.estimated_us > found.estimated_us
    assert len(product.next_best) == 2
    assert "with one raised" in str(found) and "if a flag is raised" in str(found)


def test_f32_emulated_tells_of_f32_arithmetic_too() -> None:
    small = tw.plan((256, 256), (256, 256), precision="f32_emulated", device="H200", best=9)
    assert small.words.startswith("simt")
    assert any("pieces" in other.words for other in small.products[0].next_best)


def test_batches_vectors_and_empty_results() -> None:
    found = tw.plan((3, 32, 64), (3, 64, 16), device="RTX 4090")
    assert (found.shape, found.products[0].batch) == ((3, 32, 16), 3) and "3 of 32 x 16 x 64" in str(found)
    assert tw.plan((64,), (64, 16), device="H200").shape == (16,)
    empty = tw.plan((0, 64), (64, 16), device="H200")
    assert (empty.launches, empty.estimated_us, empty.tflops) == ((), 0.0, 0.0) and "empty result" in str(empty)


def test_arrays_of_the_host_and_what_is_copied_before() -> None:
    a, b = np.ones((40, 64), np.float32), np.ones((64, 24), np.float16).astype(np.float32)
    found = tw.plan(a, b, c=np.ones(24, np.float32), bias=np.ones(24, np.float32), activation="relu", device="H200")
    assert found.shape == (40, 24) and found.copied == ("c",) and "copied" in str(found)
    same = np.zeros((40, 24), np.float32)
    assert tw.plan(a, b, c=same, out=same, device="H200").copied == ()
    traced = tw.plan(a, b, epilogue=lambda x, s: x * s, operands={"s": np.ones(24, np.float32)}, device="H200")
    assert traced.shape == (40, 24)


def test_what_others_read() -> None:
    found = tw.plan((40, 64), (64, 24), device="H200", best=1)
    data = found.as_data()
    assert data["figure"] == "estimated" and data["products"][0]["launches"][0]["grid"] == found.launches[0].grid
    assert len(data["products"][0]["next_best"]) == 1
    shown = found._repr_html_()
    assert shown.count("<tr>") == 1 + len(found.launches) and "estimated" in shown
    assert max(map(len, found.lines(80))) <= 80


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"orders": "XX"}, ProblemError, "orders are NN, NT, TN, TT"),
        ({"best": -1}, ProblemError, "best=-1 is not a number of plans"),
        ({"dtype": "f64"}, DTypeError, "dtypes are f32, f16, bf16 and complex64; plans of FP8"),
        ({"dtype": "tf32"}, DTypeError, "precision='tf32'"),
        ({"device": "H201"}, UnknownName, "'H200'"),
        ({"device": 5}, UnknownName, "There is no device '5'"),
        ({"precision": "bf16x7"}, ProblemError, "bf16x7"),
        ({"precision": "bf16x6", "device": "A100 SXM 80 GB"}, LaunchError, "wgmma"),
    ],
)
def test_what_cannot_be_asked(options: dict[str, Any], kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said):
        tw.plan((64, 64), (64, 64), **{"device": "H200", **options})


def test_shapes_that_are_none_and_formats_that_arrays_have() -> None:
    with pytest.raises(ProblemError, match="Cannot multiply a NoneType"):
        tw.plan(None, (4, 4), device="H200")
    with pytest.raises(ShapeError, match="size 5 is different from 4"):
        tw.plan((4, 4), (5, 4), device="H200")
    with pytest.raises(ShapeError, match=r"a=\(4, -4\) is not a shape"):
        tw.plan((4, -4), (4, 4), device="H200")
    with pytest.raises(ProblemError, match="leave out dtype"):
        tw.plan(np.ones((4, 4), np.float32), np.ones((4, 4), np.float32), dtype="f32", device="H200")


def test_without_a_gpu_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.frontend.asking.gpu_problem", lambda: "None is here.")
    with pytest.raises(LaunchError, match=r"There is no GPU to plan for\. None is here\."):
        tw.plan((4, 4), (4, 4))
    with pytest.raises(ProblemError, match="no call of it runs"):
        tw.plan((4, 4), (4, 4), device="H200").ran()


def test_of_a_tuned_winner_the_measured_time_is_told() -> None:
    winner = a_winner(k=8192, median_us=4321.0)
    use_database(SimpleNamespace(winner=lambda *_: winner))
    found = tw.plan((4096, 4096), (4096, 4096), device="H200")
    expected = {"m": 4096, "n": 4096, "k": 8192, "median_us": 4321.0, "date": winner.date}
    assert found.as_data()["products"][0]["winner"] == expected
    assert "chosen by a tuned winner: 4321.0 us measured at 4096 x 4096 x 8192, 2026-01-01" in str(found)
    assert "not measured" not in str(found)
    pieces = tw.plan((4096, 4096), (4096, 4096), precision="bf16x6", device="H200")
    assert pieces.as_data()["products"][0]["winner"] is None and "TFLOP/s, not measured" in str(pieces)
