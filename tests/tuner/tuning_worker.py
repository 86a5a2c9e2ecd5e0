"""A process that searches the bowl: URL, file of measured candidates (a line each), seconds a measurement.

A fourth argument is the file of another such process: after its first measurement this one waits for the other's first.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from tuning_fakes import CANDIDATES, Clock, Compilers, Measurer, true_us

from tilewright.tuner.measure import Measured
from tilewright.tuner.study import TuningStudy
from tilewright.tuner.tune import Tuning
from tilewright.winners.plan_config import PlanConfig


class SlowMeasurer(Measurer):
    def measure(self, prepared: PlanConfig) -> Measured:
        time.sleep(float(sys.argv[3]))
        with open(sys.argv[2], "a", encoding="utf-8") as log:
            log.write(f"{prepared.key}\n")
        while not all(Path(other).exists() for other in sys.argv[4:]):
            time.sleep(0.01)
        return Measured(true_us(prepared), 32, 0.0, "kernel", "order")


if __name__ == "__main__":
    study = TuningStudy(sys.argv[1], "bowl", CANDIDATES, seed=os.getpid())
    outcome = Tuning(study, Compilers(), SlowMeasurer(), seconds=100.0, now=Clock()).run()
    print(outcome.here, outcome.best.candidate.key, flush=True)
