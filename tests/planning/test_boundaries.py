"""Choices where sizes meet what they are compared with: one below, equal, one above.

Estimates depend on what was fitted, which changes: here constants and networks are made up, so what stands in
tests/golden/boundaries changes with the rules alone. A line is a table of candidates: how many, the geometric mean of
their estimates, the CRC-32 of the means of all columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count as numbers
from itertools import product
from random import Random
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from planned import alignment_of
from test_candidates import geometric_mean, known, mean

from tilewright.device.catalog import device
from tilewright.device.spec import DeviceSpec
from tilewright.dtypes import BF16, E4M3, F16, F32, TF32
from tilewright.kernels import spaces
from tilewright.planning import ragged, ranking
from tilewright.planning.assembly import Request
from tilewright.planning.cost import plans, wgmma_terms
from tilewright.planning.cost.correction import Fit, Network
from tilewright.planning.emulated import of_pieces
from tilewright.planning.packing import Alignment, Stack
from tilewright.planning.ranking import Ranking, estimate_us, packings_for, ranked, ranked_for_group, whole_space
from tilewright.problem import Gemm, Order
from tilewright.problem.block_scales import BlockScales
from tilewright.problem.emulation import BF16X3, BF16X9, F16X3
from tilewright.problem.epilogue import Epilogue

SIZES = (1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 96, 127, 128, 129, 191, 192, 255, 256, 257, 384, 512, 513)
SIZES += (1000, 1023, 1024, 1025, 2048, 3000, 4096, 8192, 16384)
FORMATS: tuple[dict[str, Any], ...] = (
    {"dtype": BF16, "out": BF16},
    {"dtype": F16, "out": F32},
    {"dtype": F32, "product": TF32},
    {"dtype": F32},
)
GPUS = {name: replace(device(name), name=f"{name}, made up") for name in ("H200", "A100 SXM 80 GB", "RTX 4090", "T4")}
"""With names of their own: what is kept of a table of candidates is kept by device."""
CONSTANTS = {"launch": 2.5, "persistent": 0.5, "split": 0.75, "dependent": -0.75, "room": -0.5, "crowded": 0.0625}
CONSTANTS |= {"waves": -0.25, "epilogue": 1500.0, "staged": 0.125, "per_thread": 0.25, "swapped": 0.1875, "narrow": 2.5}
CONSTANTS |= {"hidden": 0.375, "iteration": 70.0, "latency": 2000.0, "mma": 1.0625, "arrival": 90.0, "l2": 800.0}
CONSTANTS |= {"boxes": 0.5, "outside": 0.625, "crowd": 0.25, "dram": 0.9375, "busy": 0.125, "overlap": 0.3125}


def made_up_network(features: int, size: float) -> Network:
    """Of each feature two ramps, and one along both."""
    knots = [[0.5, 3.0 + at % 3, 5.5 + at % 5] for at in range(features)]
    weights = [size * (2 + at) for at in range(features) for _ in range(2)] + [-size * at for at in range(features)]
    return Network.from_json({"knots": knots, "layers": [{"weights": [[one] for one in weights], "bias": [0.0625]}]})


FIT = Fit(CONSTANTS, made_up_network(36, 2**-10), made_up_network(12, 2**-9))


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is fitted is made up, and nothing that was kept of it stays."""
    for module, name in ((plans, "fit_for"), (ranking, "fit_for")):
        monkeypatch.setattr(module, name, lambda *asked: FIT)
    monkeypatch.setattr(wgmma_terms, "constants", lambda dtype: wgmma_terms.Constants(**CONSTANTS))
    monkeypatch.setattr(spaces, "_CORES", {})  # tables keep what they cost
    kept = plans.shared_factor, ragged._candidates
    for one in kept:
        one.cache_clear()
    yield
    for one in kept:
        one.cache_clear()


def told_of(found: Ranking) -> Iterator[str]:
    for table in found.tables:
        us = 1e6 * table.seconds[np.isfinite(table.seconds)]
        columns = {name: np.broadcast_to(getattr(table.columns, name), len(table.columns)) for name in known(table)}
        means = crc32(" ".join(f"{name} {mean(column)}" for name, column in columns.items()).encode())
        packing = "".join(sorted(table.packing.packed)) + "".join(sorted(table.packing.transposed)).lower()
        padded = "+" * table.packing.tile_multiples
        yield f"  {table.kind} {packing}{padded} {len(us)}/{len(table.seconds)} {geometric_mean(us)} {means:08x}"


def drawn_problems(seed: int, most: int) -> Iterator[tuple[str, Gemm, Alignment, dict[str, Any]]]:
    """Problems of sizes around boundaries, with all that a choice is told."""
    rng = Random(seed)
    for _ in range(most):
        m, n, k = (rng.choice(SIZES) for _ in range(3))
        if m * n * k > 2**36:
            continue
        a, b = rng.choice((Order.ROW, Order.COL)), rng.choice((Order.ROW, Order.COL))
        beta, c = rng.choice((0.0, 0.0, 0.5)), rng.choice((Order.ROW,))
        gemm = Gemm(m, n, k, a=a, b=b, c=c, beta=beta, **rng.choice(FORMATS))
        stack, alignment = None, alignment_of(gemm)
        if rng.random() < 0.25:
            stack = Stack(rng.choice((2, 5, 16, 132, 133)), m * k, rng.choice((0, k * n, -k * n)), m * n)
        if rng.random() < 0.2:
            alignment = Alignment(alignment.a, min(alignment.b, rng.choice((4, 8))), min(alignment.c, 8))
        keep = rng.random() < 0.15
        words = f"{m}x{n}x{k} {gemm.dtype}{' as tf32' * gemm.multiplies_tf32} -> {gemm.out} {a.name} {b.name} {beta:g}"
        words += (f", {stack.count} of them" if stack else "") + ", in order" * keep
        yield words, gemm, alignment, {"stack": stack, "keep_order": keep}


def lines(spec: DeviceSpec, problems: Iterator[tuple[str, Gemm, Alignment, dict[str, Any]]]) -> Iterator[str]:
    for words, gemm, alignment, options in problems:
        found = ranked(gemm, spec, alignment, **options)
        first = f"{found[0][0]:.7g} us {found[0][1]}" if len(found) else "nothing"
        yield f"{words}: {first}"
        yield from told_of(found)


@pytest.mark.parametrize(("name", "seed", "most"), [("H200", 1, 90), ("A100 SXM 80 GB", 2, 30), ("RTX 4090", 3, 25)])
def test_sizes_at_boundaries(name: str, seed: int, most: int, golden: Callable[[str, str], None]) -> None:
    text = "\n".join(lines(GPUS[name], drawn_problems(seed, most)))
    golden(f"boundaries/{name.split()[0].lower()}.txt", text + "\n")


def formats_of_their_own() -> Iterator[tuple[str, Gemm, Alignment, dict[str, Any]]]:
    """FP8 with and without promotion and scales of blocks, and products of pieces."""
    fp8: dict[str, Any] = {"dtype": E4M3, "out": BF16, "b": Order.COL}
    for (m, n, k), every in product(((128, 128, 128), (129, 4096, 512), (8, 256, 16384), (1024, 1024, 1040)), (0, 128)):
        gemm = Gemm(m, n, k, epilogue=Epilogue(scale=("a", "b")), **fp8)
        yield f"{m}x{n}x{k} e4m3 promoted {every}", gemm, alignment_of(gemm), {"promote_every": every}
    for (m, n, k), (a, b) in product(((128, 512, 512), (4096, 384, 1024)), ((1, 128), (128, 128), (1, 1))):
        gemm = Gemm(m, n, k, block_scales=BlockScales(a, b), **fp8)
        yield f"{m}x{n}x{k} e4m3 blocks {a} {b}", gemm, alignment_of(gemm), {"promote_every": 128}
    for (m, n, k), how in product(((8, 4096, 4096), (64, 1024, 8192), (1000, 520, 260)), (BF16X3, BF16X9, F16X3)):
        gemm = Gemm(m, n, k, F32, b=Order.COL)
        found = of_pieces(Request(gemm, alignment_of(gemm), algorithm=how))
        yield f"{m}x{n}x{k} by {how}", found.gemm, found.alignment, {}


def test_formats_at_boundaries(golden: Callable[[str, str], None]) -> None:
    told = list(lines(GPUS["H200"], formats_of_their_own()))
    for name in ("RTX 4090", "A100 SXM 80 GB", "T4"):
        told += [name, *lines(GPUS[name], (one for one in formats_of_their_own() if one[1].pieces is None))]
    golden("boundaries/formats.txt", "\n".join(told) + "\n")


def other_choices() -> Iterator[str]:
    """Whole spaces, groups, single plans, and clusters that are asked for."""
    spec, rng = GPUS["H200"], Random(4)
    for family, (m, n, k) in product(("wgmma", "mma", "simt"), ((128, 256, 64), (200, 24, 1024))):
        gemm = Gemm(m, n, k, **FORMATS[3 if family == "simt" else 0])
        found = whole_space(gemm, spec, alignment_of(gemm), family=family)
        yield f"all {family} of {m}x{n}x{k}: {found.priced}, {len(found)}, {found[0][0]:.7g} us {found[0][1]}"
        yield from told_of(found)
        drawn = found.drawn(5, seed=3) + found.of_each_table(6)
        yield "  " + " ".join(f"{us:.7g}" for us, _ in drawn)
        for us, config in drawn[:4]:
            alone = estimate_us(config, gemm, spec, alignment_of(gemm))
            yield f"  {us:.7g} {alone:.7g} {estimate_us(config, gemm, spec, alignment_of(gemm), Stack(3, 1, 1, 1)):.7g}"
    for sizes in ((), (2,), (4, 8)):
        gemm = Gemm(64, 512, 8192, BF16, out=BF16)
        yield f"clusters {sizes}"
        yield from told_of(ranked(gemm, spec, alignment_of(gemm), cluster_k=sizes))
    for name, number in zip(GPUS, numbers(), strict=False):
        gemms = [Gemm(rng.choice(SIZES), rng.choice(SIZES), 64 * k, **FORMATS[number % 4]) for k in (1, 2, 5)]
        found_us = [us for us, _ in ranked_for_group(gemms, GPUS[name])]
        yield f"groups on {name}: {len(found_us)} {geometric_mean(found_us)} {found_us[0]:.7g}"


def test_other_choices_at_boundaries(golden: Callable[[str, str], None]) -> None:
    golden("boundaries/others.txt", "\n".join(other_choices()) + "\n")


def test_packings_at_boundaries(golden: Callable[[str, str], None]) -> None:
    """Every order and alignment of a format, on either side of each size that decides."""
    told = []
    for at, (kind, (a, b), sizes) in enumerate(
        product(
            ("wgmma", "mma", "simt"),
            product((Order.ROW, Order.COL), repeat=2),
            ((128, 128, 16), (128, 127, 16), (129, 128, 17), (8, 4096, 4096), (4096, 8, 4096), (4096, 4096, 8)),
        )
    ):
        for formats, aligned in product((*FORMATS, {"dtype": E4M3}), ((16, 16, 16), (8, 16, 16), (16, 4, 8))):
            if formats["dtype"] is E4M3 and kind == "simt":
                continue
            gemm = Gemm(*sizes, a=a, b=b, **formats)
            ways = packings_for(kind, gemm, Alignment(*aligned), Stack(2, 1, 1, 1) if at % 2 else None)
            words = ("".join(sorted(w.packed)) + "".join(sorted(w.transposed)).lower() + "+" * w[2] for w in ways)
            told.append(f"{kind} {a.name} {b.name} {sizes} {gemm.dtype} {aligned}: {' | '.join(words)}")
    golden("boundaries/packings.txt", "\n".join(told) + "\n")
