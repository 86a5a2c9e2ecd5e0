"""The example of a block that is split over ranks, on two processes of the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "sequence_parallel.py"


def test_it_trains_as_on_one_gpu(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", EXAMPLE]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    timeline = tmp_path / "step.json"
    done = subprocess.run(
        [*command, "--steps", "4", "--timeline", timeline], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    losses = [[float(word) for word in line.split()[1:]] for line in lines if line.split()[:1] in (["1"], ["4"])]
    assert losses[-1][1] < losses[0][1] and any("losses differ by at most" in line for line in lines)
    assert json.loads(timeline.read_text())["traceEvents"]


GROUP_ENDS = """
import gc, sys, weakref
import torch, torch.distributed as dist
import tilewright as tw

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
group = weakref.ref(dist.group.WORLD)
x = torch.ones(4, 8, requires_grad=True)
y = tw.distributed.all_gather_matmul(x, torch.ones(8, 8))
tw.distributed.matmul_reduce_scatter(y, torch.ones(8, 2)).sum().backward()
del y
dist.destroy_process_group()
gc.collect()
print(group() is None, "torch._dynamo" in sys.modules)
"""


def test_the_group_ends_when_it_is_destroyed() -> None:
    """A thread of it that lived on could abort the process as it ends. torch._dynamo, imported behind the start of a
    group, keeps it as well (and takes a second)."""
    pytest.importorskip("torch")
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", GROUP_ENDS], capture_output=True, text=True)
    assert done.stdout.split() == ["True", "False"], done.stderr


def test_alone_it_says_how_to_start_it() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "RANK"}
    done = subprocess.run([sys.executable, EXAMPLE], env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "torchrun" in done.stderr or "pip install 'tilewright[torch]'" in done.stderr
