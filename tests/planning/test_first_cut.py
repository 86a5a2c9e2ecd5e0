"""Which kernels and plans are priced at all."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import fit_first_cut
import numpy as np
import pytest
from fit_choice import problem_named, request_of
from networks import ramps_and_layers

from tilewright.device.catalog import device
from tilewright.kernels.columns import Columns
from tilewright.planning.assembly import multiplied_on
from tilewright.planning.candidates import other_options
from tilewright.planning.clusters import in_clusters
from tilewright.planning.cost import first_cut
from tilewright.planning.cost.correction import FirstCut, Network
from tilewright.planning.cost.promising import least, likeliest
from tilewright.planning.cost.wgmma_terms import CLUSTERED_SMS
from tilewright.planning.emulated import of_pieces
from tilewright.planning.ranking import KERNELS, PLANS, likely_behind_each, proposed, ranked
from tilewright.problem.emulation import BF16X3
from tilewright.problem.gemm import Gemm

H200 = device("H200")


def kernels_of(name: str) -> tuple[Gemm, Columns, int]:
    request = request_of(problem_named(name))
    gemm = multiplied_on(H200, request.gemm)
    found = proposed("wgmma", gemm, H200, request.alignment, stack=request.stack)
    assert found is not None
    return gemm, found.kernels, fit_first_cut.count_of(request)


def test_the_least_are_kept_and_a_few_of_those_without_split_k() -> None:
    told, whole = np.arange(100.0)[::-1], np.arange(100) < 30
    assert sorted(least(told, 5).tolist()) == [95, 96, 97, 98, 99]
    assert sorted(least(told[:4], 5).tolist()) == [0, 1, 2, 3]
    found = likeliest(told, whole, 5)
    assert found.tolist() == [*range(14, 30), *range(95, 100)]


@pytest.mark.parametrize("name", ["1024x4096x4096 bf16 NT", "64x8x8192 f16 TN", "12 x 64x200x64 bf16"])
def test_kernels_are_known_by_their_work_their_waves_and_their_edges(name: str) -> None:
    gemm, c, count = kernels_of(name)
    load = first_cut.load_of(c, gemm, H200, count)
    (looked_at,) = np.isfinite(load.work).nonzero()
    some = c[looked_at]
    load = first_cut.Load(*(of[looked_at] for of in load))
    found = first_cut.sized_features(some, load, gemm, count)
    blocks = np.ceil(gemm.m / some.m) * np.ceil(gemm.n / some.n) * some.split_k * some.cluster_k * count
    clustered = (some.cluster_m * some.cluster_n >= 4) | (some.cluster_k >= 4)
    fill = blocks / (132 * some.per_sm * np.where(clustered, CLUSTERED_SMS, 1.0))
    assert 2.0 ** found[0] == pytest.approx(load.work / load.work.min()) and found[0].min() == 0
    assert found[1].tolist() == np.log2(some.split_k).tolist() and 2.0 ** found[2] == pytest.approx(fill)
    assert 2.0 ** found[3] * gemm.m == pytest.approx(np.ceil(gemm.m / some.m) * some.m)
    assert 2.0 ** found[4] * gemm.n == pytest.approx(np.ceil(gemm.n / some.n) * some.n)
    assert 2.0 ** found[5] * 2.0 ** found[6] == pytest.approx(some.tiles)
    k_tiles = np.ceil(gemm.k * gemm.dtype.bytes / 128)
    assert 2.0 ** found[7] == pytest.approx(np.ceil(k_tiles / (some.split_k * some.cluster_k)))
    assert 2.0 ** found[8] == pytest.approx(np.ceil(fill)) and found[11] == pytest.approx(1 / np.ceil(fill))
    assert found[10] == pytest.approx(fill / np.ceil(fill)) and found[12] == pytest.approx(np.minimum(1, fill))
    assert 0 < found[13].min() <= found[13].max() <= 1
    assert len(found) == first_cut.SIZED


def test_what_options_add_counts_for_the_plans_that_have_them() -> None:
    gemm, c, count = kernels_of("4096x4096x96 bf16 NN")
    c = in_clusters(c[np.arange(0, len(c), 50)], gemm, H200)
    adds = dict(zip(first_cut.OPTIONS, (1.0, 10.0, 100.0, 1000.0), strict=True))
    columns = {name: np.full(len(c), value) for name, value in adds.items()}
    plans = other_options(c.with_columns(as_kernel=np.zeros(len(c)), **columns), gemm, count)
    told = plans.dependent_launch + 10 * (plans.raster_rows > 1) + np.choose(plans.staging, [0, 100, 1000])
    assert {*plans.staging.tolist()} == {0, 1, 2}
    for most in (5, 60):
        found = first_cut.likely_plans(plans, gemm, most)
        assert told[found].max() <= np.sort(told)[most + 16]


def test_a_choice_prices_few_plans_and_a_search_as_many_as_it_asks_for() -> None:
    request = request_of(problem_named("2048x4096x4096 bf16 NT"))
    found = proposed("wgmma", request.gemm, H200, request.alignment)
    assert found is not None and len(found.kernels) > 10 * KERNELS
    asked = request.gemm, H200, request.alignment, 1
    ((few, _),) = likely_behind_each(found, *asked)
    ((many, _),) = likely_behind_each(found, *asked, most=400)
    assert PLANS <= len(few) <= PLANS + 16 < 1000 < len(many)


def test_of_products_that_nobody_taught_the_terms_are_asked() -> None:
    plain = request_of(problem_named("1024x1024x1024 f32 NT"))
    request = of_pieces(replace(plain, algorithm=BF16X3))
    assert request.gemm.pieces is not None
    (table,) = ranked(request.gemm, H200, request.alignment).tables
    assert PLANS < len(table.seconds) <= 8 * PLANS + 16
    every = ranked(request.gemm, H200, request.alignment, corrected=1 << 20)
    assert table.seconds.min() <= 1.02 * every.tables[0].seconds.min()


@pytest.mark.parametrize("fit", fit_first_cut.FITS)
def test_large_problems_have_names_that_problems_have(fit: str) -> None:
    rng = random.Random(3)
    names = [fit_first_cut.large_problem(fit, rng) for _ in range(60)]
    for name in names:
        assert str(problem_named(name)) == name
    sizes = [int(name.split("x")[1]) for name in names]
    assert max(sizes) > 65536 and len({*names}) == 60


@pytest.fixture(scope="module")
def lists() -> list[Any]:
    problems = [(f"{m}x{n}x512 bf16 NT", "H200", m) for m, n in ((512, 1024), (640, 2048), (96, 4096))]
    return fit_first_cut._of_problems([*problems, ("31 x 256x256x64 bf16", "H200", 1)])


def test_of_each_problem_kernels_then_plans_are_taught(lists: list[Any]) -> None:
    assert [one.of_plans for one in lists] == [False, True] * 4
    assert all(np.isfinite(one.sized).all() and np.isfinite(one.us).all() for one in lists)  # of a batch, too
    for kernels, plans in zip(lists[::2], lists[1::2], strict=True):
        assert kernels.us.min() <= plans.us.min() * (1 + 1e-9)  # a kernel takes what the best of its plans does
        assert not kernels.options.any() and plans.options.any()
        assert kernels.kernels[:, 0].max() == 0 and plans.kernels[:, 0].min() == 1


def test_networks_that_are_written_say_what_they_learned(lists: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(fit_first_cut, "_PROBLEMS", 2)
    monkeypatch.setattr(fit_first_cut, "_EPOCHS", 40)
    lesson = fit_first_cut.Lesson(lists)
    lesson.learn(range(8))
    kernel = Network.from_json(ramps_and_layers(lesson.kernel_knots, lesson.kernel))
    problem = Network.from_json(ramps_and_layers(lesson.about_knots, lesson.problem))
    first = FirstCut(kernel, problem)
    for number, one in enumerate(lists):
        with torch.no_grad():
            (said,) = lesson.said([number])
        matters, known = first.problem.said(one.about)[0], first.kernel.said(one.kernels)
        told = one.sized[:, 0] + one.sized @ matters[-first_cut.SIZED :]
        told = told + known[:, : first_cut.NUMBERS] @ matters[: first_cut.NUMBERS]
        options = (known * matters[: -first_cut.SIZED])[:, first_cut.NUMBERS :]
        told = told + (one.options * options.reshape(len(known), len(first_cut.OPTIONS), -1).sum(axis=2)).sum(axis=1)
        assert told == pytest.approx(said.numpy(), abs=2e-3)
        best = np.argsort(one.us)[:3]
        assert min(np.argsort(np.argsort(told))[best]) < len(told) / 4
