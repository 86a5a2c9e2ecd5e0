"""The page of one rung."""

from __future__ import annotations

from collections.abc import Sequence

from pages.markdown import recorded_formats, table

from rung_pages.excerpt import main_loop
from rung_pages.gather import SPEC, Told
from tilewright.ladders import below
from tilewright.ladders.rung import Rung
from tilewright.problem.formats import format_name
from tilewright.report.collect import whats_new
from tilewright.report.explain import owner, sentence
from tilewright.report.figures import TIMED_SIZE, recorded_figure
from tilewright.units import format_bytes


def file_name(rung: Rung) -> str:
    """The page of a rung in the folder of its ladder.

    >>> from tilewright.ladders import find_rung
    >>> file_name(find_rung("worklog/6")), file_name(find_rung("worklog/best"))
    ('6_vectorised.md', 'best.md')
    >>> file_name(find_rung("hierarchy/v06_double_buffered"))
    'v06_warp_tiles_double_buffered.md'
    """
    number = rung.label.partition("_")[0]
    return f"{rung.label}.md" if rung.label == rung.slug else f"{number}_{rung.slug}.md"


def rung_page(told: Told, ladder: Sequence[Rung]) -> str:
    """One rung as Markdown, with links to its neighbours in the ladder."""
    rung = told.rung
    parts = [
        f"# {rung.title}",
        _neighbours(rung, ladder),
        f"{rung.idea[0].upper()}{rung.idea[1:]}.",
        *_new(told),
        *_program(told),
        *_cuda(told),
        *_counts(told),
        *_occupancy(told),
        *_speed(rung),
    ]
    return "\n\n".join(parts) + "\n"


def _neighbours(rung: Rung, ladder: Sequence[Rung]) -> str:
    at = [one.name for one in ladder].index(rung.name)
    links = [f"[{rung.ladder}](../README.md#{rung.ladder})"]
    if at > 0:
        links.insert(0, f"[&larr; {ladder[at - 1].title}]({file_name(ladder[at - 1])})")
    if at + 1 < len(ladder):
        links.append(f"[{ladder[at + 1].title} &rarr;]({file_name(ladder[at + 1])})")
    return " | ".join(links)


def _new(told: Told) -> list[str]:
    """The steps that changed, and what the rung claims."""
    rung, lower = told.rung, below(told.rung)
    against = "The whole schedule" if lower is None else f"Against [{lower.title}]({file_name(lower)})"
    parts = ["## What is new", f"{against}:", _fenced("diff", whats_new(rung, told.built.gemm).text)]
    if rung.claims:
        claims = "\n".join(f"* {claim.sentence}" for claim in rung.claims)
        parts += ["What it claims, and the simulator confirms in the tests:", claims]
    return parts


def _program(told: Told) -> list[str]:
    return [
        "## The program",
        "What the schedule makes of the naive loops; loops have the names that the steps give them.",
        _fenced("text", told.built.text),
    ]


def _cuda(told: Told) -> list[str]:
    command = f"tilewright show {told.rung.name} --cuda"
    return [
        "## The CUDA of it",
        f"The loop over k; `{command}` prints the whole kernel.",
        _fenced("cuda", main_loop(told.built.cuda)),
    ]


_MEMORY = ("memory", "requests:", "take:", "a request:", "fewest:", "bytes used:", "bank conflicts:")


def _counts(told: Told) -> list[str]:
    gemm, counters = told.built.gemm, told.counters
    rows: list[Sequence[str]] = []
    for name, moved in (("global loads", counters.global_loads), ("global stores", counters.global_stores)):
        if moved.requests:
            each = f"{moved.sectors_per_request:.4g}", f"{moved.fewest_sectors_per_request:.4g}"
            rows.append(
                (name, f"{moved.requests:,}", f"{moved.sectors:,} sectors", *each, f"{moved.used_share:.0%}", "")
            )
    for name, kept in (("shared loads", counters.shared_loads), ("shared stores", counters.shared_stores)):
        if kept.requests:
            each = f"{kept.wavefronts_per_request:.4g}", f"{kept.ideal_wavefronts_per_request:.4g}"
            lost = f"{kept.excess_wavefronts:,}"
            rows.append((name, f"{kept.requests:,}", f"{kept.wavefronts:,} wavefronts", *each, "", lost))
    for name, boxes in (("TMA loads", counters.bulk_loads), ("TMA stores", counters.bulk_stores)):
        if boxes.boxes:
            each_box = f"{boxes.sectors / boxes.boxes:.4g}"
            rows.append((name, f"{boxes.boxes:,} boxes", f"{boxes.sectors:,} sectors", each_box, "", "", ""))
    instructions = ", ".join(f"{count:,} {opcode}" for opcode, count in counters.instructions.items() if count)
    count = f"{counters.barriers_per_k_step:g}"
    barriers = f"{count} `__syncthreads` in each k iteration."
    return [
        "## What it costs",
        f"Simulated, exactly, at {gemm.m} x {gemm.n} x {gemm.k}, {format_name(gemm)}: "
        f"{counters.grid_blocks} blocks of {told.built.source.threads_per_block} threads.",
        "\n".join(table(_MEMORY, rows)),
        f"{barriers} Warp instructions: {instructions}.",
        "Line by line of the schedule; steps that cause no access are left out.",
        _costs(told),
    ]


def _costs(told: Told) -> str:
    """Each step that causes something, with what it causes."""
    steps = told.built.schedule.steps
    owned: dict[int | None, list[str]] = {}
    for cost in (one for one in told.costs if not one.is_predicated_off):
        owned.setdefault(owner(cost, steps), []).append(sentence(cost))
    lines = []
    for at, step in enumerate(steps):
        if at in owned:
            lines += [f"* `{step!r}`", *(f"    * {text}" for text in owned[at])]
    if None in owned:
        lines += ["* asked for by no step", *(f"    * {text}" for text in owned[None])]
    return "\n".join(lines)


def _occupancy(told: Told) -> list[str]:
    used, found, source = told.cubin.resources, told.occupancy, told.built.source
    spilled = used.spill_store_bytes + used.spill_load_bytes
    uses = {
        "registers a thread": used.registers,
        "spilled bytes a thread": spilled,
        "shared memory a block": format_bytes(told.built.kernel.shared_bytes),
        "threads a block": source.threads_per_block,
        f"blocks on an SM of {SPEC.name}": found.blocks_per_sm,
        "occupancy": f"{found.fraction:.0%}",
    }
    lines = table((f"compiled for {told.cubin.arch} by {told.cubin.compiler}", "uses:"), uses.items())
    return ["## Occupancy", "\n".join(lines), f"What stops the next block: {found.why}."]


def _speed(rung: Rung) -> list[str]:
    lines: list[tuple[str, str, str]] = []
    origins: dict[str, None] = {}
    for name in recorded_formats(rung):
        figure = recorded_figure(rung, TIMED_SIZE, name)
        if figure is not None:
            share = "" if figure.share_of_cublas is None else f"{100 * figure.share_of_cublas:.1f} %"
            lines.append((name, f"{figure.tflops:.2f}", share))
            origins[
                f"Measured on {figure.device}, {' x '.join(map(str, figure.size))}, on {figure.date[:10]} by "
                f"`{figure.command}`."
            ] = None
    if not lines:
        shapes = "[hopper](../../hopper.md)" if rung.ladder == "hopper" else ""
        also = f" Rungs of this ladder were measured over several shapes: {shapes}." if shapes else ""
        return ["## Speed", f"`tilewright ladder {rung.ladder} --gpu --record` has not recorded it yet.{also}"]
    figures = table(("formats", "TFLOP/s:", "share of cuBLAS:"), lines)
    return ["## Speed", "\n".join(figures), "\n\n".join(origins)]


def _fenced(language: str, text: str) -> str:
    return f"```{language}\n{text.rstrip()}\n```"
