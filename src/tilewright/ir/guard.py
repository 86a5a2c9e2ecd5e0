"""Kernels between which the device chooses: flags that kernels before raise, and what each of a plan does with them.

    a, b -> split, which raises a flag | decides | behind it: clear | raised

The kernel that decides reads both flags and writes down for those behind it whether another plan takes its place. The
first kernel of that plan lowers the flags for the next call, since nothing reads them any more: so no launch before the
splitting has to.
"""

from __future__ import annotations

from enum import Enum


class Guard(Enum):
    """When a kernel runs: else each of its blocks ends once the kernels before have."""

    DECIDES = "decides"  # where neither flag is raised; and it tells the kernels behind it
    CLEAR = "clear"  # behind it, where it ran
    RAISED = "raised"  # behind it, where it did not

    @property
    def behind(self) -> Guard:
        """Of the launches that go on with what a kernel of this one made."""
        return Guard.CLEAR if self is Guard.DECIDES else self

    @property
    def words(self) -> str:
        """When the kernel runs, for people."""
        return "a flag is raised" if self is Guard.RAISED else "no flag is raised"


GUARD_FLAGS = ("guard_a", "guard_b", "guard_fell_back")
"""The pointers of a guarded kernel, to numbers of f32 that are 0 for no: the flags of A and of B, and whether the
kernel that decides left the work to those behind it."""
