"""Drawn problems: what a seed names, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from named_problems import problem_named, request_of

from tilewright.cli.bench_drawn import targets_of
from tilewright.dtypes import BF16
from tilewright.errors import TilewrightError, UnknownName
from tilewright.frontend.libraries import View
from tilewright.frontend.options import PLAIN
from tilewright.frontend.requests import Views, checked, requests_of
from tilewright.suite.drawing import Drawn, drawn, layers_of, random_shapes, shapes_of_layers, tokens_of
from tilewright.suite.problems import Problem
from tilewright.suite.stacks import Batched, DrawnStack, random_batched, random_grouped


@pytest.fixture
def layers(tmp_path: Path) -> Path:
    path = tmp_path / "layers.csv"
    path.write_text("model,out_features,in_features\nalpha,64,128\nbeta,1000,2048\n")
    return path


def test_a_layer_at_a_token_count_is_a_product(layers: Path) -> None:
    shapes = dict(shapes_of_layers(layers_of(layers), (1, 33)))
    assert shapes == {
        (1, 64, 128): "alpha",
        (33, 64, 128): "alpha",
        (1, 1000, 2048): "beta",
        (33, 1000, 2048): "beta",
    }


def test_a_seed_names_a_drawing(layers: Path) -> None:
    shapes = list(shapes_of_layers(layers_of(layers), range(1, 40)))
    first = drawn(shapes, ["bf16", "f32"], ["NT"], seed=1, sample=7)
    assert first == drawn(shapes, ["bf16", "f32"], ["NT"], seed=1, sample=7)
    assert first != drawn(shapes, ["bf16", "f32"], ["NT"], seed=2, sample=7)
    assert [one.problem.format for one in first] == ["bf16"] * 7 + ["f32"] * 7
    assert [(p.m, p.n, p.k) for p in (one.problem for one in first[:7])] == [
        (p.m, p.n, p.k) for p in (one.problem for one in first[7:])
    ]


def test_every_other_random_shape_is_aligned() -> None:
    for number, (shape, source) in enumerate(random_shapes(200, seed=5)):
        assert all(8 <= size <= 8192 for size in shape)
        if number % 2:
            assert not any(size % 8 for size in shape)
            assert source == "random, multiples of 8"


def test_problems_that_no_gpu_holds_are_not_drawn() -> None:
    shapes = [((200_000, 200_000, 64), "huge"), ((64, 64, 64), "small")]
    assert [one.source for one in drawn(shapes, ["f32"], ["NN"], seed=0)] == ["small"]


@pytest.mark.parametrize(
    ("problem", "kind"),
    [
        (Problem(3, 64, 64, "bf16", "NT"), "linear NT aligned"),
        (Problem(3, 64, 68, "bf16", "NT"), "linear NT unaligned"),
        (Problem(3, 64, 68, "f32", "NT"), "linear NT aligned"),
        (Problem(3, 63, 64, "f32", "NN"), "linear NN unaligned"),
    ],
)
def test_a_problem_is_aligned_if_every_row_is_a_multiple_of_16_bytes(problem: Problem, kind: str) -> None:
    assert Drawn(problem, "alpha").kind == kind


@pytest.mark.parametrize("text", ["", "model,out_features,in_features\nalpha,x,3\n", "a,b\n1,2\n"])
def test_a_file_that_holds_no_layers_is_refused_or_empty(tmp_path: Path, text: str) -> None:
    path = tmp_path / "layers.csv"
    path.write_text(text)
    if not text:
        assert layers_of(path) == ()
        return
    with pytest.raises(TilewrightError, match="is not a layer"):
        layers_of(path)


@pytest.mark.parametrize("text", ["", "12 0", "twelve", "-3"])
def test_a_file_that_holds_no_token_counts_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tokens.txt"
    path.write_text(text)
    with pytest.raises(TilewrightError, match=r"token count|empty"):
        tokens_of(path)


def test_unknown_formats_and_orders_are_refused(layers: Path) -> None:
    shapes = list(shapes_of_layers(layers_of(layers), (1,)))
    with pytest.raises(UnknownName):
        drawn(shapes, ["fp7"], ["NT"], seed=0)
    with pytest.raises(UnknownName):
        drawn(shapes, ["bf16"], ["XX"], seed=0)


def test_random_stacks_have_work() -> None:
    assert all(one.flops > 0 for one in random_batched(50, 3, ["bf16"]))
    assert all(sum(one.rows) > 0 for one in random_grouped(50, 3))


def test_fp8_is_drawn_with_scales_of_rows_fast_and_promoted(layers: Path) -> None:
    tokens = layers.with_name("tokens.txt")
    tokens.write_text("3")
    asked = {"shapes": layers, "tokens": tokens, "random": 0, "batched": False, "grouped": False}
    found = targets_of(**asked, formats=["e4m3", "f32_emulated"], orders=["NT"], seed=0, sample=1)  # type: ignore[arg-type]
    fast, promoted, emulated = (one.problem for one in found)
    assert isinstance(fast, Problem) and isinstance(promoted, Problem) and isinstance(emulated, Problem)
    assert str(promoted).endswith("e4m3 NT row") and str(fast) == f"{promoted} fast"
    assert fast.n % 16 == 0 and (fast.promote_every, promoted.promote_every) == (0, 128)
    assert emulated.precision == "f32_emulated" and emulated.gemm.dtype.bytes == 4


@pytest.mark.parametrize("text", ["7 x 24x40x16 bf16", "3 x 9x7x5 bf16", "16 x 1x4096x4096 bf16"])
def test_a_batch_is_requested_as_matmul_requests_it(text: str) -> None:
    one = problem_named(text)
    assert isinstance(one, Batched) and str(one) == text
    a, b = (
        View(1 << 20, (one.batch, rows, columns), (rows * columns, columns, 1), BF16, 0)
        for rows, columns in ((one.m, one.k), (one.k, one.n))
    )
    views = Views(a, b)
    (piece,) = requests_of(views, *checked(views, PLAIN), PLAIN)
    assert request_of(one) == piece.request


def test_batches_are_drawn_beside_the_fixed_ones() -> None:
    asked = {"shapes": None, "tokens": None, "random": 0, "batched": True, "grouped": False}
    found = targets_of(**asked, formats=["bf16", "f32"], orders=["NT"], seed=3, sample=2)  # type: ignore[arg-type]
    assert all(isinstance(one, DrawnStack) and isinstance(one.problem, Batched) for one in found)
    drawn_ones = [one.problem for one in found if one.source == "random"]
    assert drawn_ones == [*random_batched(2, 3, ["bf16", "f32"])] and len(found) > len(drawn_ones) == 4
