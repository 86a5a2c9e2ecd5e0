"""A process that tunes a list: URL, file of finished problems, file that says which one it begins, seconds each."""

from __future__ import annotations

import sys
import time
from contextlib import closing
from pathlib import Path

from made_up_winners import a_winner

from tilewright.device.catalog import H200
from tilewright.problem.gemm import Gemm
from tilewright.tuner.fleet import Fleet, Listed

PROBLEMS = tuple(Listed(Gemm(64 * i, 64, 64)) for i in range(1, 13))


def main(url: str, log: Path, begun: Path, seconds: float) -> None:
    def tune(gemm: Gemm) -> str:
        begun.write_text(str(gemm), encoding="utf-8")
        time.sleep(seconds)
        with log.open("a", encoding="utf-8") as file:
            file.write(f"{gemm}\n")
        return a_winner(m=gemm.m, n=gemm.n, k=gemm.k).to_json()

    with closing(Fleet(url, PROBLEMS, H200)) as fleet:
        for _ in fleet.run(tune, wait=lambda seconds: time.sleep(0.1)):
            pass
        print("\n".join(fleet.winners()))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4]))
