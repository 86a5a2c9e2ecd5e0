"""What would make the binding term of a prediction smaller, in words."""

from __future__ import annotations

from tilewright.device.spec import DeviceSpec
from tilewright.kernels.work import Access, Work
from tilewright.model.prediction import Term


def relief_of(binding: Term, work: Work, spec: DeviceSpec, blocks_per_sm: int) -> str:
    """One or two sentences about what would relieve the binding term."""
    match binding.name:
        case "shared memory":
            return _shared(work)
        case "L1":
            return _uncached(work)
        case "issue slots" | "FP32 pipe":
            return _issue(work, spec)
        case "integer pipe":
            return "Addressing takes more than the arithmetic: unroll the loop inside a tile, or load wider."
        case "tensor cores":
            return "The tensor cores are the bound: this is as fast as these formats go."
        case "L2" | "DRAM":
            return "Larger block tiles read A and B less often; a grouped order of blocks finds more of them in L2."
        case "latency":
            return _latency(work, blocks_per_sm)
        case "MMAs awaited":
            return (
                "All warps wait for the MMAs of a step before they go on: let a warpgroup of its own copy "
                "(Specialize), so that the next MMAs are issued while these run, or take longer steps over k."
            )
        case "prologue and epilogue":
            return "Each block has a short k loop: persistent blocks, or fewer split-K parts, hide its ends."
        case "waves and tail":
            return f"Tiles of another size, or split-K, would fill the {spec.sm_count} SMs more evenly."
        case "launch":
            return "The kernel is shorter than its launch: batch problems, or let it start under the one before."
        case _:
            return "More warps an SM, or loads issued earlier, would keep the units busy at once."


_LOST = 0.1
"""Share of the wavefronts of a step, from which on bank conflicts of one access are what is told."""


def _shared(work: Work) -> str:
    accesses = [one for one in work.step.accesses if one.space == "shared"]
    if not accesses:
        return "wgmma reads its operands from shared memory: a wider tile reads each of them less often."
    lost = max(accesses, key=_conflicts)
    if _conflicts(lost) > _LOST * sum(one.wavefronts for one in accesses):
        each, conflicts = lost.wavefronts / lost.requests, _conflicts(lost) / lost.requests
        if lost.copies:
            return (
                f"{each:.3g} wavefronts a copy of {lost.name}, {conflicts:.3g} of them bank conflicts of what cp.async "
                "reads and writes: copy more bytes a lane, or let tile or matrix have rows of another length."
            )
        return (
            f"{each:.3g} wavefronts a {lost.kind} of {lost.name}, {conflicts:.3g} of them bank conflicts: pad, swizzle "
            "or permute the tile."
        )
    most = max(accesses, key=lambda one: one.wavefronts)
    few = "few" if _conflicts(most) else "none"
    return (
        f"{most.name}: {most.wavefronts / most.requests:.3g} wavefronts a {most.kind}, {few} of them bank conflicts: "
        "only larger thread tiles, which use what they load more often, would save any."
    )


def _conflicts(access: Access) -> float:
    """Wavefronts that bank conflicts cost."""
    return float(access.wavefronts - access.ideal)


def _uncached(work: Work) -> str:
    loaded = (one for one in work.step.accesses if one.space == "global")
    worst = max(loaded, key=lambda one: one.lines, default=None)
    if worst is not None and worst.lines > 2 * worst.requests:
        return (
            f"A {worst.kind} of {worst.name} touches {worst.lines / worst.requests:.3g} lines: let neighbouring lanes "
            "take neighbouring elements."
        )
    return "Every multiply-add loads its operands from global memory: stage tiles of A and B in shared memory."


def _issue(work: Work, spec: DeviceSpec) -> str:
    loads = sum(one.requests for one in work.step.accesses) / max(work.step.fp32, 1)
    if loads > 0.25:
        return f"{loads:.2g} loads and stores for each FFMA: larger thread tiles, or wider loads."
    if spec.ffma_issue_interval_clk > 1:
        return "FFMA fill the FP32 pipe, at two clocks each: only tensor cores are faster."
    return (
        "FFMA fill most issue slots: only tensor cores are much faster. Another order of the FMAs, in which neighbours "
        "share an operand (Snake), saves a few percent."
    )


def _latency(work: Work, blocks_per_sm: int) -> str:
    more = "more than one block an SM" if blocks_per_sm == 1 else "more blocks an SM"
    if work.load_groups and not work.steps_ahead:
        times = f"{work.load_groups:.3g} times in every step" if work.load_groups > 1 else "in every step"
        return f"Loads are waited for {times}: prefetch or pipeline the tiles, or make room for {more}."
    return f"More stages, fewer barriers, or room for {more}, would cover the waits."
