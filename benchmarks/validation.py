"""Predicted beside measured: every recorded and published figure of a rung, and what the time model says of it.

The model's inputs (counts of one block, blocks an SM, bytes of DRAM) are recorded, so that a change of the model is
judged over all rows in a moment, with no simulation and no compiler.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from tilewright.bench.records import recorded, recorded_folder
from tilewright.device.catalog import device
from tilewright.kernels.work import Access, Phase, WarpStep, Work
from tilewright.ladders import LADDERS, find_rung
from tilewright.model.prediction import Prediction
from tilewright.model.time import predict_time
from tilewright.prediction.counting import work_of
from tilewright.prediction.predict import dram_bytes
from tilewright.prediction.waits import with_waits
from tilewright.problem.formats import format_name, format_options
from tilewright.runtime.cubin_cache import CubinCache
from tilewright.toolchain import Build, build

OURS = "recorded here"
BURSTS = "recorded here, in bursts"
UNSEEN = "recorded here, to judge"

MIXED = ("hierarchy", "swizzle")
"""Ladders of kernels with and without tensor cores, which a record times in turn."""

TOLD_APART = 0.05
"""Rungs whose speeds differ by less are as fast as each other: so much do runs and clocks differ."""

_FEWEST_RANKED = 3
_ORIGINAL = "original sources"


@dataclass(frozen=True, slots=True)
class Measured:
    """A figure of a rung on a GPU. source: who measured it. clock_mhz: of the SMs meanwhile, where it was recorded.

    mixed: that clock is the median of a run in which most kernels had no tensor cores. A GPU clocks those higher: an
    H200 1976 to 1980 MHz, and 1641 to 1806 where tensor cores multiply (benchmarks/results/warp_waits_h200.json).
    """

    rung: str
    m: int
    n: int
    k: int
    dtype: str
    device: str
    tflops: float
    source: str
    clock_mhz: float | None = None
    mixed: bool = False

    @property
    def ladder(self) -> str:
        return self.rung.split("/")[0]

    @property
    def is_original(self) -> bool:
        """Of the source that a rung was modelled on, on a GPU where the rung itself was measured as well."""
        return _ORIGINAL in self.source

    @property
    def held_out(self) -> bool:
        """Whether this figure only judges the model. Terms and constants are chosen on the others, since 23 November
        2026. All figures of a rung are in one half, by the CRC-32 of its name, whatever the GPU, size and formats."""
        return crc32(self.rung.encode()) % 2 == 1

    @property
    def key(self) -> str:
        """What the model's inputs depend on."""
        return f"{self.rung} {self.m}x{self.n}x{self.k} {self.dtype} {self.device}"


@dataclass(frozen=True)
class Case:
    """A measured figure with the inputs of the model."""

    measured: Measured
    work: Work
    blocks_per_sm: int
    dram_bytes: float

    @cached_property
    def predicted(self) -> Prediction:
        """At the clock that was recorded with the figure, else at that of the data sheet; with tensor cores in a mixed
        run at no higher one than that of the data sheet's tensor figures."""
        spec, clock_mhz = device(self.measured.device), self.measured.clock_mhz
        if clock_mhz is not None and self.measured.mixed and self.work.inputs:
            clock_mhz = min(clock_mhz, spec.tensor_clock_mhz)
        return predict_time(
            self.work, spec, blocks_per_sm=self.blocks_per_sm, dram_bytes=self.dram_bytes, clock_mhz=clock_mhz
        )

    @property
    def unclocked(self) -> Case:
        """The same, predicted as if no clock had been recorded."""
        return replace(self, measured=replace(self.measured, clock_mhz=None))

    @property
    def limited(self) -> Case:
        """The same, predicted at the clock that the power limit of the board leaves."""
        kept_mhz = self.predicted.sustained_hz / 1e6
        return replace(self, measured=replace(self.measured, clock_mhz=kept_mhz))

    @property
    def error(self) -> float:
        """Of the predicted TFLOP/s, as a share of the measured ones."""
        return self.predicted.tflops / self.measured.tflops - 1


def measured_rows() -> list[Measured]:
    """Every figure there is: our records, the newest of each, then the published ones.

    A ladder's rungs were timed in turn in one run, at one clock and power. Bursts after pauses are another kind of run,
    at higher clocks: their figures stand by themselves, in no order with a ladder's.
    """
    found: dict[tuple[str, str], Measured] = {}
    for ladder in LADDERS:
        for record in recorded(ladder):
            spec = device(record.origin.device)
            size = (record.m, record.n, record.k)
            clock_mhz = record.origin.clock_mhz
            told = (record.rung, *size, record.dtype, spec.name, record.tflops, OURS, clock_mhz)
            one = Measured(*told, mixed=ladder in MIXED)
            found[one.key, OURS] = one
    for line in (recorded_folder() / "hopper_h200.jsonl").read_text(encoding="utf-8").splitlines():
        record_of = json.loads(line)
        if record_of["candidate"] != "cuBLAS":
            m, n, k = record_of["shape"]
            spec, tflops = device(record_of["device"]), record_of["burst"]["tflops"]
            one = Measured(record_of["candidate"], m, n, k, record_of["dtype"], spec.name, tflops, BURSTS)
            found[one.key, BURSTS] = one
    return [*found.values(), *_published()]


def unseen_rows(record: str = "rung_sizes_h100.json") -> list[Measured]:
    """Rungs at sizes that were timed to judge the model (benchmarks/rung_sizes.py)."""
    return [one for one, _ in _unseen(record)]


def unseen_inputs(record: str) -> dict[str, dict[str, Any]]:
    """What the record has of the machine code that was timed: inputs of the model, by the key of a figure."""
    found: dict[str, dict[str, Any]] = {}
    for one, code in _unseen(record):
        if code is not None:
            blocks, rounds, *step = code
            found[one.key] = {"blocks_per_sm": int(blocks), "load_groups": rounds, "read": step or None}
    return found


def _unseen(record: str) -> list[tuple[Measured, list[float] | None]]:
    told = json.loads((recorded_folder() / record).read_text(encoding="utf-8"))
    spec, found = device(told["origin"]["device"]), []
    for sizes, of in told["sizes"].items():
        m, n, k = (int(part) for part in sizes.split("x"))
        codes = of.get("code", [None] * len(told["rungs"]))
        for name, us, code in zip(told["rungs"], of["us"], codes, strict=True):
            if us is None:
                continue
            gemm = find_rung(name).gemm(m, n, k)
            size, tflops = (gemm.m, gemm.n, gemm.k), gemm.flops / us / 1e6
            told_of = (name, *size, format_name(gemm), spec.name, tflops, UNSEEN, of["clock_mhz"])
            found.append((Measured(*told_of, mixed=True), code))
    return found


def _published() -> list[Measured]:
    with (recorded_folder() / "published.csv").open(encoding="utf-8", newline="") as file:
        return [
            Measured(
                *(row["rung"], int(row["m"]), int(row["n"]), int(row["k"]), row["dtype"]),
                *(device(row["gpu"]).name, float(row["tflops"]), row["source"]),
            )
            for row in csv.DictReader(file)
        ]


# -- inputs of the model -----------------------------------------------------------------------------------------------


def built_for(one: Measured) -> Build:
    """The rung of a figure, at its size and formats."""
    rung = find_rung(one.rung)
    return build(rung.gemm(one.m, one.n, one.k, **format_options(one.dtype)), rung.on(device(one.device)))


def collect(rows: Iterable[Measured], cache: CubinCache) -> dict[str, dict[str, Any]]:
    """The inputs for some figures, as plain values: simulated and compiled."""
    inputs: dict[str, dict[str, Any]] = {}
    told: dict[str, Any]
    for one in rows:
        if one.key in inputs:
            continue
        built, spec = built_for(one), device(one.device)
        cubin, work = built.compile(spec.arch, cache=cache), work_of(built)
        blocks = built.occupancy(spec, cubin).blocks_per_sm
        moved = round(dram_bytes(built, spec, blocks))
        told = {"blocks_per_sm": blocks, "dram_bytes": moved}
        waiting = with_waits(work, built, cubin, spec)
        if waiting.load_groups != work.load_groups:
            told["load_groups"] = round(float(waiting.load_groups), 3)
        if waiting.read is not None:
            told["read"] = [round(float(number), 3) for number in astuple(waiting.read)]
        inputs[one.key] = {**told, "work": plain(work)}
    return inputs


def plain(work: Work) -> dict[str, Any]:
    """Plain values of what a block does, zeros left out, numbers as short as they are exact enough; an access by the
    values of its fields in order, the last zeros left out."""

    def short(value: Any) -> Any:
        if isinstance(value, dict):
            kept = {name: part for name, part in value.items() if part not in (0, "", False, (), None)}
            return {
                name: [ordered(one) for one in part] if name == "accesses" else short(part)
                for name, part in kept.items()
            }
        if isinstance(value, (list, tuple)):
            return [short(part) for part in value]
        if isinstance(value, float):
            return int(value) if value.is_integer() else round(value, 4)
        return value

    def ordered(access: dict[str, Any]) -> list[Any]:
        values = [int(value) if isinstance(value, bool) else short(value) for value in access.values()]
        while not values[-1]:
            values.pop()
        return values

    return dict(short(asdict(work)))


def _work(data: dict[str, Any]) -> Work:
    def phase(part: dict[str, Any]) -> Phase:
        accesses = tuple(Access(*one) for one in part.get("accesses", ()))
        return Phase(**{**part, "accesses": accesses})

    return Work(**{**data, "step": phase(data.get("step", {})), "rest": phase(data.get("rest", {}))})


def inputs_file() -> Path:
    """Where the inputs are recorded."""
    return recorded_folder() / "model_inputs.json"


def write_inputs(inputs: Mapping[str, Mapping[str, Any]]) -> None:
    """Records them, a line each. A work that stands there already, on another GPU, is told by its key."""
    lines: list[str] = []
    first: dict[str, str] = {}
    for key, value in inputs.items():
        same = first.setdefault(json.dumps(value["work"]), key)
        told = dict(value) if same == key else {**value, "work": same}
        lines.append(f"{json.dumps(key)}: {json.dumps(told, separators=(',', ':'))}")
    inputs_file().write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def cases() -> list[Case]:
    """Every figure with its recorded inputs; those without are left out."""
    data = json.loads(inputs_file().read_text(encoding="utf-8"))

    def whole(found: dict[str, Any]) -> dict[str, Any]:
        work = found["work"]
        return {**found, "work": data[work]["work"]} if isinstance(work, str) else found

    rows = measured_rows()
    return [case_of(one, whole(found)) for one in rows if (found := data.get(one.key)) is not None]


def case_of(one: Measured, inputs: Mapping[str, Any]) -> Case:
    """A figure with its inputs, as `collect` has them. load_groups, read: as the machine code waits."""
    work = _work(inputs["work"])
    read = WarpStep(*inputs["read"]) if inputs.get("read") else None
    work = replace(work, load_groups=inputs.get("load_groups", work.load_groups), read=read)
    return Case(one, work, inputs["blocks_per_sm"], inputs["dram_bytes"])


# -- sustained ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sustained:
    """A figure of stretches of half a second at the board's power limit. clock_mhz: that the SMs had."""

    case: Case
    us: float
    clock_mhz: float

    @property
    def error(self) -> float:
        """Of the sustained speed that is predicted."""
        return self.us * 1e-6 / self.case.predicted.sustained_s - 1

    @property
    def burst_error(self) -> float:
        """If power had no limit."""
        return self.us * 1e-6 / self.case.predicted.seconds - 1


def sustained_cases() -> list[Sustained]:
    """Every sustained figure of a rung whose inputs are recorded; none is among what energies are fitted to."""
    known = {case.measured.key: case.unclocked for case in cases()}
    found: dict[str, Sustained] = {}
    for name in ("hopper_h200.jsonl", "ampere_h200.jsonl"):
        for text in (recorded_folder() / name).read_text(encoding="utf-8").splitlines():
            line = json.loads(text)
            m, n, k = line["shape"]
            one = Measured(line["candidate"], m, n, k, line["dtype"], device(line["device"]).name, 0.0, name)
            if line.get("sustained") and line["orders"] == "NN" and one.key in known:
                us, clock_mhz = line["sustained"]["us"], line["sustained"]["clock_mhz"]
                found[one.key] = Sustained(known[one.key], us, clock_mhz)
    return list(found.values())


# -- how good it is ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Of some figures. mean_error, bias: shares. within_20, within_interval: shares of the rows.

    spearman: correlation of the ranks of rungs at one size, meant over the sizes with three rungs or more. in_order: of
    pairs of rungs at one size and in the same formats whose measured speeds differ by more than TOLD_APART, the share
    that is predicted in the right order.
    """

    rows: int
    mean_error: float
    bias: float
    within_20: float
    within_interval: float
    spearman: float | None
    in_order: float | None


def accuracy(some: Sequence[Case]) -> Accuracy:
    """How near the predictions are to what was measured."""
    errors = np.array([case.error for case in some])
    ratios = np.array([case.predicted.tflops / case.measured.tflops for case in some])
    lows = np.array([case.predicted.low_s / case.predicted.seconds for case in some])
    highs = np.array([case.predicted.high_s / case.predicted.seconds for case in some])
    return Accuracy(
        rows=len(some),
        mean_error=float(np.abs(errors).mean()),
        bias=float(errors.mean()),
        within_20=float((np.abs(errors) <= 0.2).mean()),
        within_interval=float(((lows <= ratios) & (ratios <= highs)).mean()),
        spearman=_rank_correlation(some),
        in_order=_in_order(some),
    )


def _rank_correlation(some: Sequence[Case]) -> float | None:
    """Over rungs at one size; those that are measured in several formats count in each."""
    found = [
        spearman([case.measured.tflops for case in group], [case.predicted.tflops for case in group])
        for group in _groups(some, lambda case: (case.measured.m, case.measured.n, case.measured.k))
        if len({case.measured.rung for case in group}) >= _FEWEST_RANKED
    ]
    return sum(found) / len(found) if found else None


def _in_order(some: Sequence[Case]) -> float | None:
    told = [
        (one.measured.tflops - other.measured.tflops) * (one.predicted.tflops - other.predicted.tflops) > 0
        for group in _groups(
            some, lambda case: (case.measured.m, case.measured.n, case.measured.k, case.measured.dtype)
        )
        for one, other in combinations(group, 2)
        if abs(one.measured.tflops / other.measured.tflops - 1) > TOLD_APART
    ]
    return sum(told) / len(told) if told else None


def _groups(some: Iterable[Case], key: Callable[[Case], Hashable]) -> Iterable[list[Case]]:
    groups: dict[Hashable, list[Case]] = {}
    for case in some:
        groups.setdefault(key(case), []).append(case)
    return groups.values()


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Correlation of ranks, equal values sharing theirs; 1 for fewer than two.

    >>> spearman([1, 2, 3], [10, 20, 30]), spearman([1, 2, 3], [3, 2, 1])
    (1.0, -1.0)
    """
    if len(a) < 2:
        return 1.0
    ranks = [np.array([sum(y < x for y in of) + (sum(y == x for y in of) - 1) / 2 for x in of]) for of in (a, b)]
    return round(float(np.corrcoef(ranks[0], ranks[1])[0, 1]), 6)


def by_ladder_and_gpu(some: Iterable[Case]) -> dict[tuple[str, str, str], list[Case]]:
    """Figures by ladder, GPU and source."""
    groups: dict[tuple[str, str, str], list[Case]] = {}
    for case in some:
        groups.setdefault((case.measured.ladder, case.measured.device, case.measured.source), []).append(case)
    return groups
