"""Cases that several processes run together, over gloo: `python on_ranks.py MODULE RANK RANKS FOLDER`.

A case is a function `case_<name>(rank, ranks)` of a module. Each process runs all of them in order and writes what went
wrong; `outcomes` starts the processes and says of each case what every rank found.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TIMEOUT = timedelta(seconds=60)
"""After which a rank whose peers have failed gives up."""


def outcomes(module: str, ranks: int = 2) -> dict[str, list[str]]:
    """The errors of each case, one for each rank that had one."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folders = (
            HERE.parents[1] / "src",
            HERE,
            *(HERE.parent / name for name in ("integrations", "frontend", "codegen")),
        )
        paths = os.pathsep.join(map(str, folders))
        environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        processes = [
            subprocess.Popen(
                [sys.executable, __file__, module, str(rank), str(ranks), name],
                env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
            for rank in range(ranks)
        ]  # fmt: skip
        printed = [process.communicate()[0] for process in processes]
        assert not any(process.returncode for process in processes), "\n".join(printed)
        found: list[dict[str, str]] = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]
    return {
        case: [f"rank {rank}: {errors[case]}" for rank, errors in enumerate(found) if errors[case]] for case in found[0]
    }


def cases_of(module: str) -> list[str]:
    """The names of the cases, which are read and not imported."""
    lines = (HERE / f"{module}.py").read_text().splitlines()
    return [line.split("(")[0].removeprefix("def case_") for line in lines if line.startswith("def case_")]


def _main(module: str, rank: int, ranks: int, folder: str) -> None:
    import torch
    import torch.distributed as dist

    store = dist.FileStore(f"{folder}/store", ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=TIMEOUT)
    cases: Any = importlib.import_module(module)
    errors = {}
    for name in cases_of(module):
        torch.manual_seed(0)
        try:
            getattr(cases, f"case_{name}")(rank, ranks)
            errors[name] = ""
        except Exception:
            errors[name] = traceback.format_exc()
            print(name, errors[name], flush=True)  # the last that is seen if the ranks no longer understand each other
        dist.barrier()
    Path(folder, f"{rank}.json").write_text(json.dumps(errors))
    dist.destroy_process_group()


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
