"""Which problems and plans a sweep measures; what it needs no GPU for."""

from __future__ import annotations

from choice_sweep import as_target, prepared_for
from sweep_plans import Drawing, candidates_of

from tilewright.device.catalog import H200


def families_of(name: str) -> dict[str, int]:
    kinds = [one.config.kernel.kind for one in candidates_of(as_target(name).problem, H200, Drawing(10, classes=4))]
    return {kind: kinds.count(kind) for kind in sorted(set(kinds))}


def test_plans_are_drawn_from_each_family_that_is_about_as_fast() -> None:
    large, tiny = families_of("4096x4096x4096 bf16 NT"), families_of("69 x 24x416x16 tf32")
    assert large.keys() == {"wgmma"} and large["wgmma"] >= 14
    assert tiny.keys() == {"mma", "wgmma"} and min(tiny.values()) >= 6


def test_long_problems_are_left_out_before_a_kernel_is_compiled() -> None:
    problem = as_target("8192x8192x8192 bf16 NT").problem
    assert prepared_for(problem, H200, "sm_90a", Drawing(4, classes=2), (), most_us=500.0) == []
