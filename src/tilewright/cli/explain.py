"""`tilewright explain`: a schedule with the counts that each line caused."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.text import Text

from tilewright.cli import output
from tilewright.cli.arguments import ArchName, AsJson, FormatName, OwnSize, RungName, chosen_problem, formats_of
from tilewright.device.arch import arch as known_arch
from tilewright.device.catalog import H200
from tilewright.model.l2 import L2Estimate
from tilewright.report.collect import target_for
from tilewright.report.costs import Cost
from tilewright.report.explain import Explanation, sentence
from tilewright.report.explain import explain as explanation_of
from tilewright.report.outlook import outlook
from tilewright.toolchain import build, check_compilable
from tilewright.units import counted

EXAMPLES = (
    "tilewright explain worklog/6",
    "tilewright explain worklog/naive --size 128",
    "tilewright explain worklog/6 --device 'RTX 3090'",
    "tilewright explain worklog/5 --json | jq '.largest'",
)


def explain(
    rung: RungName,
    size: OwnSize = None,
    dtype: FormatName = None,
    device: Annotated[str | None, typer.Option(metavar="NAME", help="Predict for this GPU.")] = None,
    arch: ArchName = None,
    as_json: AsJson = False,
) -> int:
    """Say what each line of a rung's schedule costs, and why.

    The rung is simulated; every count is exact, and what is estimated is called so. Counts are laid beside the line
    that decides them. It ends in what to do: edits of the schedule that were tried, with what is predicted of each.
    """
    found, gemm = chosen_problem(rung, size, **formats_of(dtype))
    spec = target_for(device, arch, None).spec or H200
    built = build(gemm, found.on(spec))
    if arch is not None or device is not None:
        check_compilable(built.name, built.kernel, known_arch(spec.arch if arch is None else arch))
    with output.progress(f"counting {found.name}") as step:
        explanation = explanation_of(built, spec, lambda done, total: step("", done, total))
    with output.progress("trying edits of the schedule"):
        next_steps = outlook(found, spec, formats_of(dtype))
    if as_json:
        next_data = None if next_steps is None else next_steps.as_dict()
        output.print_json({"rung": found.name, **_as_dict(explanation), "what_to_do": next_data})
        return 0
    counters = explanation.counters
    console = output.out()
    output.paragraph(console, f"{found.title}: {found.idea}", style="bold")
    blocks = f"{counted(counters.grid_blocks, 'block')} of {built.source.threads_per_block} threads"
    output.paragraph(console, f"{gemm.m} x {gemm.n} x {gemm.k}, {blocks}", style="dim")
    console.print()
    for entry in explanation.steps:
        title = f"{entry.number:>3}  {entry.step!r}" if entry.step is not None else "     (asked for by no line)"
        console.print(Text(title, "" if entry.told else "dim"), soft_wrap=True)
        for line, cost in zip(entry.sentences, entry.told, strict=True):
            style = "bold yellow" if cost is explanation.largest else "yellow" if _wastes(cost) else "cyan"
            output.paragraph(console, line, style=style, indent=7, hanging=2)
    console.print()
    for line in explanation.summary:
        output.paragraph(console, line, style="bold" if line is explanation.summary[-1] else "")
    if next_steps is not None:
        console.print()
        for line in next_steps.sentences:
            output.paragraph(console, line, hanging=2 if line.startswith("-") else 0)
    return 0


def _wastes(cost: Cost) -> bool:
    return bool(cost.excess_wavefronts) or cost.sectors > cost.fewest_sectors


def _as_dict(explanation: Explanation) -> dict[str, Any]:
    gemm = explanation.built.gemm
    return {
        "m": gemm.m,
        "n": gemm.n,
        "k": gemm.k,
        "blocks": explanation.counters.grid_blocks,
        "threads_per_block": explanation.built.source.threads_per_block,
        "steps": [
            {
                "step": entry.number,
                "text": None if entry.step is None else repr(entry.step),
                "costs": [_cost_as_dict(cost) for cost in entry.costs],
            }
            for entry in explanation.steps
        ],
        "largest": None if explanation.largest is None else _cost_as_dict(explanation.largest),
        "estimated_l2": None if explanation.l2 is None else _l2_as_dict(explanation.l2),
        "summary": list(explanation.summary),
    }


def _l2_as_dict(l2: L2Estimate) -> dict[str, Any]:
    return {"hit_rate": l2.hit_rate, "requested_bytes": l2.requested_bytes, "dram_read_bytes": l2.dram_read_bytes}


def _cost_as_dict(cost: Cost) -> dict[str, Any]:
    data = asdict(cost)
    del data["worst"]
    return {
        **data,
        "space": None if cost.space is None else cost.space.value,
        "excess_wavefronts": cost.excess_wavefronts,
        "sentence": sentence(cost),
    }
