"""A rank that dies between two calls, and the other, which waits for it."""

from __future__ import annotations

import os
import warnings

import torch

from tilewright.distributed import all_gather_matmul

warnings.simplefilter("ignore")


def case_death(rank: int, ranks: int) -> None:
    a, b = (torch.ones(128, 128, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    all_gather_matmul(a, b)
    torch.cuda.synchronize()
    if rank:
        os._exit(0)
    for _ in range(3):
        all_gather_matmul(a, b)
    torch.cuda.synchronize()
    raise AssertionError("a product without its rows")
