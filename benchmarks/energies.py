"""The energies of `model/power.py`, fitted to records of an H200 at its power limit.

python benchmarks/energies.py      # the energies, and how far the power that they make up is from the recorded one

Fitted to half-second stretches of hopper/best (benchmarks/results/hopper_power_h200.json; some of them load A, B or
both for the first tiles of k only) and to worklog/best at 8192^3 (in the same record). The sustained figures of
hopper_h200.jsonl and ampere_h200.jsonl are not among them: they judge the model (docs/predictions.md).
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

import numpy as np
from validation import Case, cases

from tilewright.bench.records import recorded_folder
from tilewright.device.catalog import H200
from tilewright.model.power import FORMAT_SHARES, IDLE_SHARE, Events

NOT_LOADED = {"no A": 1 / 3, "no B": 2 / 3, "no AB": 1.0}
"""Share of the tiles' bytes: of 128 rows of A and 256 of B."""

_WHOLE = ("ours", "ours again", "new", "new again", "old", "old again")
_LIMITED_W = 680
_SUMMED_SHAPE = (8192, 8192, 8192)


@dataclass(frozen=True, slots=True)
class Row:
    """A stretch at one clock. picojoules: of each event at the boost clock, if it had one."""

    what: str
    power_w: float
    events: Events
    share: float
    clock_share: float
    us: float

    @property
    def terms(self) -> tuple[float, ...]:
        """Watts of the board for each picojoule of FLOPs of MMAs, instructions, bytes of L2 and of DRAM."""
        one, core = self.events, self.clock_share / self.us * 1e-6
        return (
            one.flops * self.share * core,
            one.instructions * core,
            one.l2_bytes * core,
            one.dram_bytes / self.us * 1e-6,
        )


def rows() -> list[Row]:
    """What the energies are fitted to."""
    known = {(case.measured.rung, _shape(case), case.measured.dtype): case for case in cases()}
    found = []
    data = json.loads((recorded_folder() / "hopper_power_h200.json").read_text(encoding="utf-8"))
    for line in (line for run in data["runs"] for line in run["rows"]):
        size, dtype, _ = line["problem"].split()
        case = known.get(("hopper/best", tuple(int(one) for one in size.split("x")), dtype))
        missing = NOT_LOADED.get(line["plan"], 0.0)
        if case is None or line.get("power_w", 0) < _LIMITED_W or (not missing and line["plan"] not in _WHOLE):
            continue
        found.append(_row(f"{line['problem']} {line['plan']}", case, line, line["sustained_us"], missing))
    summed = known["worklog/best", _SUMMED_SHAPE, "f32"]
    found += [_row("f32 8192", summed, line, line["median_us"], 0.0) for line in data["fma"]["rows"]]
    return found


def _row(what: str, case: Case, origin: dict[str, float], us: float, missing: float) -> Row:
    one = case.measured
    events = Events.of(case.work, case.dram_bytes)
    operands = (one.m * one.k + one.k * one.n) * 2
    left = Events(
        events.flops, events.instructions, events.l2_bytes * (1 - missing), events.dram_bytes - missing * operands
    )
    clock_share = origin["clock_mhz"] / H200.boost_clock_mhz
    return Row(what, origin["power_w"], left, FORMAT_SHARES.get(case.work.inputs, 1.0), clock_share, us)


def _shape(case: Case) -> tuple[int, int, int]:
    return case.measured.m, case.measured.n, case.measured.k


def fitted() -> tuple[list[float], float]:
    """Picojoules of a FLOP, an instruction, a byte of L2 and one of DRAM; and the mean error of the power."""
    some = rows()
    drawn = np.array([row.power_w for row in some])
    terms = np.array([row.terms for row in some])
    above = drawn - IDLE_SHARE * H200.board_power_w
    found, *_ = np.linalg.lstsq(terms / above[:, None], np.ones(len(some)), rcond=None)
    error = float(np.abs((terms @ found - above) / drawn).mean())
    return [float(one) for one in found], error


def main() -> int:
    found, error = fitted()
    names = ("FLOP of MMAs on bf16", "instruction of a thread", "byte of L2", "byte of DRAM")
    for name, energy in zip(names, found, strict=True):
        print(f"{energy:6.2f} pJ a {name}")
    print(f"{len(rows())} stretches, mean error of the power {error:.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
