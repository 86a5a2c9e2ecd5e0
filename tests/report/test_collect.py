"""What is collected of builds: their machine code, each or why there is none."""

from __future__ import annotations

from pathlib import Path

from tilewright.artifacts import Cubin
from tilewright.errors import TilewrightError
from tilewright.ladders import find_rung
from tilewright.report.collect import compile_all
from tilewright.runtime.cubin_cache import CubinCache
from tilewright.toolchain import build


def test_every_build_comes_back_in_its_place_and_a_refused_one_stops_none(tmp_path: Path) -> None:
    rungs = [find_rung(name) for name in ("worklog/1", "hopper/best", "worklog/3", "hopper/1")]
    builds = [build(rung.gemm(64, 64, 64), rung) for rung in rungs]
    found = compile_all(builds, "sm_80", CubinCache(tmp_path))
    assert [isinstance(one, Cubin) for one in found] == [True, False, True, False]
    assert all(isinstance(one, Cubin | TilewrightError) for one in found)
    assert [one.entry for one in found if isinstance(one, Cubin)] == [builds[0].source.entry, builds[2].source.entry]
    assert compile_all([], "sm_80", None) == []
