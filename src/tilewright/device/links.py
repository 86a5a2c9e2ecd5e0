"""The links between GPUs, as values. `# [n]` names the source of the numbers of its line.

[1] NVIDIA data sheet of the H200 (NVLink, 900 GB/s in both directions together), from memory.
[2] Measured on two H200s, driver 580.159, torch 2.11, 2026-11-22: NCCL gathers shards of 256 MiB at 254 GB/s.
[3] Inferred from measurements of [2]: what NCCL takes beside the bytes in an all-gather of 0.25 MiB (47 us) and a
    reduce-scatter of 0.9 MiB (32 us) beside a product.
[4] 400 Gb/s are 50 GB/s; the share that arrives and the latency are guesses.
[5] Guesses: a copy and a flag each pass a queue of the GPU and the link once.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The way from one GPU to its peers, in one direction.

    nominal_gb_per_s: 10^9 bytes. gb_per_s: that arrive. latency_us: of a copy, beside its bytes. flag_us: from setting
    a flag to the start of what waits for it. collective_us: of a collective of NCCL, beside its bytes.
    """

    name: str
    nominal_gb_per_s: float
    gb_per_s: float
    latency_us: float
    flag_us: float
    collective_us: float

    def copy_us(self, size_bytes: float) -> float:
        """The time of a copy."""
        return self.latency_us + size_bytes / self.gb_per_s / 1e3


NVLINK_4 = Link(
    name="NVLink 4",
    nominal_gb_per_s=450,  # [1]
    gb_per_s=254,  # [2]
    latency_us=3,  # [5]
    flag_us=3,  # [5]
    collective_us=35,  # [3]
)

NETWORK_400 = Link(
    name="400 Gb/s",
    nominal_gb_per_s=50,  # [4]
    gb_per_s=45,  # [4]
    latency_us=10,  # [4]
    flag_us=10,  # [4]
    collective_us=60,  # [4]
)

LINKS = (NVLINK_4, NETWORK_400)
