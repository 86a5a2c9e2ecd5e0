"""Cases that several processes run together: `python on_ranks.py MODULE RANK RANKS FOLDER gloo|nccl TIMEOUT_S`.

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
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def finished(module: str, folder: Path, ranks: int = 2, *, gpus: bool = False, timeout_s: int = 60) -> list[int]:
    """The exit codes of all ranks. What each printed is in a file of the folder."""
    folders = (HERE.parents[1] / "src", HERE, *(HERE.parent / name for name in ("integrations", "frontend", "codegen")))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "OMP_NUM_THREADS": "1",
        "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    }
    kind = "nccl" if gpus else "gloo"
    processes = []
    for rank in range(ranks):
        command = [sys.executable, __file__, module, str(rank), str(ranks), str(folder), kind, str(timeout_s)]
        with (folder / f"{rank}.log").open("w") as log:
            processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT))
    return [process.wait() for process in processes]


def outcomes(module: str, ranks: int = 2, *, gpus: bool = False) -> dict[str, list[str]]:
    """The errors of each case, one for each rank that had one."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        codes = finished(module, folder, ranks, gpus=gpus)
        assert not any(codes), "\n".join((folder / f"{rank}.log").read_text() for rank in range(ranks))
        found: list[dict[str, str]] = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]
    return {
        case: [f"rank {rank}: {errors[case]}" for rank, errors in enumerate(found) if errors[case]] for case in found[0]
    }


def cases_of(module: str) -> list[str]:
    """The names of the cases, which are read and not imported."""
    lines = (HERE / f"{module}.py").read_text().splitlines()
    return [line.split("(")[0].removeprefix("def case_") for line in lines if line.startswith("def case_")]


def _main(module: str, rank: int, ranks: int, folder: str, kind: str, timeout_s: int) -> None:
    import torch
    import torch.distributed as dist

    given: dict[str, Any] = {}
    if kind == "nccl":
        torch.cuda.set_device(rank)
        given["device_id"] = torch.device("cuda", rank)
    store = dist.FileStore(f"{folder}/store", ranks)
    timeout = timedelta(seconds=timeout_s)  # after which a rank whose peers have failed gives up
    dist.init_process_group(kind, store=store, rank=rank, world_size=ranks, timeout=timeout, **given)
    cases: Any = importlib.import_module(module)
    errors = {}
    for name in cases_of(module):
        torch.manual_seed(0)
        began = time.monotonic()
        try:
            getattr(cases, f"case_{name}")(rank, ranks)
            errors[name] = ""
            print(f"{name}: {time.monotonic() - began:.1f} s", flush=True)
        except Exception:
            errors[name] = traceback.format_exc()
            print(name, errors[name], flush=True)  # the last that is seen if the ranks no longer understand each other
        dist.barrier()
    Path(folder, f"{rank}.json").write_text(json.dumps(errors))
    dist.destroy_process_group()


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5], int(sys.argv[6]))
