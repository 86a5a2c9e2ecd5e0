"""The links between GPUs, as values. `# [n]` names the source of the numbers of its line.

[1] NVIDIA data sheet of the H200 (NVLink, 900 GB/s in both directions together), from memory.
[2] Measured on two H100s, torch 2.11, 2026-11-25, in CUDA graphs: what NCCL takes beside a product, for 0.25 to 112
    MiB; between two H200s as long (`benchmarks/results/overlap_h200x2.json`).
[3] 400 Gb/s are 50 GB/s; the share that arrives and the latency are guesses.
[4] Measured there: copy engines push 16, 64 and 128 MiB at 361, 384 and 389 GB/s, in both directions at once, and
    0.25 MiB in 3.3 us; a flag goes there and back in 12.4 us.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The way from one GPU to its peers, in one direction.

    nominal_gb_per_s: 10^9 bytes. gb_per_s: that copy engines bring. collective_gb_per_s: that NCCL brings. latency_us:
    of a copy, beside its bytes. flag_us: from setting a flag to the start of what waits for it. collective_us: of a
    collective of NCCL, beside its bytes.
    """

    name: str
    nominal_gb_per_s: float
    gb_per_s: float
    collective_gb_per_s: float
    latency_us: float
    flag_us: float
    collective_us: float

    def copy_us(self, size_bytes: float) -> float:
        """The time of a copy."""
        return self.latency_us + size_bytes / self.gb_per_s / 1e3


NVLINK_4 = Link(
    name="NVLink 4",
    nominal_gb_per_s=450,  # [1]
    gb_per_s=365,  # [4]
    collective_gb_per_s=215,  # [2]
    latency_us=3,  # [4]
    flag_us=6,  # [4]
    collective_us=18,  # [2]
)

NETWORK_400 = Link(
    name="400 Gb/s",
    nominal_gb_per_s=50,  # [3]
    gb_per_s=45,  # [3]
    collective_gb_per_s=45,  # [3]
    latency_us=10,  # [3]
    flag_us=10,  # [3]
    collective_us=60,  # [3]
)
