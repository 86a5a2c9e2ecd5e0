"""Occupancy: by hand, against NVIDIA's own calculator, and as laws."""

import csv
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.device.catalog import DEVICES, H200, RTX_3090, RTX_4090, RTX_A6000, T4
from tilewright.errors import LaunchError
from tilewright.model.occupancy import (
    Limit,
    Occupancy,
    allocated_registers_per_block,
    allocated_shared_bytes,
    max_registers_that_fit,
    occupancy,
)
from tilewright.units import KIB

# What cudaOccMaxActiveBlocksPerMultiprocessor of cuda_occupancy.h (CUDA 13.0, package nvidia-cuda-runtime 13.0.96)
# returned for random launches, chosen to cover every limit on every device; 13,500 launches agreed.
GOLDEN = list(csv.DictReader((Path(__file__).parent / "occupancy_golden.csv").read_text().splitlines()))
LIMIT_COLUMNS = {limit: limit.value for limit in Limit} | {Limit.BARRIERS: "barriers allowed"}


@pytest.mark.parametrize("spec", DEVICES, ids=lambda spec: spec.name)
def test_agrees_with_cuda_occupancy_h(spec) -> None:
    rows = [row for row in GOLDEN if row["device"] == spec.name]
    assert len(rows) >= 10
    for row in rows:
        this = occupancy(
            spec,
            threads_per_block=int(row["threads_per_block"]),
            registers_per_thread=int(row["registers_per_thread"]),
            static_shared_bytes=int(row["static_shared_bytes"]),
            dynamic_shared_bytes=int(row["dynamic_shared_bytes"]),
            barriers=int(row["barriers"]),
        )
        expected = {limit: int(row[column]) for limit, column in LIMIT_COLUMNS.items() if row[column]}
        assert dict(this.blocks_allowed) == expected, row
        assert this.blocks_per_sm == int(row["blocks_per_sm"]), row


def plain(spec, threads: int, registers: int, shared: int = 0) -> Occupancy:
    return occupancy(spec, threads_per_block=threads, registers_per_thread=registers, static_shared_bytes=shared)


def test_the_a6000_case_of_ncu() -> None:
    """ncu 2023.2 on an RTX A6000: 1024 threads, 32 warps of 48, 66.67 %."""
    this = plain(RTX_A6000, 1024, 40, 8 * KIB)
    assert (this.blocks_per_sm, this.warps_per_sm) == (1, 32)
    assert this.fraction == pytest.approx(2 / 3)
    assert this.limited_by == (Limit.REGISTERS, Limit.WARPS)


@pytest.mark.parametrize(
    ("this", "blocks", "why"),
    [
        (
            plain(H200, 256, 128, 16896),
            2,
            "registers: 256 threads x 128 take 32768 of 65536, so 2 blocks of 8 warps fit; 80 would let in a third",
        ),
        (
            plain(RTX_3090, 128, 100, 33 * KIB),
            2,
            "shared memory: a block takes 34.0 KiB of 100.0 KiB (1.0 KiB of it the system's), so 2 blocks of 4 warps "
            "fit; 33024 bytes would let in a third",
        ),
        (plain(RTX_4090, 1024, 32), 1, "warps: 1 block of 32 warps out of 48"),
        (
            plain(RTX_3090, 32, 32),
            16,
            "blocks per SM: an SM holds at most 16, here of 1 warp; larger blocks would fill it",
        ),
        (
            plain(T4, 512, 64),
            2,
            "registers: 512 threads x 64 take 32768 of 65536, so 2 blocks of 16 warps fit; "
            "warps: 2 blocks of 16 warps out of 32",
        ),
        (
            plain(H200, 1024, 96),
            0,
            "registers: 1024 threads x 96 take 98304 of 65536, so not even one block fits; 64 would let in a first",
        ),
        (plain(H200, 128, 300), 0, "registers: 300 per thread exceed 255"),
        (plain(H200, 2048, 32), 0, "warps: 2048 threads per block exceed 1024"),
        (plain(RTX_3090, 256, 32, 128 * KIB), 0, "shared memory: 128.0 KiB per block exceed 99.0 KiB"),
    ],
)
def test_by_hand(this: Occupancy, blocks: int, why: str) -> None:
    assert this.blocks_per_sm == blocks
    assert this.why == why


def test_a_warp_cannot_borrow_registers_of_another_scheduler() -> None:
    """168 registers: 5376 a warp, 3 warps a scheduler, 12 an SM, although 65536 // 5376 == 12.19."""
    assert plain(H200, 32 * 3, 168).blocks_per_sm == 4
    assert plain(H200, 32 * 5, 168).blocks_per_sm == 2


def test_a_part_of_a_warp_takes_a_whole_one() -> None:
    this = plain(H200, 33, 168)
    assert (this.warps_per_block, this.blocks_per_sm) == (2, 6)  # three warps a scheduler, as above
    assert max_registers_that_fit(H200, threads_per_block=33, blocks=6) == 168


def test_a_launch_asks_for_the_registers_of_as_many_warps_on_each_scheduler() -> None:
    """Five warps are checked as eight. On known GPUs a block may have all registers, so other checks say the same."""
    assert allocated_registers_per_block(H200, 5, 160) == 8 * 160 * 32
    small = replace(H200, max_registers_per_block=8 * 160 * 32 - 1)
    assert (plain(H200, 160, 160).blocks_per_sm, plain(small, 160, 160).blocks_per_sm) == (2, 0)


def test_barriers_limit_warp_specialised_kernels() -> None:
    this = occupancy(H200, threads_per_block=64, registers_per_thread=32, static_shared_bytes=0, barriers=16)
    assert this.limited_by == (Limit.BARRIERS,)
    assert this.why == "barriers: 16 per block out of 64"


def test_a_block_without_threads_is_refused() -> None:
    with pytest.raises(LaunchError, match=r"A block needs at least one thread, not 0\."):
        plain(H200, 0, 32)


launches = st.fixed_dictionaries(
    {
        "spec": st.sampled_from(DEVICES),
        "threads_per_block": st.integers(1, 1100),
        "registers_per_thread": st.integers(0, 256),
        "static_shared_bytes": st.integers(0, 48 * KIB),
        "dynamic_shared_bytes": st.integers(0, 200 * KIB),
        "barriers": st.integers(0, 16),
    }
)


def run(launch: dict) -> Occupancy:
    launch = dict(launch)
    return occupancy(launch.pop("spec"), **launch)


@given(launches)
def test_what_fits_is_within_every_resource(launch: dict) -> None:
    this, spec = run(launch), launch["spec"]
    assert 0 <= this.fraction <= 1
    assert this.warps_per_sm <= spec.max_warps_per_sm
    assert this.blocks_per_sm <= spec.max_blocks_per_sm
    assert this.blocks_per_sm * this.warps_per_block * 32 * this.registers_per_thread <= spec.registers_per_sm
    shared = allocated_shared_bytes(spec, this.shared_bytes_per_block)
    assert this.blocks_per_sm * shared <= spec.shared_bytes_per_sm
    assert this.limited_by
    assert this.why.startswith(this.limited_by[0].value)


@given(
    launches,
    st.sampled_from(["threads_per_block", "registers_per_thread", "static_shared_bytes", "dynamic_shared_bytes"]),
    st.integers(1, 64),
)
def test_asking_for_more_never_fits_more_blocks(launch: dict, what: str, more: int) -> None:
    greedier = launch | {what: launch[what] + more}
    assert run(greedier).blocks_per_sm <= run(launch).blocks_per_sm


@given(launches)
def test_the_way_out_lets_in_another_block(launch: dict) -> None:
    this = run(launch)
    advice = re.search(r"; (\d+)( bytes)? would let in", this.why)
    if advice is None:
        return
    amount = int(advice[1])
    wiser = (
        {"static_shared_bytes": amount, "dynamic_shared_bytes": 0} if advice[2] else {"registers_per_thread": amount}
    )
    assert run(launch | wiser).blocks_per_sm > this.blocks_per_sm


@given(st.sampled_from(DEVICES), st.integers(1, 1024), st.integers(1, 8))
def test_max_registers_is_the_most(spec, threads: int, blocks: int) -> None:
    most = max_registers_that_fit(spec, threads_per_block=threads, blocks=blocks)

    def fitting(registers: int) -> int:
        return dict(plain(spec, threads, registers).blocks_allowed)[Limit.REGISTERS]

    assert most == 0 or fitting(most) >= blocks
    assert most == spec.max_registers_per_thread or fitting(most + 1) < blocks
