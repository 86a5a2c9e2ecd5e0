"""The page of `watch`: texts that belong together, pictures of accesses, operands that can be read, and its size."""

from __future__ import annotations

import base64
import gzip
import json
import re

import numpy as np
import pytest

from tilewright.errors import TilewrightError
from tilewright.ir.stmt import Barrier
from tilewright.ir.visit import walk
from tilewright.ladders import find_rung
from tilewright.layout.banks import ideal_wavefronts, wavefronts
from tilewright.problem import Gemm
from tilewright.problem.reference import reference
from tilewright.report.debugger import Watched, left_out, page_text, small_integers, watch
from tilewright.report.debugger.page import access_pictures, key_of
from tilewright.schedule import Distribute, Stage, Tensorize, Transfer
from tilewright.simulator import simulate
from tilewright.toolchain import Build, build


def built(name: str, size: tuple[int, int, int]) -> Build:
    rung = find_rung(name)
    return build(rung.gemm(*size), rung)


@pytest.fixture(scope="module")
def conflicts() -> Watched:
    return watch(built("worklog/5", (128, 128, 16)))


def _line(watched: Watched, text: str) -> int:
    return next(at for at, line in enumerate(watched.texts.kernel) if text in line)


def test_a_statement_leads_to_its_step_and_to_its_cuda(conflicts: Watched) -> None:
    texts = conflicts.texts
    load = _line(conflicts, "A_tile_value[0] <- A[")
    assert texts.schedule[texts.steps_of[load][0]].startswith("Distribute('A_tile'")
    assert all("A[(" in texts.cuda[row] for row in texts.cuda_of[load]) and texts.cuda_of[load]
    barrier = _line(conflicts, "barrier  #")
    assert [texts.cuda[row].split("//")[0].strip() for row in texts.cuda_of[barrier]] == ["__syncthreads();"]
    loop = _line(conflicts, "for k_tile in")
    assert any("Split('k'" in texts.schedule[step] for step in texts.steps_of[loop])


@pytest.mark.cross_section("name", every=2)
@pytest.mark.parametrize(
    ("name", "text", "step"),
    [
        ("hopper/3", "<~ box A_map", Transfer),
        ("hopper/3", "# wgmma", Tensorize),
        ("ampere/6", "commit copies", Transfer),
        ("worklog/3", "A_tile[A_tile_m, A_tile_k] <-", Distribute),
        ("worklog/3", "A_tile and B_tile complete", Stage),
    ],
)
def test_the_deciding_step_comes_first(name: str, text: str, step: type) -> None:
    one = built(name, (256, 256, 256))
    watched_texts = watch(one, most_moments=100).texts
    line = next(at for at, said in enumerate(watched_texts.kernel) if text in said)
    assert isinstance(one.schedule.steps[watched_texts.steps_of[line][0]], step)


def test_pictures_count_as_the_counters_do(conflicts: Watched) -> None:
    recording = conflicts.recording
    pictures = access_pictures(recording)
    seen = 0
    for moment in recording.moments:
        for shown in moment.accesses:
            for _, picture, base, source in shown.places:
                request = pictures[key_of(shown, picture, source)]
                at = np.array(recording.pictures[picture].at)
                active = at >= 0
                if shown.space == "shared":
                    given = (at + base)[None], shown.width_bytes, active[None]
                    assert request["waves"] == wavefronts(*given, store=shown.store)[0]
                    assert request["ideal"] == ideal_wavefronts(*given, store=shown.store)[0]
                    seen += request["waves"] > request["ideal"]
                else:
                    assert request["sectors"] >= request["fewest"] >= request["used"] / 32
    assert seen  # rung 5 has bank conflicts
    assert any("bank" in request["why"] for request in pictures.values())


def test_operands_are_small_numbers_and_products_exact() -> None:
    for name in ("worklog/3", "ampere/6", "hopper/3"):
        one = built(name, (256, 256, 128))
        operands = small_integers(one.gemm)
        assert set(np.unique(operands.matrix("A")).tolist()) == {-3, -2, -1, 1, 2, 3}
        run = simulate(one.kernel, operands, blocks=[(0, 0, 0)])
        tile = one.kernel.tile
        c = one.gemm.out.decode(run.c).reshape(256, 256)[: tile["m"], : tile["n"]]
        np.testing.assert_array_equal(
            c, one.gemm.out.decode(one.gemm.out.encode(reference(operands)[: tile["m"], : tile["n"]]))
        )


def test_a_line_is_left_out_by_its_number() -> None:
    kernel = built("worklog/3", (64, 64, 64)).kernel
    shorter, said = left_out(kernel, 17)
    assert said == "barrier  # A_tile read by all: may be overwritten"
    barriers = [sum(isinstance(stmt, Barrier) for _, stmt in walk(one.body)) for one in (kernel, shorter)]
    assert barriers == [2, 1]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (0, "There is no line 0: the kernel has 34."),
        (35, "There is no line 35: the kernel has 34."),
        (2, "Line 2 is not a statement: grid"),
        (12, "Line 12 cannot be left out: for k_tile"),
        (10, "Line 10 cannot be left out: sum: register"),
        (8, "Line 8 cannot be left out: let m_thread"),
    ],
)
def test_lines_that_others_need_are_kept(line: int, said: str) -> None:
    with pytest.raises(TilewrightError, match=re.escape(said)):
        left_out(built("worklog/3", (64, 64, 64)).kernel, line)


def _data(page: str) -> dict[str, object]:
    found = re.search(r'id="blob-data">([^<]*)<', page)
    assert found is not None
    data: dict[str, object] = json.loads(gzip.decompress(base64.b64decode(found[1])))
    return data


def test_a_page_is_whole_and_loads_nothing(conflicts: Watched) -> None:
    page = page_text(conflicts)
    assert not re.findall(r"""(?:src|href)=["'](?!#|data:)""", page)
    assert "http" not in re.sub(r"http://www.w3.org/\S+", "", page)
    assert set(_data(page)) == {"recording", "fields", "texts", "pictures"}
    assert "worklog/5" in page or "worklog_" in page


def test_a_page_says_what_it_has_not_kept() -> None:
    page = page_text(watch(built("worklog/3", (64, 64, 64)), most_moments=100))
    kept = re.search(r"<b>([\d,]+) steps in the middle or at the end are not\s+kept.</b>", page)
    assert kept is not None and int(kept[1].replace(",", "")) > 50


@pytest.mark.parametrize(
    ("name", "size"),
    [
        pytest.param("worklog/6", (512, 512, 512), marks=pytest.mark.slow),
        pytest.param("ampere/6", (512, 512, 512), marks=pytest.mark.slow),
        ("hopper/best", (1024, 1024, 1024)),
    ],
)
def test_pages_stay_below_ten_megabytes(name: str, size: tuple[int, int, int]) -> None:
    assert len(page_text(watch(built(name, size)))) < 10e6


def test_added_operands_and_padding_are_filled() -> None:
    gemm = Gemm(8, 8, 8, beta=1.0, lda=12)
    operands = small_integers(gemm)
    assert not np.isnan(operands.matrix("C")).any()
    assert np.isnan(operands.a).any()
