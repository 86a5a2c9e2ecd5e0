"""What networks learn from is what a choice asks them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from planned import alignment_of
from test_dispatch import problem

from tilewright.device.catalog import H200
from tilewright.kernels.columns import Columns
from tilewright.planning import ranking
from tilewright.planning.cost import plans
from tilewright.planning.cost.correction import fit_for
from tilewright.planning.cost.simt_features import Busiest
from tilewright.planning.ranking import ranked
from tilewright.problem import Gemm

PROBLEMS: dict[str, Gemm] = {
    "bf16": problem(1000, 2000, 520, "bf16"),
    "f16, unaligned": problem(301, 515, 77, "f16", "NT"),
    "f32": problem(513, 300, 400, "f32", "NT"),
    "tf32": problem(512, 640, 256, "tf32", "TN"),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_features_of_a_fit_are_those_that_a_choice_asks_about(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A choice knows those of a kernel's class already."""
    gemm, asked, seen = PROBLEMS[name], [], set()
    seconds_of = ranking.plan_seconds

    def watched(kind: str, tables: Any, *further: Any, **options: Any) -> Any:
        asked.append((kind, tables))
        return seconds_of(kind, tables, *further, **options)

    monkeypatch.setattr(ranking, "plan_seconds", watched)
    ranked(gemm, H200, alignment_of(gemm))
    for kind, tables in asked:
        for c, around in tables[:3]:
            one = plans.estimate(kind, c, gemm, H200, around)
            rows = np.flatnonzero(np.isfinite(one.launches))[:40]
            if fit_for(kind, gemm.dtype).network is None or not len(rows):
                continue
            of_table = plans.features(kind, one, rows, H200, around.count)
            alone = Columns({name: getattr(c[rows], name) for name in c.names})  # of no table that is kept
            other = plans.estimate(kind, alone, gemm, H200, around)
            told = plans.features(kind, other, np.arange(len(rows)), H200, around.count)
            assert np.array_equal(of_table, told)
            seen.add(kind)
    assert seen


def test_networks_of_mma_know_what_a_time_consists_of() -> None:
    """By clocks of a GHz: 3 blocks of an SM, two at a time, 5 k tiles each."""
    busiest = Busiest(blocks=396, most=3.0, together=2.0, steps=5, step=100.0, ends=300.0, exchange=50.0)
    shares = plans._shares_of_time(busiest, 2e-6, 1e-6, clock_hz=1e9)
    assert shares == pytest.approx((0.5, 0.15, 0.025, 0.5))
