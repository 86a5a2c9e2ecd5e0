"""Winners keep their figures where the kernels they name are the same machine code as when they were measured.

    git worktree add OLD COMMIT
    python benchmarks/restamp_winners.py OLD h200.jsonl [--changed]

A winner counts only while the CUDA texts of its kernels are those that were measured, but for comments. A change of
names makes other texts of the same kernels. OLD is a checkout in which the shipped winners count. Both trees write the
plans of all of them; where every launch has the same machine code, grid and block, the winner gets the name of today's
texts. The others are printed, and stay as they are: they must be measured again.

--changed: also winners whose launches have other machine code in the same grids and blocks. This is for a change that
made no kernel slower that was timed, such as that of record 0059: the plan that won is still the best that is known.
The figures, the date and the commit of a winner stay those of the kernel that was measured.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from tilewright.winners.keys import sources_version
from tilewright.winners.winner import Winner

SHIPPED = Path("src") / "tilewright" / "winners" / "shipped"

WRITER = """
import hashlib, json, sys
from tilewright.planning import on_paper
from tilewright.planning.assembly import Request, plan_of
from tilewright.runtime import elf
from tilewright.runtime.nvrtc import compile_cuda
from tilewright.winners.keys import ALIGNMENTS, row_alignment
from tilewright.winners.lookup import gemm_of
from tilewright.winners.winner import Winner

for line in open(sys.argv[1], encoding="utf-8"):
    winner = Winner.from_json(line)
    config = winner.config if hasattr(winner, "config") else winner.choice
    gemm, told = gemm_of(winner.key), winner.key.problem.alignment
    most = ALIGNMENTS[0] if told == row_alignment(gemm) else told
    request = Request(gemm, on_paper.alignment_of_rows(gemm, most))
    try:
        known = getattr(on_paper, "known_device", lambda _: None)  # trees before record 0099 know of no device
        plan = plan_of(on_paper.PaperKernels(known(winner.key.device)), request, config)
        launches = on_paper.launches_of(plan)
        images = [compile_cuda(one.source, "sm_90a").image for one in launches]
        code = [[s.content for s in elf._sections(image) if s.name.startswith(".text.")] for image in images]
        same = hashlib.sha256(repr(code).encode()).hexdigest()
        started = [[one.grid, one.block] for one in launches]
        version = on_paper.version_of_plan(plan)
    except Exception as failure:
        same, started, version = "", f"{failure!r} in {sys.argv[1]}", ""
    print(json.dumps([version, same, started]), flush=True)
"""


def written(tree: Path, winners: Path) -> list[tuple[str, str, Any]]:
    """Of each winner of a file: the name of its kernels' texts in a tree, what their machine code is, and the grids and
    blocks in which it is started, or why it is not."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    command = [sys.executable, "-c", WRITER, str(winners)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("name")
    parser.add_argument("--changed", action="store_true")
    given = parser.parse_args()
    here = Path(__file__).parents[1]
    path = here / SHIPPED / given.name
    winners = [Winner.from_json(line) for line in path.read_text(encoding="utf-8").splitlines()]
    kept, stamped = 0, []
    for winner, (then, code, before), (now, today, started) in zip(
        winners, written(given.old, path), written(here, path), strict=True
    ):
        if then == winner.kernel and before == started and (code == today or given.changed):
            kept += 1
            stamped.append(replace(winner, kernel=now, sources=sources_version()))
        else:
            other = f"has other machine code, or is started as {started} in the place of {before}"
            why = "did not count in the old tree" if then != winner.kernel else other
            print(f"{winner.key.problem}: {winner.config} {why}")
            stamped.append(winner)
    path.write_text("".join(one.to_json() + "\n" for one in stamped), encoding="utf-8")
    print(f"{kept} of {len(winners)} winners count.")


if __name__ == "__main__":
    main()
