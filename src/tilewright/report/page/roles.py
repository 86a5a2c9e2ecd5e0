"""Roles: warps of a block that always do the same, as the producer and the consumers of a specialised kernel."""

from __future__ import annotations

from tilewright.ir.async_stmt import Wgmma
from tilewright.report.page.watch import Event, Watched
from tilewright.simulator.findings import Access, Arithmetic, Issue, TmaCopy


def roles_of(watched: Watched) -> list[frozenset[int]]:
    """Warps that take part in the same events, as far as memory and arithmetic go; a lone leader counts with them."""
    seen: dict[int, set[int]] = {}
    for number, event in enumerate(watched.events):
        if _is_work(event):
            for warp in watched.warps_in(event):
                seen.setdefault(warp, set()).add(number)
    roles: list[tuple[set[int], set[int]]] = []
    for warp, events in sorted(seen.items()):
        for warps_of, known in roles:
            if events <= known or known <= events:
                warps_of.add(warp)
                known |= events
                break
        else:
            roles.append(({warp}, set(events)))
    return [frozenset(warps_of) for warps_of, _ in roles]


def _is_work(event: Event) -> bool:
    if isinstance(event, Issue):
        return isinstance(event.site.stmt, Wgmma)
    return isinstance(event, (Access, TmaCopy)) or (isinstance(event, Arithmetic) and multiplies(event))


def multiplies(event: Arithmetic) -> bool:
    return any(name == "FFMA" or name.endswith("MMA") for name in event.operations) and event.site.origin != "C"


def role_name(warps: frozenset[int]) -> str:
    first, last = min(warps), max(warps)
    if first == last:
        return f"warp {first}"
    return f"warps {first} to {last}" if len(warps) == last - first + 1 else f"{len(warps)} warps"
