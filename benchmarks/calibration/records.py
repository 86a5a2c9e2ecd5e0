"""What is compared, a record of it, and the record as a file: JSON, for each rung what was simulated and measured."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from tilewright.errors import TilewrightError
from tilewright.files import parse_json, read_text, replace_file

FORMAT = 2

METRICS: dict[str, str] = {
    "global_load_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "global_load_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "global_store_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "global_store_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "shared_load_requests": "smsp__sass_inst_executed_op_shared_ld.sum",
    "shared_store_requests": "smsp__sass_inst_executed_op_shared_st.sum",
    "ldmatrix_requests": "smsp__sass_inst_executed_op_ldsm.sum",
    "async_copy_requests": "smsp__sass_inst_executed_op_ldgsts.sum",
    "shared_wavefronts": "memory_l1_wavefronts_shared",
    "shared_wavefronts_ideal": "memory_l1_wavefronts_shared_ideal",
    "hardware_shared_load_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "hardware_shared_store_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    "fma_instructions": "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum",
    "lsu_pipe_instructions": "sm__inst_executed_pipe_lsu.sum",
    "fma_pipe_instructions": "sm__inst_executed_pipe_fma.sum",
    "tensor_pipe_instructions": "sm__inst_executed_pipe_tensor.sum",
    "all_instructions": "smsp__inst_executed.sum",
    "l2_hit_rate_percent": "lts__t_sector_hit_rate.pct",
    "achieved_occupancy_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
}
"""Our name of each count, and the metric of Nsight Compute."""

SOURCE_PAGE = ("memory_l1_wavefronts_shared", "memory_l1_wavefronts_shared_ideal")
"""The metrics that Nsight Compute computes from addresses, instruction by instruction, on its source page."""

EXACT = (
    "global_load_requests",
    "global_load_sectors",
    "global_store_requests",
    "global_store_sectors",
    "shared_load_requests",
    "shared_store_requests",
    "shared_wavefronts",
)
"""The counts that must be equal."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One count of one rung: simulated, and measured (None where the counter could not be read)."""

    rung: str
    size: int
    count: str
    simulated: float | None
    measured: float | None

    @property
    def is_equal(self) -> bool:
        return self.simulated is not None and self.simulated == self.measured


@dataclass(frozen=True, slots=True)
class Calibration:
    """What one run compared. failed: rungs that could not be counted, and why.

    sources: of each rung, which kernel was counted (`calibration.counting.source_digest`). note: what a reader of the
    page should know.
    """

    device: str
    date: str
    command: str
    size: int
    rows: tuple[Comparison, ...]
    driver: str = ""
    compiler: str = ""
    commit: str = ""
    failed: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    note: str = ""

    def of_rung(self, name: str) -> list[Comparison]:
        return [row for row in self.rows if row.rung == name]

    def without(self, name: str) -> Calibration:
        """This, with nothing about a rung."""
        return replace(
            self,
            rows=tuple(row for row in self.rows if row.rung != name),
            failed={rung: why for rung, why in self.failed.items() if rung != name},
            sources={rung: digest for rung, digest in self.sources.items() if rung != name},
        )

    def with_rung(self, name: str, digest: str, rows: Sequence[Comparison]) -> Calibration:
        """This, with these rows of a rung in place of any others."""
        rest = self.without(name)
        return replace(rest, rows=(*rest.rows, *rows), sources={**rest.sources, name: digest})


def write(path: Path, found: Calibration) -> None:
    """A calibration as JSON, a rung a line; whole or not at all, since runs are stopped."""
    head = {name.name: getattr(found, name.name) for name in fields(Calibration) if name.name != "rows"}
    rungs: dict[str, dict[str, tuple[float | None, float | None]]] = {}
    for row in found.rows:
        rungs.setdefault(row.rung, {})[row.count] = (row.simulated, row.measured)
    lines = [f" {json.dumps(name)}: {json.dumps(value)}," for name, value in {"format": FORMAT, **head}.items()]
    counts = ",\n".join(f"  {json.dumps(rung)}: {json.dumps(by_count)}" for rung, by_count in rungs.items())
    text = "\n".join(["{", *lines, ' "rungs": {', counts, " }", "}", ""])
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, text)


def read(path: Path) -> Calibration:
    """The calibration in a file. Raises TilewrightError where the file holds none, or one of a newer format."""
    try:
        data = parse_json(read_text(path))
        if data.get("format", FORMAT) > FORMAT:
            raise TilewrightError(
                f"{path.name!r} is of a newer format: {data['format']}, and this tilewright reads {FORMAT}.",
                hint="python -m pip install --upgrade tilewright",
            )
        rows = tuple(_old_rows(data) if data.get("format", 1) == 1 else _rows(data))
        known = {field.name for field in fields(Calibration)} - {"rows"}
        return Calibration(rows=rows, **{name: value for name, value in data.items() if name in known})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise TilewrightError(f"{path.name!r} is not a calibration: {error}.") from None


def _rows(data: Mapping[str, Any]) -> Iterator[Comparison]:
    for rung, by_count in data["rungs"].items():
        for count, (simulated, measured) in by_count.items():
            yield Comparison(rung, data["size"], count, simulated, measured)


def _old_rows(data: Mapping[str, Any]) -> Iterator[Comparison]:
    """Of format 1: a list of comparisons, each with all its fields."""
    for row in data["rows"]:
        yield Comparison(**{name.name: row[name.name] for name in fields(Comparison)})
