"""A transformer block whose weights are split over GPUs and whose tokens are split between them, trained beside the
same block on one GPU: the losses of both, and the time of a step.

pip install "tilewright[torch]"
torchrun --nproc-per-node=2 examples/sequence_parallel.py                       # GPUs of one host; else the CPU
torchrun --nproc-per-node=2 examples/sequence_parallel.py --timeline step.json  # one step, for chrome://tracing
"""

import argparse
import os
import sys
import time

import tilewright as tw
from tilewright.extras import require

try:
    torch = require("torch", "Training a block")
except tw.TilewrightError as missing:
    sys.exit(str(missing))
import torch.distributed as dist
from torch.nn import functional

if "RANK" not in os.environ:
    sys.exit("Start one process for each GPU: torchrun --nproc-per-node=2 examples/sequence_parallel.py")

arguments = argparse.ArgumentParser()
arguments.add_argument("--tokens", type=int, default=4096 if torch.cuda.is_available() else 50)
arguments.add_argument("--width", type=int, default=4096 if torch.cuda.is_available() else 32)
arguments.add_argument("--heads", type=int, default=32 if torch.cuda.is_available() else 4)
arguments.add_argument("--steps", type=int, default=10)
arguments.add_argument("--timeline", metavar="FILE", help="where rank 0 writes the profile of a step")
asked = arguments.parse_args()

on_gpus = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpus else torch.device("cpu")
if on_gpus:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if on_gpus else "gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
dtype = torch.bfloat16 if on_gpus else torch.float32
WIDTH, HEADS = asked.width, asked.heads


def attention(q, k, v, heads):
    """Causal, of all tokens, for some heads: (tokens, heads x size) each."""
    split = [x.view(len(x), heads, -1).transpose(0, 1)[None] for x in (q, k, v)]
    return functional.scaled_dot_product_attention(*split, is_causal=True)[0].transpose(0, 1).flatten(1)


class Block:
    """All weights, on one GPU. Weights are (in, out)."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)

        def weight(rows, columns):
            return torch.randn(rows, columns, generator=generator) * rows**-0.5

        self.weights = [weight(WIDTH, WIDTH) for _ in range(4)] + [weight(WIDTH, 4 * WIDTH), weight(4 * WIDTH, WIDTH)]
        self.norms = [torch.ones(WIDTH), torch.ones(WIDTH)]
        self.parameters = [*self.weights, *self.norms]
        self.place()

    def place(self):
        for x in self.parameters:
            x.data = x.to(device, dtype)
            x.requires_grad_()

    def __call__(self, x):
        q, k, v, out, up, down = self.weights
        y = functional.layer_norm(x, (WIDTH,), self.norms[0])
        x = x + tw.matmul(attention(tw.matmul(y, q), tw.matmul(y, k), tw.matmul(y, v), HEADS), out)
        y = functional.layer_norm(x, (WIDTH,), self.norms[1])
        return x + tw.matmul(functional.gelu(tw.matmul(y, up)), down)


class SplitBlock(Block):
    """The same on this rank: heads and features of the weights are split, and tokens everywhere else."""

    def place(self):
        for number, x in enumerate(self.weights):
            along = 0 if number in (3, 5) else 1  # rows of what leads out of the split features, else columns
            x.data = x.chunk(ranks, along)[rank].contiguous()
        super().place()

    def __call__(self, x):
        q, k, v, out, up, down = self.weights
        gather, scatter = tw.distributed.all_gather_matmul, tw.distributed.matmul_reduce_scatter
        y = functional.layer_norm(x, (WIDTH,), self.norms[0])
        x = x + scatter(attention(*gather(y, [q, k, v]), HEADS // ranks), out)
        y = functional.layer_norm(x, (WIDTH,), self.norms[1])
        return x + scatter(functional.gelu(gather(y, up)), down)


def step(block, x, target):
    """Train a block by one step; the loss of this rank's tokens, as a share of all."""
    loss = (block(x) - target).float().square().sum() / (asked.tokens * WIDTH)
    loss.backward()
    if isinstance(block, SplitBlock):
        for norm in block.norms:  # each rank has seen its own tokens
            dist.all_reduce(norm.grad)
    with torch.no_grad():
        for parameter in block.parameters:
            parameter -= 0.5 * parameter.grad
            parameter.grad = None
    return loss.detach()


def trained(block, x, target):
    """The losses of all steps, and milliseconds of the last one."""
    losses = []
    for _ in range(asked.steps):
        began = time.perf_counter()
        loss = step(block, x, target)
        if isinstance(block, SplitBlock):
            dist.all_reduce(loss)
        losses.append(loss.item())
        took = time.perf_counter() - began
    return losses, 1e3 * took


data = torch.Generator().manual_seed(1)
x, target = (torch.randn(asked.tokens, WIDTH, generator=data).to(device, dtype) for _ in range(2))
plain, plain_ms = trained(Block(), x, target)
size = -(-asked.tokens // ranks)
own = slice(rank * size, (rank + 1) * size)
block = SplitBlock()
losses, split_ms = trained(block, x[own].contiguous(), target[own])
if asked.timeline:
    kinds = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[kinds.CPU, *([kinds.CUDA] if on_gpus else [])]) as profile:
        step(block, x[own].contiguous(), target[own])
    if rank == 0:
        profile.export_chrome_trace(asked.timeline)
if rank == 0:
    print(f"step  one {device.type}   {ranks} ranks")
    for number, (one, several) in enumerate(zip(plain, losses, strict=True), 1):
        print(f"{number:4}  {one:8.5f}  {several:8.5f}")
    apart = max(abs(one - several) / one for one, several in zip(plain, losses, strict=True))
    print(f"losses differ by at most {apart:.1e}; {plain_ms:.1f} ms a step on one, {split_ms:.1f} on {ranks}")
    assert losses[-1] < losses[0] and apart < (2e-2 if on_gpus else 1e-4)
dist.destroy_process_group()
