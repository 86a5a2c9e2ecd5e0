"""The GPUs we know, as values. `# [n]` names the source of the numbers of its line.

 [1] NVIDIA data sheet of the product (T4, RTX A6000, A100 80 GB SXM, H100 SXM, H200 SXM, DGX B200), from memory
     or as quoted by third parties; each rate is checked by SMs x rate x clock = the sheet's figure
     (tests/device).
 [2] NVIDIA white papers, likewise: Turing TU102/TU104, A100, GA102 v2, Ada AD102, H100. Load/store units per SM
     over 32 is lsu_instructions_per_clk: 16 on Turing, GA10x and AD10x, 32 on A100 and H100.
 [3] cuda_occupancy.h, CUDA 13.0 (package nvidia-cuda-runtime): block caps, granularities, carve-outs, barriers.
 [4] CUDA C++ programming guide, "Technical specifications per compute capability": warps per SM and the opt-in
     limit of shared memory; from memory, and consistent with [3].
 [5] GeForce product pages, from memory or as quoted by third parties. RTX 4050 Laptop: the clock depends on the
     power limit, 1605 MHz at 35 W to 2370 MHz at 115 W; 194 "AI TOPS" is sparse INT8 at 2370 MHz.
 [6] hmc-tech.com comparison tables: B200 has 148 SMs and a tensor clock of 1860 MHz; T4 clocks at sysrqmts.com.
 [7] Measured on one H200, driver 580.159.04, 2026-11-21: SMs and L2 as the driver reports them.
 [8] Fitted or inferred: ncu of an RTX A6000 reports 46.2 M LSU requests in 116.4 M SM clocks as 79.5 % of peak,
     hence 0.5 per clock; published times of 63 FP32 kernels on six GPUs fit with these values.
 [9] sjfeng1999/gpu-arch-microbenchmark (Turing): shared memory 23 clk, L2 236 clk.
[10] Luo et al., arXiv:2402.13499, and Abdelkhalik et al., arXiv:2208.11174, from memory: L2 latencies of 200 to
     273 clk; DRAM 500 clk on Ampere and Ada, up to 700 under load on Hopper.
[11] From memory, not verified. B200: 1965 MHz, L2 126 MB; L2 bandwidth of A100 5120 B/clk (white paper).
[12] A guess, by analogy with the nearest architecture.
[13] NVIDIA product pages and white papers (Turing TU102, Ada AD102, RTX Blackwell GB202), from memory; the rates are
     checked as those of [1].
[14] The board's power over its peak of FP32, as a multiple of that of the H200, of the board of the architecture in
     this file that has most power: RTX 2080 Ti, A100, RTX 3090, RTX 4090, B200, RTX 5090. Boards with less power
     throttle by it: FFMA on an A100 of 250 W ran 18 to 29 % below the boost clock, and 21 % are predicted.
"""

from __future__ import annotations

import re
from dataclasses import replace

from tilewright.device.spec import DeviceSpec, TensorRates
from tilewright.errors import UnknownName
from tilewright.units import GIB, KIB, MIB

_CARVEOUTS_100_KIB = tuple(kib * KIB for kib in (0, 8, 16, 32, 64, 100))  # [3]
_CARVEOUTS_164_KIB = tuple(kib * KIB for kib in (0, 8, 16, 32, 64, 100, 132, 164))  # [3]
_CARVEOUTS_228_KIB = (*_CARVEOUTS_164_KIB, 196 * KIB, 228 * KIB)  # [3]

T4 = DeviceSpec(
    name="T4",
    compute_capability=(7, 5),
    arch="sm_75",
    sm_count=40,  # [1]
    base_clock_mhz=585,  # [6]
    boost_clock_mhz=1590,  # [6]
    tensor_clock_mhz=1590,  # [1] 65 TFLOP/s
    board_power_w=70,  # [1]
    energy_scale=1.78,  # [14]
    fp32_lanes_per_sm=64,  # [2]
    ffma_issue_interval_clk=2,  # [2] 16 lanes per sub-partition
    tensor=TensorRates(f16_f16=1024, f16_f32=1024, i8_i32=2048),  # [1] 65 TFLOP/s, 130 TOP/s
    max_warps_per_sm=32,  # [4]
    max_blocks_per_sm=16,  # [3]
    shared_bytes_per_sm=64 * KIB,  # [3]
    shared_carveouts_bytes=(32 * KIB, 64 * KIB),  # [3]
    shared_granularity_bytes=256,  # [3]
    reserved_shared_bytes_per_block=0,  # [3]
    max_shared_bytes_per_block=64 * KIB,  # [4]
    lsu_instructions_per_clk=0.5,  # [2]
    l2_bytes=4 * MIB,  # [6]
    l2_bytes_per_clk_per_sm=32,  # [12]
    dram_bytes=16 * GIB,  # [1]
    dram_gb_per_s=320,  # [1]
    l2_latency_clk=236,  # [9]
    dram_latency_clk=500,  # [12]
)

RTX_2080_TI = replace(
    T4,  # the same SM, with half-rate FP32 accumulation in its tensor cores
    name="RTX 2080 Ti",
    sm_count=68,  # [13]
    base_clock_mhz=1350,  # [13]
    boost_clock_mhz=1545,  # [13] 1635 of the Founders Edition
    tensor_clock_mhz=1545,  # [13] 107.6 TFLOP/s of FP16
    board_power_w=250,  # [13]
    tensor=TensorRates(f16_f16=1024, f16_f32=512, i8_i32=2048),  # [13]
    l2_bytes=11 * MIB // 2,  # [13]
    dram_bytes=11 * GIB,  # [13]
    dram_gb_per_s=616,  # [13]
)

A100 = DeviceSpec(
    name="A100 SXM 80 GB",
    compute_capability=(8, 0),
    arch="sm_80",
    sm_count=108,  # [1]
    base_clock_mhz=1275,  # [11]
    boost_clock_mhz=1410,  # [1]
    tensor_clock_mhz=1410,  # [1] 312 TFLOP/s
    board_power_w=400,  # [1]
    energy_scale=1.96,  # [14]
    fp32_lanes_per_sm=64,  # [2]
    ffma_issue_interval_clk=2,  # [2] 16 lanes per sub-partition
    tensor=TensorRates(f16_f16=2048, f16_f32=2048, bf16_f32=2048, tf32_f32=1024, i8_i32=4096),  # [1]
    max_warps_per_sm=64,  # [4]
    max_blocks_per_sm=32,  # [3]
    shared_bytes_per_sm=164 * KIB,  # [3]
    shared_carveouts_bytes=_CARVEOUTS_164_KIB,
    shared_granularity_bytes=128,  # [3]
    reserved_shared_bytes_per_block=1 * KIB,  # [4]
    max_shared_bytes_per_block=163 * KIB,  # [4]
    lsu_instructions_per_clk=1.0,  # [2]
    l2_bytes=40 * MIB,  # [1]
    l2_partitions=2,  # [2]
    l2_bytes_per_clk_per_sm=48,  # [11] 5120 B/clk over 108 SMs
    dram_bytes=80 * GIB,  # [1]
    dram_gb_per_s=2039,  # [1]
    l2_latency_clk=260,  # [10]
    dram_latency_clk=500,  # [10]
)

RTX_3090 = DeviceSpec(
    name="RTX 3090",
    compute_capability=(8, 6),
    arch="sm_86",
    sm_count=82,  # [2]
    base_clock_mhz=1395,  # [5]
    boost_clock_mhz=1695,  # [2]
    tensor_clock_mhz=1695,  # [2] 71 TFLOP/s
    board_power_w=350,  # [2]
    energy_scale=0.94,  # [14]
    fp32_lanes_per_sm=128,  # [2]
    ffma_issue_interval_clk=1,  # [2]
    tensor=TensorRates(f16_f16=1024, f16_f32=512, bf16_f32=512, tf32_f32=256, i8_i32=2048),  # [2]
    max_warps_per_sm=48,  # [4]
    max_blocks_per_sm=16,  # [3]
    shared_bytes_per_sm=100 * KIB,  # [3]
    shared_carveouts_bytes=_CARVEOUTS_100_KIB,
    shared_granularity_bytes=128,  # [3]
    reserved_shared_bytes_per_block=1 * KIB,  # [4]
    max_shared_bytes_per_block=99 * KIB,  # [4]
    lsu_instructions_per_clk=0.5,  # [2] [8]
    l2_bytes=6 * MIB,  # [2]
    l2_bytes_per_clk_per_sm=32,  # [12]
    dram_bytes=24 * GIB,  # [2]
    dram_gb_per_s=936,  # [2]
    l2_latency_clk=250,  # [12]
    dram_latency_clk=500,  # [10]
)

RTX_A6000 = replace(
    RTX_3090,  # the same SM, with full-rate FP32 accumulation in its tensor cores
    name="RTX A6000",
    sm_count=84,  # [1]
    base_clock_mhz=1410,  # [11]
    boost_clock_mhz=1800,  # [1]
    tensor_clock_mhz=1800,  # [1] 154.8 TFLOP/s
    board_power_w=300,  # [1]
    tensor=TensorRates(f16_f16=1024, f16_f32=1024, bf16_f32=1024, tf32_f32=512, i8_i32=2048),  # [1]
    dram_bytes=48 * GIB,  # [1]
    dram_gb_per_s=768,  # [1]
)

A10 = replace(
    RTX_A6000,  # the same SM
    name="A10",
    sm_count=72,  # [13]
    base_clock_mhz=885,  # [13]
    boost_clock_mhz=1695,  # [13] 31.2 TFLOP/s; 150 W keep it below in long runs
    tensor_clock_mhz=1695,  # [13] 125 TFLOP/s
    board_power_w=150,  # [13]
    dram_bytes=24 * GIB,  # [13]
    dram_gb_per_s=600,  # [13]
)

RTX_4090 = replace(
    RTX_3090,  # an SM of the same units [2] [8] and limits [3] [4]
    name="RTX 4090",
    compute_capability=(8, 9),
    arch="sm_89",
    sm_count=128,  # [2]
    base_clock_mhz=2235,  # [2]
    boost_clock_mhz=2520,  # [2] runs at about 2700 when cool
    tensor_clock_mhz=2520,  # [2] 165.2 TFLOP/s
    board_power_w=450,  # [2]
    energy_scale=0.52,  # [14]
    tensor=TensorRates(  # [2]
        f16_f16=1024, f16_f32=512, bf16_f32=512, tf32_f32=256, f8_f32=1024, i8_i32=2048
    ),
    max_blocks_per_sm=24,  # [3]
    l2_bytes=72 * MIB,  # [2]
    dram_bytes=24 * GIB,  # [2]
    dram_gb_per_s=1008,  # [2]
    l2_latency_clk=270,  # [10]
)

L40S = replace(
    RTX_4090,  # the same SM, with full-rate FP32 accumulation in its tensor cores
    name="L40S",
    sm_count=142,  # [13]
    base_clock_mhz=1110,  # [13]
    boost_clock_mhz=2520,  # [13] 91.6 TFLOP/s
    tensor_clock_mhz=2520,  # [13]
    board_power_w=350,  # [13]
    tensor=TensorRates(  # [13]
        f16_f16=1024, f16_f32=1024, bf16_f32=1024, tf32_f32=512, f8_f32=2048, i8_i32=2048
    ),
    l2_bytes=96 * MIB,  # [13]
    dram_bytes=48 * GIB,  # [13]
    dram_gb_per_s=864,  # [13]
)

RTX_4050_LAPTOP = replace(
    RTX_4090,  # the same SM
    name="RTX 4050 Laptop",
    sm_count=20,  # [5]
    base_clock_mhz=1455,  # [5] up to 1665
    boost_clock_mhz=2370,  # [5] at 115 W; 1605 at 35 W
    tensor_clock_mhz=2370,  # [5]
    board_power_w=115,  # [5] at this clock
    l2_bytes=12 * MIB,  # [5]
    dram_bytes=6 * GIB,  # [5]
    dram_gb_per_s=192,  # [5]
)

H100 = DeviceSpec(
    name="H100 SXM",
    compute_capability=(9, 0),
    arch="sm_90a",
    sm_count=132,  # [1]
    base_clock_mhz=None,
    boost_clock_mhz=1980,  # [1] 67 TFLOP/s of FP32
    tensor_clock_mhz=1830,  # [1] 989 TFLOP/s of BF16
    board_power_w=700,  # [1]
    fp32_lanes_per_sm=128,  # [2]
    ffma_issue_interval_clk=1,  # [2]
    tensor=TensorRates(  # [1]
        f16_f16=4096, f16_f32=4096, bf16_f32=4096, tf32_f32=2048, f8_f32=8192, i8_i32=8192
    ),
    max_warps_per_sm=64,  # [4]
    max_blocks_per_sm=32,  # [3]
    shared_bytes_per_sm=228 * KIB,  # [3]
    shared_carveouts_bytes=_CARVEOUTS_228_KIB,
    shared_granularity_bytes=128,  # [3]
    reserved_shared_bytes_per_block=1 * KIB,  # [4]
    barriers_per_sm=64,  # [3] twice the block cap
    max_shared_bytes_per_block=227 * KIB,  # [4]
    max_blocks_per_cluster=8,  # [4] 16 after opting in
    lsu_instructions_per_clk=1.0,  # [2]
    l2_bytes=50 * MIB,  # [1]
    l2_partitions=2,  # [2]
    l2_bytes_per_clk_per_sm=48,  # [12]
    dram_bytes=80 * GIB,  # [1]
    dram_gb_per_s=3350,  # [1]
    l2_latency_clk=260,  # [10]
    dram_latency_clk=700,  # [10]
)

H200 = replace(
    H100,  # the same chip with more and faster memory
    name="H200",
    sm_count=132,  # [1] [7]
    l2_bytes=60 * MIB,  # [7]
    dram_bytes=141 * 10**9,  # [1]
    dram_gb_per_s=4800,  # [1]
)

B200 = replace(
    H100,  # an SM of the same limits [3] [4]; units that are not listed, and ways to memory, as sm_90 [12]
    name="B200",
    compute_capability=(10, 0),
    arch="sm_100a",
    sm_count=148,  # [6]
    boost_clock_mhz=1965,  # [11]
    tensor_clock_mhz=1860,  # [6] 2250 TFLOP/s of BF16
    board_power_w=1000,  # [1]
    energy_scale=1.28,  # [14]
    fp32_lanes_per_sm=128,  # [1]
    tensor=TensorRates(  # [1]
        f16_f16=8192, f16_f32=8192, bf16_f32=8192, tf32_f32=4096, f8_f32=16384, i8_i32=16384
    ),
    l2_bytes=126 * MIB,  # [11]
    dram_bytes=180 * 10**9,  # [1]
    dram_gb_per_s=8000,  # [1]
    l2_latency_clk=270,  # [12]
)

RTX_5090 = replace(
    RTX_4090,  # an SM of the same units and limits
    name="RTX 5090",
    compute_capability=(12, 0),
    arch="sm_120a",
    sm_count=170,  # [13]
    base_clock_mhz=2017,  # [13]
    boost_clock_mhz=2407,  # [13] 104.8 TFLOP/s
    tensor_clock_mhz=2407,  # [13] 209.5 TFLOP/s of FP16
    board_power_w=575,  # [13]
    energy_scale=0.53,  # [14]
    barriers_per_sm=24,  # [3] the block cap
    max_blocks_per_cluster=8,  # [12] as sm_90
    l2_bytes=96 * MIB,  # [13]
    dram_bytes=32 * GIB,  # [13]
    dram_gb_per_s=1792,  # [13]
)

RTX_5050 = replace(
    RTX_5090,  # the same SM
    name="RTX 5050",
    sm_count=20,  # [13]
    base_clock_mhz=2317,  # [13]
    boost_clock_mhz=2572,  # [13] 13.2 TFLOP/s
    tensor_clock_mhz=2572,  # [13]
    board_power_w=130,  # [13]
    l2_bytes=24 * MIB,  # [13]
    dram_bytes=8 * GIB,  # [13]
    dram_gb_per_s=320,  # [13]
)

DEVICES = (
    *(T4, RTX_2080_TI, A100, RTX_3090, RTX_A6000, A10, RTX_4090, L40S, RTX_4050_LAPTOP),
    *(H100, H200, B200, RTX_5090, RTX_5050),
)
"""Every GPU of the catalogue, oldest architecture first."""


# What the driver calls a product whose name tells less than ours.
_ALIASES = {"h10080gbhbm3": H100}


def _key(name: str) -> str:
    """What is left of a name without the words that say nothing: vendor, brand, spaces and dashes.

    >>> _key("NVIDIA GeForce RTX 3090"), _key("NVIDIA A100-SXM4-80GB")
    ('3090', 'a100sxm80gb')
    """
    lowered = re.sub(r"nvidia|geforce|quadro|tesla|rtx|gpu", "", name.lower())
    return re.sub(r"[^a-z0-9]", "", re.sub(r"sxm\d", "sxm", lowered))


def _begins(name: str, wanted: str) -> bool:
    """Whether a name begins so, with whole numbers: an H20 is not an H200, and an L4 not an L40S."""
    return name.startswith(wanted) and not (wanted[-1].isdigit() and name[len(wanted) :][:1].isdigit())


def device(name: str | DeviceSpec) -> DeviceSpec:
    """The GPU called `name`, as people or the driver write it: "rtx3090", "H200", "NVIDIA A100-SXM4-80GB".

    The shortest form that names one GPU is enough ("a6000", "4050"); UnknownName suggests the nearest.

    >>> device("NVIDIA GeForce RTX 4090").name, device("a100").name, device("4050").name
    ('RTX 4090', 'A100 SXM 80 GB', 'RTX 4050 Laptop')
    """
    if isinstance(name, DeviceSpec):
        return name
    wanted = _key(str(name))
    if wanted in _ALIASES:
        return _ALIASES[wanted]
    matches = [spec for spec in DEVICES if wanted and _begins(_key(spec.name), wanted)]
    exact = [spec for spec in matches if _key(spec.name) == wanted]
    if len(exact or matches) != 1:
        raise UnknownName("device", str(name), [spec.name for spec in DEVICES])
    return (exact or matches)[0]
