"""Products with weights in codes, and what makes codes: right on the simulator, and compiled for GPUs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np
import pytest
from auxiliary_kernels import assert_nothing_moves_before_the_wait, compiled, run_on_cpu
from drawn_problems import drawn_product, drawn_weight

from tilewright.codegen import print_cuda
from tilewright.device.catalog import device
from tilewright.dtypes import BF16, E4M3, F16, F32, I32, DType
from tilewright.errors import FormatError, ProblemError
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.stmt import Alloc, UnpackCodes
from tilewright.ir.verify import BrokenRule, verify
from tilewright.kernels.coded import CodedConfig
from tilewright.kernels.coded_wgmma import CodedWgmmaConfig
from tilewright.kernels.statements import at, registers
from tilewright.kernels.weight_coding import WeightCodingConfig
from tilewright.layout.fragment import LEFT_16X16
from tilewright.planning.coded import candidates, chosen_config, words_of
from tilewright.planning.cost.coded import product_clocks, sm_clocks
from tilewright.problem.coded_product import CodedProduct, CodedWeight, fragment_places, meant
from tilewright.problem.epilogue import Epilogue
from tilewright.problem.tolerance import check, error_bound
from tilewright.problem.weight_codes import CODES, E4M3_CODES, INT4, Codes
from tilewright.problem.weight_coding import WeightCoding, coded
from tilewright.simulator import simulate
from tilewright.units import ceil_div

SMALL = CodedConfig(8, 1, 2, 2, 128, 3)
RECORDED = Path(__file__).parents[2] / "benchmarks/results/few_bits_h200.jsonl"


def product(
    m: int, n: int, k: int, codes: Codes = INT4, group: int = 128, dtype: DType = BF16, **more: Any
) -> CodedProduct:
    epilogue = Epilogue(bias=more.pop("bias", None), scale=() if group else ("n",))
    return CodedProduct(m, CodedWeight(n, k, codes, group), dtype, more.pop("out", dtype), epilogue=epilogue, **more)


def verdict(config: CodedConfig, problem: CodedProduct) -> Any:
    assert config.reasons_against(problem, device("H200")) == ()
    given = drawn_product(problem)
    run = simulate(config.kernel(problem), given)
    assert not run.findings
    stored = run.stored["C"]
    c = np.lib.stride_tricks.as_strided(
        stored, (problem.m, problem.n), (problem.ldc * stored.itemsize, stored.itemsize)
    )
    return check(meant(given), problem.out.decode(c))


def test_codes_lie_as_the_instruction_takes_them() -> None:
    for ours, known in zip(fragment_places(), LEFT_16X16.places(), strict=True):
        np.testing.assert_array_equal(ours, known)


@pytest.mark.parametrize("codes", [INT4, E4M3_CODES], ids=str)
def test_packing_is_undone_by_unpacking(codes: Codes) -> None:
    weight = CodedWeight(37, 96, codes, 32)
    numbers = np.random.default_rng(0).integers(-8, 8, (37, 96)).astype(np.float32)
    np.testing.assert_array_equal(weight.unpack(weight.pack(numbers)), numbers)
    scales = np.exp2(np.arange(37 * 3, dtype=np.float32).reshape(37, 3) % 50)
    np.testing.assert_array_equal(weight.read_scales(weight.lay_scales(scales)), scales)


def test_e4m3_codes_are_the_numbers_of_the_format() -> None:
    every = np.arange(256, dtype=np.uint8)
    numbers = E4M3.decode(every[~np.isin(every, (0x7F, 0xFF))]).astype(np.float32)
    padded = np.concatenate([numbers, numbers[:2]])
    np.testing.assert_array_equal(E4M3_CODES.unpack(E4M3_CODES.pack(padded)).reshape(-1), padded)


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
@pytest.mark.parametrize(("codes", "group"), [(INT4, 128), (INT4, 32), (INT4, 0), (E4M3_CODES, 64), (E4M3_CODES, 0)])
def test_products_are_within_the_bound(codes: Codes, group: int, dtype: DType) -> None:
    found = verdict(SMALL, product(3, 70, 384, codes, group, dtype, bias="n"))
    assert found.ok, found.message


@pytest.mark.parametrize(
    "config",
    [
        CodedConfig(16, 1, 3, 1, 64, 2),
        CodedConfig(32, 2, 1, 2, 64, 3),
        CodedConfig(64, 2, 2, 1, 128, 4),
        CodedConfig(8, 1, 1, 4, 256, 2),
        CodedConfig(8, 3, 1, 2, 64, 3),
        CodedConfig(16, 3, 2, 2, 64, 3, overlapped=True),
    ],
    ids=str,
)
@pytest.mark.parametrize(("m", "n", "k"), [(1, 17, 128), (19, 70, 640)])
def test_every_shape_of_a_kernel(config: CodedConfig, m: int, n: int, k: int) -> None:
    for codes in (INT4, E4M3_CODES):
        found = verdict(config, product(m, n, k, codes, 128, lda=k + 8, ldc=n + 3, alpha=0.5, beta=-1.0, out=F32))
        assert found.ok, found.message


def test_the_bound_sees_one_wrong_code_and_one_wrong_scale() -> None:
    problem = product(3, 32, 256, out=F32)
    given = drawn_product(problem)
    stored = simulate(SMALL.kernel(problem), given).stored["C"].reshape(3, 32)
    assert check(meant(given), stored).ok
    given.storage("codes")[5] ^= 1 << 12
    assert not check(meant(given), stored).ok
    given.storage("codes")[5] ^= 1 << 12
    given.storage("scales")[3] ^= 1 << 4
    assert not check(meant(given), stored).ok


def test_infinities_and_nan_of_activations_and_scales_pass_through() -> None:
    problem = product(4, 20, 128)
    given = drawn_product(problem)
    given.storage("A").reshape(4, 128)[1, 7] = 0x7FC0
    given.storage("A").reshape(4, 128)[2, 9] = 0x7F80
    given.storage("scales")[4] = 0x7FC0
    stored = BF16.decode(simulate(SMALL.kernel(problem), given).stored["C"].reshape(4, 20))
    assert np.isnan(stored[1]).all() and np.isnan(stored[:, 2]).all()
    assert np.isfinite(np.delete(stored[[0, 3]], 2, axis=1)).all()


def test_a_bound_of_blocks_is_of_scaled_sums() -> None:
    given = drawn_product(product(3, 32, 256))
    larger = drawn_product(product(3, 32, 256))
    larger.storage("scales")[:] = BF16.encode(BF16.decode(given.storage("scales")) * 1024)
    np.testing.assert_allclose(error_bound(meant(larger)), error_bound(meant(given)) * 1024, rtol=1e-5)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(("m", "codes"), [(1, INT4), (16, INT4), (64, INT4), (64, E4M3_CODES), (104, INT4)])
def test_what_is_chosen_compiles_without_spills(arch: str, m: int, codes: Codes) -> None:
    problem = product(m, 14336, 4096, codes)
    config = chosen_config(problem, device("H200" if arch == "sm_90a" else "A100"))
    resources = compiled(config.kernel(problem), arch).resources
    assert resources.spill_load_bytes == 0
    assert resources.registers * config.threads <= 65536


def test_a_kernel_that_starts_early_touches_nothing_before_its_wait() -> None:
    config = replace(SMALL, overlapped=True)
    assert_nothing_moves_before_the_wait(config.kernel(product(3, 70, 256, bias="n")))
    assert "no programmatic dependent launch" in config.reasons_against(product(3, 70, 256), device("A100"))[0]


def test_what_is_chosen_was_measured_and_nearly_the_fastest() -> None:
    """Of the sweeps that the choice is fitted to, by the record of their best; where a ring of as many stages was not
    timed, by the slower of the next deeper and the next flatter. Times are nearly the estimated ones."""
    lines = [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()]
    spec = device(lines[0]["device"])
    timed: dict[CodedProduct, dict[str, float]] = {}
    for row in lines:
        if "swept" in row:  # others are what calls took
            problem = product(row["m"], row["n"], row["k"], CODES[row["codes"]])
            timed.setdefault(problem, {})[row["swept"]] = row["us"]
    losses = []
    for problem, known in timed.items():
        config = chosen_config(problem, spec)
        rings = {s: known.get(words_of(replace(config, stages=s), problem)) for s in range(1, 9)}
        flatter = [s for s in rings if s <= config.stages and rings[s]]
        deeper = [s for s in rings if s >= config.stages and rings[s]]
        us = max(rings[s] or 0.0 for s in (*flatter[-1:], *deeper[:1]))
        losses.append(us / min(known.values()))
        estimate = product_clocks if isinstance(config, CodedWgmmaConfig) else sm_clocks
        assert estimate(config, problem, spec) / spec.tensor_clock_mhz == pytest.approx(us, rel=0.12), problem
    assert len(losses) == 14 and all(len(known) > 2 for problem, known in timed.items() if problem.m > 1)
    assert max(losses) < 1.04 and geometric_mean(losses) < 1.02


def test_wgmma_is_chosen_where_it_was_faster_and_is_there() -> None:
    for m, codes, name, by_wgmma in (
        *((m, codes, "H200", True) for m in (9, 16, 24, 48, 64, 96, 128) for codes in (INT4, E4M3_CODES)),
        *((64, INT4, "H100 SXM", True), (5, E4M3_CODES, "H200", True), (5, INT4, "H200", False)),
        *((129, INT4, "H200", False), (64, INT4, "A100", False), (64, INT4, "RTX 4090", False)),
    ):
        config = chosen_config(product(m, 14336, 4096, codes), device(name))
        assert isinstance(config, CodedWgmmaConfig) == by_wgmma, (m, codes, name)
        if isinstance(config, CodedWgmmaConfig):
            assert config.rows % 8 == 0 and config.rows * ceil_div(m, config.rows) < m + 16


def test_a_small_weight_is_spread_over_the_gpu() -> None:
    """Columns alone make too few blocks: k is shared out as well."""
    spec = device("H200")
    for m, n, k in ((64, 4096, 14336), (32, 2048, 8192), (96, 2048, 8192)):
        config = chosen_config(product(m, n, k), spec)
        assert isinstance(config, CodedWgmmaConfig) and config.cluster > 1, (m, n, k)
        assert ceil_div(n, config.columns) * config.cluster > spec.sm_count // 4


def test_every_choice_can_run() -> None:
    """Drawn problems: the choice names nothing that the kernel refuses, and its kernel can be made."""
    rng, made = np.random.default_rng(3), set()
    for number in range(60):
        codes, group = (INT4, E4M3_CODES)[number % 2], (0, 32, 64, 128)[number // 2 % 4]
        m, n = int(rng.integers(1, 140)), int(2 ** rng.uniform(0, 15)) * int(rng.choice([1, 2, 8]))
        k = (group or 32) * int(rng.integers(1, 9000 // (group or 32)))
        problem = product(m, n, k, codes, group, (BF16, F16)[number % 3 % 2], out=(BF16, F32)[number % 5 % 2])
        for name in ("H200", "H100 SXM", "A100"):
            config = chosen_config(problem, device(name))
            assert config.reasons_against(problem, device(name)) == (), (problem, config)
            assert config.shared_bytes(problem) <= device(name).max_shared_bytes_per_block
        if number % 8 == 0:
            made.add(config.kernel(problem).name)
    assert len(made) > 5


def test_kernels_that_leave_an_sm_waiting_are_estimated_slower() -> None:
    """Half of the SMs have no block; too few copies are under way; a few blocks start after all others."""
    spec, problem = device("H200"), product(1, 14336, 4096)
    best = chosen_config(problem, spec)
    assert isinstance(best, CodedConfig)
    assert best.block_tiles * 132 >= problem.weight.tiles
    for worse in (replace(best, warps_n=2), replace(best, stages=2), replace(best, tiles=6)):
        assert sm_clocks(worse, problem, spec) > 1.2 * sm_clocks(best, problem, spec)


def test_there_is_a_kernel_for_every_problem() -> None:
    for m, n, k, group in ((1, 1, 32, 32), (5000, 8, 64, 0), (64, 100_000, 96, 32), (300, 4096, 14336, 128)):
        for codes in (INT4, E4M3_CODES):
            problem = product(m, n, k, codes, group)
            for name in ("H200", "A100"):
                found = list(candidates(problem, device(name)))
                assert found and not any(config.reasons_against(problem, device(name)) for config in found)


def test_what_it_cannot_do_it_says() -> None:
    problem = product(3, 70, 256)
    reasons = {
        CodedConfig(12): "12 rows of A",
        CodedConfig(own_k=96): "are not whole units of 64 in groups of 128",
        CodedConfig(warps_n=32): "2048 threads",
        CodedConfig(64, stages=40): "bytes of shared memory",
    }
    for config, words in reasons.items():
        assert any(words in reason for reason in config.reasons_against(problem))
    assert "no multiple of 16 bytes" in SMALL.reasons_against(replace(problem, lda=257))[0]
    assert "neither cp.async nor bf16" in SMALL.reasons_against(problem, device("T4"))[0]
    with pytest.raises(ProblemError, match="not a multiple of 128"):
        CodedWeight(8, 100, INT4)
    with pytest.raises(ProblemError, match="Groups of 100"):
        CodedWeight(8, 100, INT4, 100)
    with pytest.raises(FormatError, match="not unpacked to f32"):
        product(3, 8, 128, dtype=F32)
    with pytest.raises(ProblemError, match="no other epilogue"):
        CodedProduct(3, CodedWeight(8, 128, INT4), epilogue=Epilogue(residual=True))


def test_codes_are_unpacked_in_registers_only() -> None:
    words = registers("words", I32, 4)
    shared = Buffer("shared", Space.SHARED, BF16, (8,))
    with pytest.raises(BrokenRule, match="unpacked in registers"):
        verify((Alloc(words), UnpackCodes(at(shared, 0), at(words, 0), INT4)), names=[], after="a test")
    numbers = registers("numbers", F32, 8)
    with pytest.raises(BrokenRule, match="are unpacked to f32"):
        body = (Alloc(words), Alloc(numbers), UnpackCodes(at(numbers, 0), at(words, 0), INT4))
        verify(body, names=[], after="a test")


@pytest.mark.parametrize(
    ("codes", "group", "dtype", "steps"),
    [
        (INT4, 32, BF16, (21, 1)),
        (INT4, 0, F32, (1, 99)),
        (E4M3_CODES, 32, F16, (1, 99)),
        (E4M3_CODES, 0, BF16, (23, 1)),
    ],
)
def test_codes_of_a_weight_are_exact(codes: Codes, group: int, dtype: DType, steps: tuple[int, int]) -> None:
    problem = WeightCoding(CodedWeight(20, 96, codes, group), dtype, *steps)
    given, kernel = drawn_weight(problem), WeightCodingConfig().kernel(problem)
    expected, run = coded(given), simulate(kernel, given)
    assert not run.findings
    on_cpu = run_on_cpu(kernel, given)
    for name in problem.results:
        np.testing.assert_array_equal(run.stored[name], expected[name])
        np.testing.assert_array_equal(on_cpu[name].view(expected[name].dtype), expected[name])


def test_the_text_says_what_it_computes() -> None:
    text = print_cuda(SMALL.kernel(product(3, 70, 256))).text
    assert "B in codes of int4, a scale for 128 of k" in text and "unpack_int4_to_bf16(left[0]" in text
