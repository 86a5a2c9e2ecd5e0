"""What was measured beside what each hypothesis says, and which of them survive."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shared_memory.accesses import ARCH, REPEAT, Access, accesses
from shared_memory.counters import Counts, per_access
from shared_memory.launches import patterns_of


def records(clocks: Mapping[str, Any], hardware: Counts, source: Counts) -> list[dict[str, Any]]:
    """One record for each access and pattern: what was measured, and what each hypothesis says."""
    found = []
    for access in accesses():
        of_access = clocks.get("patterns", {}).get(access.name, {})
        for name, offsets, read in patterns_of(access):
            counted = per_access(hardware, access, name)
            derived = per_access(source, access, name)
            says = {title: each(offsets, access.width) for title, each in access.hypotheses.items()}
            clock_says = {title: each(offsets, access.width) for title, each in access.clock_hypotheses.items()}
            found.append(
                {
                    "access": access.name,
                    "pattern": name,
                    "offsets": offsets,
                    "source_offsets": read if access.is_copy else None,
                    "hardware": counted,
                    "wavefronts": counted.get(access.counter),
                    "source": derived,
                    "source_wavefronts": derived.get(_source_metric(access)),
                    "clk": of_access.get(name, {}).get("clk"),
                    "clk_one_warp": of_access.get(name, {}).get("clk_one_warp"),
                    "predicted": says,
                    "clk_predicted": clock_says or says,
                }
            )
    return found


def _source_metric(access: Access) -> str:
    return "memory_l2_theoretical_sectors_global" if access.is_global else "memory_l1_wavefronts_shared"


SHORT = {"wavefronts": "hardware", "source_wavefronts": "source", "clk": "clk"}
WITNESSES = (("wavefronts", "predicted"), ("source_wavefronts", "predicted"), ("clk", "clk_predicted"))


def agrees(witness: str, measured: float, predicted: float) -> bool:
    """Whether they are the same, given what each witness can tell.

    Address-derived counts are exact. Hardware may add a few stray wavefronts to a launch of REPEAT accesses. The
    clock includes the start and the end of the loop.
    """
    slack = {"source_wavefronts": 0.01, "wavefronts": 0.25, "clk": 0.12 * predicted + 0.2}[witness]
    return abs(measured - predicted) <= slack


def verdicts(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """access -> witness -> hypothesis -> how many patterns it fits, and those it does not, as 'name: got/said'."""
    result: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        if str(row["pattern"]).startswith("from "):
            continue  # these vary the side that is read: no hypothesis speaks of it
        for witness, said_by in WITNESSES:
            measured = row[witness]
            if measured is None:
                continue
            for title, predicted in row[said_by].items():
                found = (
                    result.setdefault(row["access"], {})
                    .setdefault(witness, {})
                    .setdefault(title, {"fits": 0, "misses": []})
                )
                if agrees(witness, measured, predicted):
                    found["fits"] += 1
                else:
                    found["misses"].append(f"{row['pattern']}: {measured:g}/{predicted}")
    return result


def summary(result: Mapping[str, Any]) -> str:
    """The lines to read first: rates, latencies, and for each access and witness which hypotheses survive."""
    clocks = result["clocks"]
    text = ["", "latency, clk: " + "; ".join(f"{k} {v:g}" for k, v in clocks.get("latency_cycles", {}).items())]
    text.append("clk an access on one SM by number of warps, conflict-free:")
    for access, by_warps in clocks.get("rates", {}).items():
        text.append(f"  {access:22}" + "  ".join(f"{warps}: {clk:g}" for warps, clk in by_warps.items()))
    text.append("access, witness, number of patterns: hypotheses that survive, or the best and measured/predicted:")
    for access, by_witness in verdicts(result["records"]).items():
        for witness, by_title in by_witness.items():
            text.append(_verdict_line(access, witness, by_title))
    missing = sum(row["wavefronts"] is None for row in result["records"])
    text.append(f"{len(result['records'])} patterns, {missing} of them without hardware counters")
    return "\n".join(text)


def _verdict_line(access: str, witness: str, by_title: Mapping[str, Mapping[str, Any]]) -> str:
    total = max(each["fits"] + len(each["misses"]) for each in by_title.values())
    alive = [title for title, each in by_title.items() if not each["misses"]]
    head = f"  {access:20} {SHORT[witness]:8} {total:3}: "
    if alive:
        more = f" and {len(alive) - 4} more" if len(alive) > 4 else ""
        return head + "SURVIVE " + ", ".join(alive[:4]) + more
    best, facts = max(by_title.items(), key=lambda item: item[1]["fits"])
    return head + f"none; best {best!r} fits {facts['fits']}; misses " + ", ".join(facts["misses"][:3])


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Every pattern: counters, clock, and what the hypotheses say."""
    text = []
    last = None
    for row in rows:
        if row["access"] != last:
            last = row["access"]
            titles = ", ".join(row["predicted"])
            text.append(f"\n{last}: wavefronts, source page, clk, clk of one warp | {titles}")
        cells = (row["wavefronts"], row["source_wavefronts"], row["clk"], row["clk_one_warp"])
        shown = "".join(f"{'-' if cell is None else format(cell, '.4g'):>8}" for cell in cells)
        said = "".join(f"{value:4}" for value in row["predicted"].values())
        extra = {name: round(value, 3) for name, value in row["hardware"].items() if value}
        short = {re.sub(r"l1tex__|_pipe_lsu|\.sum", "", name): value for name, value in extra.items()}
        text.append(f"  {row['pattern']:34}{shown} |{said} | {json.dumps(short)}")
    return "\n".join(text)


def write_result(result: Mapping[str, Any], out: Path) -> None:
    full = {**result, "verdicts": verdicts(result["records"]), "repeat": REPEAT, "arch": ARCH}
    (out / "shared_memory_rules.json").write_text(json.dumps(full, indent=1))
    (out / "shared_memory_rules.txt").write_text(summary(result) + "\n" + table(result["records"]) + "\n")
