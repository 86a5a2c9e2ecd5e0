"""A Llama-shaped model under `route_torch()` and without, in one run: decode and prefill, eager and as CUDA graphs.

    python benchmarks/llama_shaped.py --out llama_shaped.json
    python benchmarks/llama_shaped.py --device cpu --hidden 64 --layers 2 --prefill 16 --rounds 2   # the script itself

Built from torch.nn with random weights in bf16: RMS norms, rotary positions, grouped-query attention by PyTorch's fused
kernel over a cache of keys and values, a gated SiLU block, and the projection to words. A step of decode is one token
for each sequence behind a cache of 512; a prefill is one sequence. Each case is checked (relative distance of the two
results), then timed in turn: the median of the rounds, each some steps long, waiting for the GPU at its end. Ends
with 2 if there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tilewright import route_torch
from tilewright.bench.records import this_run
from tilewright.runtime.driver import gpu_problem

CACHED = 512
HEAD = 128


class Layer(nn.Module):  # type: ignore[misc]
    def __init__(self, hidden: int, inner: int, sequences: int, length: int) -> None:
        super().__init__()
        self.heads = max(1, hidden // HEAD)
        self.kv_heads = max(1, self.heads // 4)
        self.size = hidden // self.heads
        self.before, self.behind = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.q = nn.Linear(hidden, self.heads * self.size, bias=False)
        self.k = nn.Linear(hidden, self.kv_heads * self.size, bias=False)
        self.v = nn.Linear(hidden, self.kv_heads * self.size, bias=False)
        self.o = nn.Linear(self.heads * self.size, hidden, bias=False)
        self.gate, self.up = nn.Linear(hidden, inner, bias=False), nn.Linear(hidden, inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)
        shape = (sequences, self.kv_heads, CACHED + length, self.size)
        self.register_buffer("keys", torch.randn(shape))
        self.register_buffer("values", torch.randn(shape))

    def forward(self, x: Any, turn: Any) -> Any:
        sequences, length, _ = x.shape
        y = self.before(x)
        q, k, v = (
            project(y).view(sequences, length, heads, self.size).transpose(1, 2)
            for project, heads in ((self.q, self.heads), (self.k, self.kv_heads), (self.v, self.kv_heads))
        )
        q, k = (one * turn[0] + torch.cat((-one[..., self.size // 2 :], one[..., : self.size // 2]), -1) * turn[1]
                for one in (q, k))  # fmt: skip
        if length > 1:  # a prefill sees itself only
            attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:
            self.keys[:, :, CACHED:] = k
            self.values[:, :, CACHED:] = v
            attended = functional.scaled_dot_product_attention(q, self.keys, self.values, enable_gqa=True)
        x = x + self.o(attended.transpose(1, 2).reshape(sequences, length, -1))
        y = self.behind(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):  # type: ignore[misc]
    def __init__(self, given: argparse.Namespace, sequences: int, length: int) -> None:
        super().__init__()
        hidden, inner = given.hidden, int(given.hidden * 3.5)
        self.words = nn.Embedding(given.words, hidden)
        self.layers = nn.ModuleList(Layer(hidden, inner, sequences, length) for _ in range(given.layers))
        self.norm, self.out = nn.RMSNorm(hidden), nn.Linear(hidden, given.words, bias=False)
        size = self.layers[0].size
        angles = (CACHED + torch.arange(length))[:, None] / 10000 ** (torch.arange(0, size, 2) / size)
        self.register_buffer("turn", torch.stack((angles.cos(), angles.sin())).repeat(1, 1, 2))

    def forward(self, text: Any) -> Any:
        x = self.words(text)
        for layer in self.layers:
            x = layer(x, self.turn)
        return self.out(self.norm(x[:, -1]))


def captured(step: Callable[[], Any]) -> Callable[[], Any]:
    """The step as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()

    def replay() -> Any:
        graph.replay()
        return result

    return replay


def steps_ms(step: Callable[[], Any], block: Any, steps: int, wait: Callable[[], None]) -> float:
    with block:
        step()
        wait()
        began = time.perf_counter()
        for _ in range(steps):
            step()
        wait()
        return (time.perf_counter() - began) / steps * 1e3


def measured(given: argparse.Namespace, sequences: int, length: int, graphs: bool) -> dict[str, Any]:
    """One case: milliseconds a step, ours and torch's."""
    torch.manual_seed(0)
    with torch.device(given.device):
        model = Model(given, sequences, length).to(torch.bfloat16).eval()
    text = torch.randint(given.words, (sequences, length), device=given.device)
    wait = torch.cuda.synchronize if given.device == "cuda" else lambda: None

    def step() -> Any:
        return model(text)

    theirs = step().float()
    with route_torch() as routed:
        mine = step().float()
    distance = float((mine - theirs).norm() / theirs.norm())
    ours, peer = step, step
    if graphs:
        with route_torch():
            ours = captured(step)
        peer = captured(step)
    steps = max(1, given.steps // (1 if length == 1 else 10))
    times: dict[str, list[float]] = {"tilewright": [], "torch": []}
    for _ in range(given.rounds):
        times["tilewright"].append(steps_ms(ours, nullcontext() if graphs else route_torch(), steps, wait))
        times["torch"].append(steps_ms(peer, nullcontext(), steps, wait))
    medians = {name: statistics.median(each) for name, each in times.items()}
    return {
        "median_ms": {name: round(value, 4) for name, value in medians.items()},
        "speed_of_torch": round(medians["torch"] / medians["tilewright"], 3),
        "relative_distance": distance,
        "routed": str(routed),
    }


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--out", type=Path, help="where the JSON goes")
    asked.add_argument("--device", default="cuda")
    asked.add_argument("--hidden", type=int, default=4096)
    asked.add_argument("--layers", type=int, default=8)
    asked.add_argument("--words", type=int, default=32000)
    asked.add_argument("--prefill", type=int, default=2048)
    asked.add_argument("--rounds", type=int, default=11)
    asked.add_argument("--only", nargs="*", help="cases, such as 'decode 32, eager'")
    asked.add_argument("--steps", type=int, default=20, help="of decode in a round; of prefill a tenth")
    given = asked.parse_args()
    missing = gpu_problem() if given.device == "cuda" else None
    if missing:
        print(f"There is no GPU: {missing}", file=sys.stderr)
        return 2
    rows = {}
    with torch.inference_mode():
        for name, sequences, length in (("decode 1", 1, 1), ("decode 32", 32, 1), ("prefill", 1, given.prefill)):
            for graphs in (False, True) if given.device == "cuda" else (False,):
                title = f"{name}, {'graph' if graphs else 'eager'}"
                if given.only and title not in given.only:
                    continue
                told = rows[title] = measured(given, sequences, length, graphs)
                best = told["median_ms"]
                print(
                    f"{title:20} {best['tilewright']:9.3f} ms, torch {best['torch']:9.3f} ms: "
                    f"{told['speed_of_torch']:.3f} of its speed; distance {told['relative_distance']:.1e}; "
                    f"{told['routed']}"
                )
    if given.out is not None:
        device = torch.cuda.get_device_name() if given.device == "cuda" else given.device
        origin = {"device": device, "peer": f"torch {torch.__version__}", **this_run()}
        given.out.write_text(json.dumps({"rows": rows, **origin}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
