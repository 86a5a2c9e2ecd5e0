"""The catalogue against the data sheets: SMs x rate x clock is the figure that NVIDIA prints."""

import pytest

from tilewright.device.arch import arch
from tilewright.device.catalog import DEVICES, device
from tilewright.errors import UnknownName
from tilewright.units import KIB

# (device, inputs, accumulator or "" for CUDA cores, TFLOP/s or TOP/s of the data sheet, dense)
DATA_SHEETS = [
    ("T4", "f32", "", 8.1),
    ("T4", "f16", "f32", 65),
    ("T4", "i8", "i32", 130),
    ("A100", "f32", "", 19.5),
    ("A100", "f16", "f32", 312),
    ("A100", "bf16", "f32", 312),
    ("A100", "tf32", "f32", 156),
    ("A100", "i8", "i32", 624),
    ("RTX 3090", "f32", "", 35.6),
    ("RTX 3090", "f16", "f16", 142),
    ("RTX 3090", "f16", "f32", 71),
    ("RTX 3090", "tf32", "f32", 35.6),
    ("RTX 3090", "i8", "i32", 284),
    ("RTX A6000", "f32", "", 38.7),
    ("RTX A6000", "f16", "f32", 154.8),
    ("RTX A6000", "tf32", "f32", 77.4),
    ("RTX A6000", "i8", "i32", 309.7),
    ("RTX 4090", "f32", "", 82.6),
    ("RTX 4090", "f16", "f16", 330.3),
    ("RTX 4090", "f16", "f32", 165.2),
    ("RTX 4090", "tf32", "f32", 82.6),
    ("RTX 4090", "f8", "f32", 330.3),
    ("RTX 4090", "i8", "i32", 660.6),
    ("RTX 4050 Laptop", "i8", "i32", 194 / 2),  # the product page gives 194 with sparsity
    ("H100", "f32", "", 67),
    ("H100", "bf16", "f32", 989.4),
    ("H100", "tf32", "f32", 494.7),
    ("H100", "f8", "f32", 1978.9),
    ("H200", "f32", "", 67),
    ("H200", "f16", "f32", 989.4),
    ("H200", "i8", "i32", 1978.9),
    ("RTX 2080 Ti", "f32", "", 13.45),
    ("RTX 2080 Ti", "f16", "f16", 107.6),
    ("A10", "f32", "", 31.2),
    ("A10", "f16", "f32", 125),
    ("L40S", "f32", "", 91.6),
    ("L40S", "f16", "f32", 366),
    ("RTX 5090", "f32", "", 104.8),
    ("RTX 5090", "f16", "f32", 209.5),
    ("RTX 5050", "f32", "", 13.2),
    ("B200", "f32", "", 75),
    ("B200", "bf16", "f32", 2250),
    ("B200", "tf32", "f32", 1125),
    ("B200", "f8", "f32", 4500),
]


@pytest.mark.parametrize(("name", "inputs", "accumulator", "tflops"), DATA_SHEETS)
def test_rate_times_clock_is_the_data_sheet(name: str, inputs: str, accumulator: str, tflops: float) -> None:
    spec = device(name)
    peak = spec.peak_tensor_tflops(inputs, accumulator) if accumulator else spec.peak_fp32_tflops
    assert peak == pytest.approx(tflops, rel=0.01)


@pytest.mark.parametrize("spec", DEVICES, ids=lambda spec: spec.name)
def test_every_device_is_consistent(spec) -> None:
    target = arch(spec.arch)
    assert target.runs_on(spec.compute_capability)
    assert spec.shared_carveouts_bytes[-1] == spec.shared_bytes_per_sm
    assert list(spec.shared_carveouts_bytes) == sorted(spec.shared_carveouts_bytes)
    block_and_reserve = spec.max_shared_bytes_per_block + spec.reserved_shared_bytes_per_block
    assert block_and_reserve == spec.shared_bytes_per_sm
    # The interval between FFMAs is 32 lanes over the units of one scheduler.
    assert spec.ffma_issue_interval_clk == 32 * spec.schedulers_per_sm // spec.fp32_lanes_per_sm
    assert (spec.max_blocks_per_cluster > 1) == (spec.compute_capability >= (9, 0))
    assert spec.registers_per_sm == 64 * KIB


def test_measured_ceiling_of_the_h200_is_below_its_peak() -> None:
    """64.1 TFLOP/s of FFMA were measured on 2026-11-21."""
    assert 64.1 < device("H200").peak_fp32_tflops < 64.1 * 1.1


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("rtx3090", "RTX 3090"),
        ("h200", "H200"),
        ("A100", "A100 SXM 80 GB"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM 80 GB"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("H100 80GB HBM3", "H100 SXM"),  # as `probe` shortens it
        ("NVIDIA GeForce RTX 4050 Laptop GPU", "RTX 4050 Laptop"),
        ("a6000", "RTX A6000"),
        ("Tesla T4", "T4"),
    ],
)
def test_lookup_forgives(asked: str, found: str) -> None:
    assert device(asked).name == found
    assert device(device(asked)) is device(asked)


@pytest.mark.parametrize("asked", ["RTX 3090 Ti", "", "NVIDIA", "h", "4090 laptop", "H20", "L4", "RTX 309", "3"])
def test_lookup_does_not_guess(asked: str) -> None:
    with pytest.raises(UnknownName):
        device(asked)


def test_lookup_suggests_the_nearest() -> None:
    with pytest.raises(UnknownName) as caught:
        device("RTX 3080")
    assert str(caught.value) == (
        "There is no device 'RTX 3080'.\n"
        "  Hint: did you mean 'RTX 3090'? Known: T4, RTX 2080 Ti, A100 SXM 80 GB, RTX 3090, RTX A6000, A10, RTX 4090, "
        "L40S, RTX 4050 Laptop, H100 SXM, H200, B200, RTX 5090, RTX 5050."
    )


def test_rate_of_what_does_not_exist_is_zero() -> None:
    assert device("A100").peak_tensor_tflops("f8") == 0
    assert device("T4").tensor.supported == ("f16_f16", "f16_f32", "i8_i32")
