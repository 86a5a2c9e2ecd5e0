"""What an epilogue writes beside C: other matrices, and folds of rows and of columns, by every sink of C."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tilewright.dtypes import BF16, E4M3, E5M2, F16, F32, Array
from tilewright.errors import LoweringError
from tilewright.frontend import ops
from tilewright.frontend.symbols import Symbol
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import ZERO, Const, Ref
from tilewright.ir.stmt import Alloc, ShuffleAdd
from tilewright.ir.verify import BrokenRule, verify
from tilewright.ir.visit import rewrite, walk
from tilewright.kernels.mma import MmaConfig
from tilewright.kernels.simt import SimtConfig
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.lowering.epilogue_results import folds_of
from tilewright.problem import Epilogue, Gemm, Order, check, make_operands
from tilewright.problem.epilogue import Result
from tilewright.problem.functions import Operation
from tilewright.problem.philox import uniform
from tilewright.problem.quantization import scales_of_blocks, spread_over_blocks
from tilewright.problem.reference import folded_axis
from tilewright.problem.values import Accumulated, Added, Element, Factor, Fold
from tilewright.runtime.nvrtc import compile_cuda
from tilewright.simulator import simulate
from tilewright.toolchain import Build, build

ACC = Symbol(Accumulated())
GATE = Symbol(Element(Added("gate_operand", None, BF16)))
ROW = Symbol(Element(Added("row_operand", "m", F32)))

CONFIGS: dict[str, Any] = {
    "wgmma-tma": WgmmaConfig((128, 80, 64), stages=2, subtile=64),
    "wgmma-ping-pong": WgmmaConfig((64, 48, 64), ping_pong=True, stages=3, subtile=16),
    "wgmma-threads": WgmmaConfig((64, 32, 64), consumers=1, stages=2),
    "wgmma-swap": WgmmaConfig((24, 64, 64), consumers=1, stages=2, subtile=64, swap_ab=True),
    "wgmma-codes": WgmmaConfig((128, 128, 64), stages=2, subtile=32),
    "wgmma-codes-wide": WgmmaConfig((64, 256, 64), ping_pong=True, stages=2, subtile=64),
    "wgmma-bytes": WgmmaConfig((128, 96, 64), stages=2, subtile=32),
    "mma": MmaConfig((32, 32, 32), (16, 32), stages=2),
    "mma-shuffle": MmaConfig((32, 64, 32), (16, 32), stages=2, store="quad_shuffle"),
    "simt": SimtConfig((64, 64, 16), (32, 32), unroll=8),
    "wgmma-cluster": WgmmaConfig((64, 32, 64), consumers=1, stages=2, persistent=False, cluster_k=2),
    "wgmma-swap-cluster": WgmmaConfig((24, 64, 64), consumers=1, stages=2, persistent=False, swap_ab=True, cluster_k=2),
    "mma-cluster": MmaConfig((32, 32, 32), (16, 32), stages=2, cluster_k=4),
    "simt-cluster": SimtConfig((64, 64, 16), (32, 32), unroll=8, cluster_k=2),
}


def fold(name: str, along: Any, operation: Any, value: Any, group: int = 0) -> Result:
    return Result(Added(name, along, F32, own=True, fold=Fold(operation, group)), value.value)


def epilogue_of(*results: Result) -> Epilogue:
    return Epilogue("n", function=(ops.silu(ACC) * GATE).value, results=results)


MATRICES = (
    Result(Added("second", None, F32), (ACC * ROW).value),
    Result(Added("third", None, F16), ops.relu(ACC - GATE).value),
)
FOLDS = {
    "rows": fold("rows", "m", Operation.PLUS, ACC + 1.0),
    "columns": fold("columns", "n", Operation.PLUS, ACC * ACC + 1.0),
    "largest": fold("largest", "m", Operation.MAXIMUM, ACC * GATE - 9.0),
    "tallest": fold("tallest", "n", Operation.MAXIMUM, -abs(ACC) - 1.0),
}


def gemm_of(config: Any, m: int, n: int, **options: Any) -> Gemm:
    dtype = F32 if isinstance(config, SimtConfig) else BF16
    ldc = n if n % 8 == 0 else n + 3
    given = {"out": dtype, "lda": 24, "ldb": 24, "ldc": ldc} | options
    return Gemm(m, n, 24, dtype, b=Order.COL, **given)


def built_for(config: Any, gemm: Gemm) -> Build:
    """The kernel, its folds in the groups that it makes."""
    plain = build(gemm, config.schedule(gemm))
    folds = folds_of(plain.program)
    results = tuple(
        one if one.operand.fold is None else replace(one, operand=replace(one.operand, fold=folds[one.operand.name]))
        for one in gemm.epilogue.results
    )
    gemm = replace(gemm, epilogue=replace(gemm.epilogue, results=results))
    return build(gemm, config.schedule(gemm))


def result_of(gemm: Gemm, name: str, stored: Array) -> Array:
    """A matrix, or the fold of partial results, in order."""
    operand = gemm.operand(name)
    if operand.fold is None:
        leading, length = gemm.leading(name), gemm.size(operand.contiguous)
        rows = [operand.dtype.decode(stored[at * leading :][:length]) for at in range(gemm.size(operand.strided))]
        found = np.stack(rows)
        return found if operand.order is Order.ROW else found.T
    partials = stored.reshape(gemm.groups_of(operand), gemm.line_of(operand))
    if operand.fold.whole:
        return np.fmax.reduce(partials, axis=None, keepdims=True)
    if operand.fold.codes is not None:
        return partials.T
    whole = partials[0].copy()
    for one in partials[1:]:
        whole = whole + one if operand.fold.operation is Operation.PLUS else np.fmax(whole, one)
    return np.expand_dims(whole, folded_axis(gemm, name))


def assert_right(built: Build) -> dict[str, Array]:
    gemm = built.gemm
    operands = make_operands(gemm)
    run = simulate(built.kernel, operands)
    assert run.completed and not run.errors
    found = {}
    for name in gemm.results:
        found[name] = result_of(gemm, name, run.stored[name])
        verdict = check(operands, found[name], result=name)
        assert verdict.ok, (name, verdict.message)
        assert not check(operands, found[name] * 1.1 + 0.1, result=name).ok
    return found


@pytest.mark.cross_section("config", "shape", every=4)
@pytest.mark.parametrize("shape", [(70, 83), (128, 160)], ids=str)
@pytest.mark.parametrize("config", CONFIGS)
def test_matrices_beside_c(config: str, shape: tuple[int, int]) -> None:
    gemm = gemm_of(CONFIGS[config], *shape, epilogue=epilogue_of(*MATRICES), alpha=0.5)
    if config == "mma-shuffle" and shape[1] % 8:
        pytest.skip("a quad shuffle transpose needs rows of 16 bytes")
    assert_right(built_for(CONFIGS[config], gemm))


@pytest.mark.cross_section("config", every=3)
@pytest.mark.parametrize("config", [name for name in CONFIGS if "swap" not in name])
def test_folds_of_rows_and_columns(config: str) -> None:
    shape = (70, 88) if "shuffle" in config else (70, 83)
    epilogue = epilogue_of(*FOLDS.values())
    assert_right(built_for(CONFIGS[config], gemm_of(CONFIGS[config], *shape, epilogue=epilogue, beta=-1.0)))


@pytest.mark.parametrize("n", [328, 301, 256])
@pytest.mark.parametrize("config", ["wgmma-codes", "wgmma-codes-wide"])
def test_warpgroups_fold_whole_rows_of_64_columns(config: str, n: int) -> None:
    """But not where one launch folds a line. The order is that of kernels that leave each eight to a launch."""
    epilogue = epilogue_of(FOLDS["rows"], FOLDS["largest"])
    made = {
        name: built_for(CONFIGS[name], gemm_of(CONFIGS[name], 70, n, epilogue=epilogue)) for name in (config, "mma")
    }
    wide, narrow = (made[name].gemm.operand("rows").fold.group for name in made)
    assert (wide, narrow) == ((64, 8) if n > 256 else (8, 8))
    assert_right(made[config])
    stored = {name: simulate(one.kernel, make_operands(one.gemm)).stored for name, one in made.items()}
    for name, operation in (("rows", np.add), ("largest", np.fmax)):
        eights = stored["mma"][name].reshape(-1, 70)
        if n > 256:
            eights = np.stack([operation.accumulate(eights[at : at + 8])[-1] for at in range(0, len(eights), 8)])
        # Each instruction rounds sums of products in its own way.
        np.testing.assert_allclose(stored[config][name].reshape(eights.shape), eights, rtol=1e-6)


@pytest.mark.cross_section("config", "shape", every=3)
@pytest.mark.parametrize("shape", [(3, 5), (70, 83), (200, 176)], ids=str)
@pytest.mark.parametrize("config", CONFIGS)
def test_the_largest_of_all(config: str, shape: tuple[int, int]) -> None:
    """What lies behind the edges of C would be larger than all. Warpgroups that store subtiles leave one number a
    warp."""
    n = shape[1] + 3 if "shuffle" in config else shape[1]
    of_all = Fold(Operation.MAXIMUM, whole=True)
    largest = Result(Added("largest", "m", F32, own=True, fold=of_all), (-abs(ACC) - 3.0).value)
    built = built_for(CONFIGS[config], gemm_of(CONFIGS[config], shape[0], n, epilogue=epilogue_of(largest), beta=0.5))
    assert_right(built)
    if CONFIGS[config].kind == "wgmma" and CONFIGS[config].subtile:
        tile, warps = CONFIGS[config].tile, 4 if CONFIGS[config].ping_pong else 4 * CONFIGS[config].consumers
        tiles = -(-shape[0] // tile[0]) * -(-n // tile[1])
        assert built.gemm.storage_elements(largest.operand.name) == tiles * warps


@pytest.mark.parametrize("config", ["wgmma-bytes", "wgmma-ping-pong", "mma", "simt"])
def test_codes_of_fp8_saturate(config: str) -> None:
    codes = tuple(Result(Added(name, None, of), (ACC * 100.0).value) for name, of in (("fine", E4M3), ("wide", E5M2)))
    epilogue = Epilogue(function=(ACC * 60.0).value, results=codes)
    for n in (96, 83):
        gemm = gemm_of(CONFIGS[config], 70, n, out=E4M3, ldc=n, epilogue=epilogue)
        found = assert_right(built_for(CONFIGS[config], gemm))
        assert abs(found["fine"]).max() == abs(found["C"]).max() == 448 and abs(found["wide"]).max() < 57344


@pytest.mark.parametrize("codes", [E4M3, E5M2], ids=str)
@pytest.mark.parametrize("config", ["wgmma-codes", "wgmma-codes-wide"])
def test_scales_of_blocks_are_those_of_the_values(config: str, codes: Any) -> None:
    x = (ops.silu(ACC) * GATE).value
    scales = Result(Added("scales", "m", F32, own=True, fold=Fold(Operation.MAXIMUM, 128, codes=codes)), x)
    plain = Result(Added("plain", None, F32), x)
    for n in (304, 256):
        epilogue = Epilogue(function=x, results=(scales, plain))
        gemm = gemm_of(CONFIGS[config], 70, n, out=codes, epilogue=epilogue)
        found = assert_right(built_for(CONFIGS[config], gemm))
        expected = scales_of_blocks(found["plain"], codes)
        np.testing.assert_array_equal(found["scales"], expected)
        inverse = spread_over_blocks(np.float32(1) / expected, n)
        np.testing.assert_array_equal(found["C"], codes.decode(codes.encode(found["plain"] * inverse)))


@pytest.mark.parametrize("config", ["wgmma-bytes", "wgmma-threads", "mma", "simt", "wgmma-swap"])
def test_scales_of_blocks_need_whole_blocks_of_rows(config: str) -> None:
    scales = Result(Added("scales", "m", F32, own=True, fold=Fold(Operation.MAXIMUM, 128, codes=E4M3)), ACC.value)
    gemm = gemm_of(CONFIGS[config], 64, 256, out=E4M3, epilogue=Epilogue(function=ACC.value, results=(scales,)))
    with pytest.raises(LoweringError, match="Scales of 128 columns are found where"):
        _ = build(gemm, CONFIGS[config].schedule(gemm)).kernel


@pytest.mark.cross_section("config", every=2)
@pytest.mark.parametrize("config", [name for name in CONFIGS if "swap" not in name and "codes" not in name])
def test_pairs_of_columns_are_turned(config: str) -> None:
    n = 96 if config in ("mma-shuffle", "wgmma-bytes") else 82
    turned = ops.rotary(ACC + GATE, GATE, ROW)
    twice = Result(Added("twice", None, F32), ops.rotated_pair(ops.rotated_pair(ACC * ROW) + GATE).value)
    epilogue = Epilogue("n", function=turned.value, results=(twice,) if "threads" not in config else ())
    assert_right(built_for(CONFIGS[config], gemm_of(CONFIGS[config], 70, n, epilogue=epilogue, beta=0.5)))


@pytest.mark.cross_section("config", every=3)
@pytest.mark.parametrize("config", [name for name in CONFIGS if "codes" not in name])
def test_the_same_elements_are_dropped_by_every_kernel(config: str) -> None:
    n = 96 if config in ("mma-shuffle", "wgmma-bytes", "wgmma-swap") else 83
    dropped = ops.dropout(ACC, 0.25, Symbol(Factor("seed")), 9)
    gemm = gemm_of(CONFIGS[config], 70, n, epilogue=Epilogue("n", function=dropped.value), numbers=(123456.0,))
    found = assert_right(built_for(CONFIGS[config], gemm))["C"]
    kept = uniform(123456, 9, np.arange(70)[:, None], np.arange(n)) >= 0.25
    np.testing.assert_array_equal(found != 0, kept)
    assert 0.7 < kept.mean() < 0.8


def test_neighbours_share_the_words_of_a_counter() -> None:
    """Ten rounds take about 100 instructions of 16 bytes: for each vector of 4 elements once, not for each element."""

    def code_bytes(value: Any) -> int:
        gemm = gemm_of(CONFIGS["simt"], 64, 64, epilogue=Epilogue(function=value.value))
        resources = compile_cuda(built_for(CONFIGS["simt"], gemm).source, "sm_80").resources
        assert resources.spill_store_bytes == resources.spill_load_bytes == 0
        return resources.code_bytes

    elements = 64 * 64 // 128
    assert code_bytes(ops.dropout(ACC, 0.5, 7)) - code_bytes(ACC) < elements * 100 * 16 / 2


def test_pairs_across_lanes_are_refused() -> None:
    for config, options in (("wgmma-swap", {}), ("mma", {"c": Order.COL, "ldc": 64})):
        gemm = gemm_of(CONFIGS[config], 64, 64, epilogue=Epilogue(function=ops.rotated_pair(ACC).value), **options)
        with pytest.raises(LoweringError, match="does not hold both columns of a pair"):
            _ = build(gemm, CONFIGS[config].schedule(gemm)).kernel


@pytest.mark.parametrize(
    "config, name, shuffles",
    [
        ("wgmma-tma", "columns", [4, 4, 4, 4, 8, 8, 16]),  # eight values of eight lanes
        ("wgmma-tma", "rows", [1, 1, 2]),  # four sums of two, of four lanes
        ("wgmma-swap", "rows", [4, 4, 4, 4, 8, 8, 16]),
        ("wgmma-ping-pong-odd", "tallest", [4, 4, 4, 4, 8, 8, 16, 4, 4, 8, 16]),  # and four behind whole chunks
    ],
)
def test_lanes_share_out_the_values_of_a_chunk(config: str, name: str, shuffles: list[int]) -> None:
    """Each lane is left with one partial result; where values run out, the last shuffle is of one value. No shuffle
    can be left out."""
    odd = WgmmaConfig((64, 24, 64), consumers=1, stages=2, subtile=24)
    given = CONFIGS.get(config, odd)
    built = built_for(given, gemm_of(given, 70, 88, epilogue=epilogue_of(FOLDS[name])))
    found = [stmt for _, stmt in walk(built.kernel.body) if isinstance(stmt, ShuffleAdd)]
    assert sorted(one.mask for one in found[: len(shuffles)]) == sorted(shuffles)
    assert [one.other is None for one in found[: len(shuffles)]].count(True) == (len(shuffles) == 11)
    operands = make_operands(built.gemm)
    right = simulate(built.kernel, operands).stored[name]
    for one in {one.mask: one for one in found}.values():
        body = rewrite(built.kernel.body, lambda stmt, one=one: () if stmt == one else None)  # type: ignore[misc]
        wrong = simulate(replace(built.kernel, body=body), operands).stored[name]
        assert not np.array_equal(wrong, right)


def test_lanes_share_out_registers_of_one_buffer() -> None:
    sums, others = (Buffer(name, Space.REGISTER, F32, (2,)) for name in ("sums", "others"))
    shared = ShuffleAdd(Ref(sums, (ZERO,)), 4, other=Ref(sums, (Const(1),)))
    verify((Alloc(sums), shared), names=[], after="a test")
    for broken in (replace(shared, other=Ref(others, (ZERO,))), replace(shared, place=Ref(others, (ZERO,)))):
        with pytest.raises(BrokenRule, match="both in one buffer"):
            verify((Alloc(sums), Alloc(others), broken), names=[], after="a test")


def test_swapped_operands_fold_rows_and_refuse_columns() -> None:
    config = CONFIGS["wgmma-swap"]
    epilogue = epilogue_of(FOLDS["rows"], FOLDS["largest"])
    assert_right(built_for(config, gemm_of(config, 70, 88, epilogue=epilogue)))
    with pytest.raises(LoweringError, match="groups of 1 along m"):
        built_for(config, gemm_of(config, 70, 88, epilogue=epilogue_of(FOLDS["columns"])))


def test_sums_have_the_same_bits_in_every_tile_of_tensor_cores() -> None:
    names = ("wgmma-tma", "wgmma-ping-pong", "wgmma-threads", "mma")
    folds = (FOLDS["rows"], FOLDS["columns"])
    plain = replace(epilogue_of(*folds), bias=None)
    found = []
    for name in names:
        gemm = gemm_of(CONFIGS[name], 70, 88, epilogue=plain)
        built = built_for(CONFIGS[name], gemm)
        operands = make_operands(built.gemm)
        ones = np.full_like(operands.a, BF16.encode(np.float32([1.0]))[0])
        run = simulate(built.kernel, replace(operands, a=ones), listeners=())
        found.append([result_of(built.gemm, one.operand.name, run.stored[one.operand.name]) for one in folds])
    for others in found[1:]:
        for one, other in zip(found[0], others, strict=True):
            np.testing.assert_array_equal(one, other)


def test_another_group_is_refused() -> None:
    config = CONFIGS["mma"]
    gemm = gemm_of(config, 64, 64, epilogue=epilogue_of(fold("rows", "m", Operation.PLUS, ACC, 4)))
    with pytest.raises(LoweringError, match="groups of 4 along n, and this kernel's are of 8"):
        _ = build(gemm, config.schedule(gemm)).kernel


@pytest.mark.parametrize(
    ("config", "arch"),
    [
        ("wgmma-tma", "sm_90a"),
        ("wgmma-codes", "sm_90a"),
        ("wgmma-swap", "sm_90a"),
        ("mma-shuffle", "sm_80"),
        ("simt", "sm_80"),
    ],
)
def test_kernels_compile_without_spills(config: str, arch: str) -> None:
    folds = FOLDS.values() if config != "wgmma-swap" else (FOLDS["rows"], FOLDS["largest"])  # its lanes hold no columns
    gemm = gemm_of(CONFIGS[config], 256, 328, epilogue=epilogue_of(*MATRICES, *folds))
    cubin = compile_cuda(built_for(CONFIGS[config], gemm).source, arch)
    assert cubin.resources.spill_store_bytes == cubin.resources.spill_load_bytes == 0
