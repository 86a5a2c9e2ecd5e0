"""A sweep records every problem at once, goes on after a stop, and sums up by class."""

from __future__ import annotations

from pathlib import Path

import pytest
from pages.drawn import page
from suite_fakes import ORIGIN

from tilewright.bench.records import Origin
from tilewright.errors import TilewrightError
from tilewright.suite.drawing import Drawn, drawn, random_shapes
from tilewright.suite.outcomes import BUDGET_SPENT
from tilewright.suite.sweep import Summary, SweepRow, Target, append_origin, classes, read, sweep, worst


class FakeSweep:
    """Every problem's share is its number over ten; those in `wrong` raise."""

    device, origin = ORIGIN.device, ORIGIN

    def __init__(self, wrong: tuple[int, ...] = (), stop_at: int | None = None) -> None:
        self.wrong, self.stop_at, self.count = wrong, stop_at, 0

    def row(self, drawn: Target) -> SweepRow:
        self.count += 1
        if self.count == self.stop_at:
            raise KeyboardInterrupt
        if self.count in self.wrong:
            raise TilewrightError("tilewright is wrong")
        share = self.count / 10
        return SweepRow(str(drawn.problem), drawn.kind, 10.0, 10 * share, share, 1e-3, "wgmma", source=drawn.source)


def problems(count: int) -> tuple[Drawn, ...]:
    return drawn(random_shapes(count, 1), ["bf16"], ["NN"], seed=0)


def test_a_stopped_sweep_goes_on_where_it_was(tmp_path: Path) -> None:
    path, targets = tmp_path / "sweep.jsonl", problems(10)
    with pytest.raises(KeyboardInterrupt):
        list(sweep(targets, FakeSweep(stop_at=4), path))
    assert len(list(read(path))) == 3
    rest = list(sweep(targets, FakeSweep(), path))
    assert [str(outcome.item.problem) for outcome in rest] == [str(one.problem) for one in targets[3:]]
    assert {row.problem for _, row in read(path)} == {str(one.problem) for one in targets}


def test_a_wrong_result_is_told_and_not_recorded(tmp_path: Path) -> None:
    path = tmp_path / "sweep.jsonl"
    outcomes = list(sweep(problems(3), FakeSweep(wrong=(1, 2)), path))
    assert [outcome.failure for outcome in outcomes] == ["tilewright is wrong", "tilewright is wrong", ""]
    assert len(list(read(path))) == 1


def test_no_problem_is_begun_after_the_budget(tmp_path: Path) -> None:
    times = iter([0.0, 0.0, 1.0, 2.0, 3.0])
    outcomes = list(sweep(problems(9), FakeSweep(), tmp_path / "s.jsonl", budget_s=2.0, clock=lambda: next(times)))
    assert [outcome.failure for outcome in outcomes] == ["", "", BUDGET_SPENT]
    assert outcomes[-1].left == 7


def test_another_commit_measures_again(tmp_path: Path) -> None:
    path = tmp_path / "sweep.jsonl"
    list(sweep(problems(2), FakeSweep(), path))
    later = FakeSweep()
    later.origin = Origin(**{**{f: getattr(ORIGIN, f) for f in Origin.__slots__}, "commit": "def5678"})
    assert len(list(sweep(problems(2), later, path))) == 2
    assert len(list(sweep(problems(2), later, path))) == 0
    assert len(list(sweep(problems(2), later, path, again=True))) == 2


def test_a_line_that_is_not_a_row_is_named(tmp_path: Path) -> None:
    path = tmp_path / "sweep.jsonl"
    path.write_text('{"problem": "1x1x1 bf16 NN"}\n')
    with pytest.raises(TilewrightError, match=r"Line 1 of sweep\.jsonl is not a row of a sweep: no origin"):
        list(read(path))
    path.unlink()
    append_origin(path, ORIGIN)
    with path.open("a") as file:
        file.write("[1, 2]\n")
    with pytest.raises(TilewrightError, match="Line 2"):
        list(read(path))


def test_the_summary_counts_what_is_slow() -> None:
    told = Summary.of([0.9, 0.96, 0.99, 1.2])
    assert (told.problems, told.least, told.below) == (4, 0.9, (0.25, 0.5))
    assert told.mean == pytest.approx((0.9 * 0.96 * 0.99 * 1.2) ** 0.25, abs=1e-4)
    assert Summary.of([1.5]).tenth == 1.5


def test_the_page_tells_the_newest_of_each_problem_and_the_slowest(tmp_path: Path) -> None:
    path = tmp_path / "sweep.jsonl"
    list(sweep(problems(6), FakeSweep(), path))
    rows = list(read(path))
    text = page(rows)
    assert f"| bf16 | random NN aligned | {len(classes(row for _, row in rows)['bf16', 'random NN aligned'])} |" in text
    assert text.index("| 0.100 |") < text.index("| 0.600 |")
    assert [row.share for row in worst((row for _, row in rows), 2)] == [0.1, 0.2]
    assert "No sweep is recorded" in page(())


def test_the_page_names_kernels_of_the_peer_without_arguments_of_templates() -> None:
    ran = "void cutlass::Kernel2<cutlass_80_simt_sgemm_nt>; void cublasLt::splitKreduce_kernel<32, 16, int, float"
    row = SweepRow("64x64x64 f32 NT", "linear NT aligned", 10.0, 9.0, 0.9, 1e-3, "simt", peer_ran=ran)
    assert "| `cutlass_80_simt_sgemm_nt; cublasLt::splitKreduce_kernel` |" in page([(ORIGIN, row)])
