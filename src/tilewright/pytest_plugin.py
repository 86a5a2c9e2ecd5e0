"""A pytest plugin: a schedule of yours against the snapshot beside the test.

    def test_my_gemm(gemm_gate):
        gemm_gate(schedule, gemm)

    pytest --gate-update        write the snapshot instead; keep it in your repository

pytest loads this module wherever tilewright is installed, so it imports nothing but pytest until a test asks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tilewright.ladders.rung import Rung
    from tilewright.problem.gemm import Gemm
    from tilewright.schedule import Schedule
    from tilewright.toolchain import Build

    Gate = Callable[..., None]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tilewright")
    group.addoption("--gate-update", action="store_true", help="write the snapshots of gemm_gate instead of comparing")


@pytest.fixture
def gemm_gate(request: pytest.FixtureRequest) -> Gate:
    """Fail if a schedule got worse than the snapshot beside the test says; needs no GPU.

    `gemm_gate(schedule, gemm)`, or `gemm_gate(build)`. archs: default sm_80 and sm_90a, or those of the snapshot.
    name: needed where a test gates several schedules. time_tolerance: percent by which a predicted time may rise.
    """
    used: set[str] = set()

    def check(
        schedule: Schedule | Rung | Build,
        gemm: Gemm | None = None,
        *,
        archs: Sequence[str] = (),
        name: str = "",
        time_tolerance: float | None = None,
    ) -> None:
        __tracebackhide__ = True
        key = f"{request.path.name}::{request.node.nodeid.partition('::')[2]}{f'::{name}' if name else ''}"
        if key in used:
            pytest.fail("This test gates several schedules: give each a name, gemm_gate(..., name='wide').", False)
        used.add(key)
        from tilewright.errors import TilewrightError

        try:
            problem = _compared(request, key, schedule, gemm, archs, time_tolerance)
        except TilewrightError as error:
            problem = str(error)
        if problem:
            pytest.fail(problem, pytrace=False)

    return check


def _compared(
    request: pytest.FixtureRequest,
    key: str,
    schedule: Schedule | Rung | Build,
    gemm: Gemm | None,
    archs: Sequence[str],
    time_tolerance: float | None,
) -> str:
    """Why the test fails, "" if it does not; writes the snapshot where that is asked for."""
    from tilewright.errors import ProblemError
    from tilewright.report import gate
    from tilewright.report.gate.facts import DEFAULT_ARCHS
    from tilewright.report.gate.words import causes, summary_lines
    from tilewright.runtime.cubin_cache import CubinCache
    from tilewright.toolchain import Build, build

    if not isinstance(schedule, Build) and gemm is None:
        raise ProblemError("A schedule needs a problem to be counted at.", hint="gemm_gate(schedule, tw.Gemm(...))")
    built = schedule if isinstance(schedule, Build) else build(gemm, schedule)  # type: ignore[arg-type]  # not None
    path = request.path.with_name(gate.SNAPSHOT_NAME)
    is_update = request.config.getoption("--gate-update")
    known = {} if is_update and not path.exists() else gate.read(path, how="pytest --gate-update")
    before = known.get(key)
    facts = gate.facts_of(built, archs or (before and list(before.targets)) or DEFAULT_ARCHS, cache=CubinCache())
    if is_update:
        if facts.wrong:
            return f"The result is wrong, and was not written: {facts.wrong}."
        gate.update(path, {key: facts})
        return ""
    tolerance = gate.TIME_TOLERANCE_PERCENT if time_tolerance is None else time_tolerance
    compared = gate.compare(key, before, facts, time_tolerance_percent=tolerance)
    if compared.ok:
        return ""
    lines = [f"{key}, {facts.problem}", *(f"  {line}" for line in summary_lines(compared))]
    lines += [f"  {line}" for line in causes(compared, built)]
    return "\n".join([*lines, "If this is meant: pytest --gate-update"])
