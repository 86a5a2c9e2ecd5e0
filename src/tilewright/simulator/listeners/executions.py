"""How often each line is executed, by warps and by lanes."""

from __future__ import annotations

from tilewright.simulator.events import Access, Arithmetic, Branch, Issue, Iterations, Meeting
from tilewright.simulator.listeners.site_counter import SiteCounter


class Executions(SiteCounter):
    """executions: warps that executed the line, once each time (for a loop: each time around).

    lane_executions: lanes that did. A load whose guard is false in all lanes of a warp is still executed by the
    warp, as a predicated instruction is on the hardware; it makes no request.
    """

    fields = ("executions", "lane_executions")

    def accessed(self, access: Access) -> None:
        if not access.continued:
            self.add(access.site, access.issued_warps, access.executing_lanes)

    def issued(self, issue: Issue) -> None:
        self.add(issue.site, issue.warps, issue.lanes)

    def computed(self, arithmetic: Arithmetic) -> None:
        times = arithmetic.times
        self.add(arithmetic.site, arithmetic.warps * times, arithmetic.lanes * times)

    def met(self, meeting: Meeting) -> None:
        self.add(meeting.site, meeting.warps, meeting.lanes)

    def branched(self, branch: Branch) -> None:
        self.add(branch.site, branch.warps, branch.lanes)

    def iterated(self, iterations: Iterations) -> None:
        times = iterations.times
        self.add(iterations.site, iterations.warps * times, iterations.lanes * times)
