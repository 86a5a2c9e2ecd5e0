"""The terms that a predicted time is made of, each in words with its numbers."""

from __future__ import annotations

from itertools import pairwise

from tilewright.model.demand import ffma_clocks
from tilewright.model.prediction import Term
from tilewright.model.sm import Sm
from tilewright.units import format_bytes

AWAITED = "MMAs awaited"
"""The term of restarts, where a block waits for its MMAs in every step."""


def bounds_of(sm: Sm, clock_hz: float) -> list[Term]:
    """What each unit alone would take, the blocks spread evenly over all SMs."""
    work, spec, step, rest = sm.work, sm.spec, sm.step, sm.rest
    blocks = work.blocks / spec.sm_count

    def seconds(each: float, end: float = 0.0) -> float:
        return float(blocks * (work.steps * each + end) / clock_hz)

    accesses = work.step.accesses
    wavefronts = sum(one.wavefronts for one in accesses)
    lost = wavefronts - sum(one.ideal for one in accesses)
    loads = sum(one.requests for one in accesses) / max(work.step.fp32 + work.step.matrix_instructions, 1)
    what = f"one a clock and scheduler; {loads:.3g} accesses for each arithmetic instruction"
    found = [Term("issue slots", seconds(step.issue, rest.issue), what)]
    if work.step.fp32:
        why = "as register banks conflict" if spec.ffma_issue_interval_clk == 1 else "as a scheduler has 16 lanes"
        what = f"FFMA, each {ffma_clocks(work, spec):.3g} clocks, {why}"
        found.append(Term("FP32 pipe", seconds(step.fp32, rest.fp32), what))
    if step.integer > step.fp32:
        found.append(Term("integer pipe", seconds(step.integer, rest.integer), "addressing and conversions"))
    if step.tensor:
        found.append(Term("tensor cores", seconds(step.tensor, rest.tensor), f"{work.inputs} into {work.sums}"))
    if wavefronts or work.step.operand_bytes or work.step.tma_bytes:
        what = f"{wavefronts:,.0f} wavefronts a step and block, {lost:,.0f} of them bank conflicts"
        if work.step.operand_bytes:
            what = f"{format_bytes(round(work.step.operand_bytes))} a step and block read by wgmma"
        found.append(Term("shared memory", seconds(step.accesses, rest.accesses), what))
    else:
        found.append(Term("L1", seconds(step.accesses, rest.accesses), "a clock for each line that a request touches"))
    strip = format_bytes(round(work.strip_bytes))
    what = f"{strip} a step and block at {spec.l2_bytes_per_clk_per_sm} bytes a clock and SM"
    found.append(Term("L2", seconds(sm.l2_clocks), what))
    return found


def exposed_of(
    sm: Sm, together: int, most: int, clock_hz: float, total: float, launch_seconds: float, bound: Term
) -> tuple[Term, ...]:
    """What comes on top of the largest bound. If that is not of the SMs, it covers all but the launch."""
    work = sm.work
    launch = Term("launch", launch_seconds, "from the kernel before to this one", "exposed")
    even = work.blocks / sm.spec.sm_count
    share = even / clock_hz
    step = sm.step_clocks(together) / together
    covered = sm.step_clocks(together, restarts=False) / together
    steps = work.steps * share
    least = bound.seconds
    busy = max(least, steps * max(sm.busy, sm.l2_clocks))
    waited = max(busy, steps * covered)
    restarted = max(waited, steps * step)
    ended = max(restarted, steps * step + share * sm.ends_clocks(together) / together)
    end = total - launch_seconds
    marks = [float(min(mark, end)) for mark in (least, busy, waited, restarted, ended)] + [end]
    blocks = f"{together} block{'s' if together > 1 else ''} an SM"
    waits = "memory, barriers and instructions" if sm.fetch(together) else "memory and barriers"
    names = (
        ("overlap", "warps do not keep all units busy at once"),
        ("latency", f"waits for {waits} that {blocks} cannot cover"),
        (AWAITED, f"from the MMAs of a step to the next, which {blocks} cannot cover either"),
        ("prologue and epilogue", "the first loads, and storing C"),
        (
            "waves and tail",
            f"{work.blocks:,} block{'s' if work.blocks > 1 else ''} over {sm.spec.sm_count} SMs: at most {most}, "
            f"on average {even:.2f}",
        ),
    )
    lengths = (after - before for before, after in pairwise(marks))
    terms = (Term(n, length, what, "exposed") for (n, what), length in zip(names, lengths, strict=True))
    return (*(one for one in terms if work.products_awaited or one.name != AWAITED), launch)
