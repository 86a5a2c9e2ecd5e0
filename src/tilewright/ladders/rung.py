"""`Rung`: one kernel of a ladder as data: a schedule, what it teaches, and what it claims."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from tilewright.device.spec import DeviceSpec
from tilewright.ir.buffer import Space
from tilewright.problem.gemm import FORMAT_OPTIONS, Gemm
from tilewright.schedule import Schedule


class Traffic(Protocol):
    """Loads or stores of one memory. A request is one executed warp instruction."""

    @property
    def requests(self) -> int: ...


class GlobalTraffic(Traffic, Protocol):
    """Loads or stores of global memory; a sector is 32 bytes."""

    @property
    def sectors_per_request(self) -> float: ...


class SharedTraffic(Traffic, Protocol):
    """Loads or stores of shared memory; excess wavefronts are those that bank conflicts cost."""

    @property
    def wavefronts_per_request(self) -> float: ...
    @property
    def excess_wavefronts(self) -> int: ...


class TmaTraffic(Protocol):
    """TMA boxes: what one instruction copies. size_bytes: in shared memory; bytes_moved: of sectors of global
    memory."""

    @property
    def boxes(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def bytes_moved(self) -> int: ...


class Counts(Protocol):
    """What a claim may ask of a simulated run."""

    def of_origin(self, origin: str, /) -> Counts: ...
    def per_result(self, space: Space, /) -> float: ...
    @property
    def global_loads(self) -> GlobalTraffic: ...
    @property
    def global_stores(self) -> GlobalTraffic: ...
    @property
    def shared_loads(self) -> SharedTraffic: ...
    @property
    def shared_stores(self) -> SharedTraffic: ...
    @property
    def bulk_loads(self) -> TmaTraffic: ...
    @property
    def bulk_stores(self) -> TmaTraffic: ...
    @property
    def barriers_per_k_step(self) -> float: ...
    @property
    def instructions(self) -> Mapping[str, int]: ...


@dataclass(frozen=True, slots=True)
class Claim:
    """A sentence about a rung, and the predicate over simulated counts that makes it true.

    The counts are of a run whose sizes are multiples of the block's tile.
    """

    sentence: str
    holds: Callable[[Counts, Gemm], bool] = field(compare=False)


Point = Mapping[str, Any]
"""One choice of a rung's parameters, by name."""


@dataclass(frozen=True, slots=True)
class Choices:
    """The parameters of a rung that a search chooses: the legal points, and the schedule at each.

    shares_k: whether blocks at a point could share out the sums, where points differ in that.
    """

    points: Callable[[], Iterable[Point]]
    schedule_at: Callable[[Gemm, Point], Schedule]
    shares_k: Callable[[Point], bool] = lambda point: True


@dataclass(frozen=True)
class Rung:
    """One rung.

    ladder, label, slug: `worklog/6` is also `worklog/vectorised`; number: its place. idea: what is new, in a sentence.
    builds_on: the label of the rung that `idea` is new against. schedule: the whole schedule for a problem, whose
    tiles may depend on its size.
    choices: what a search may choose; `schedule` stands at the point that was found best.
    schedule_within: the schedule where a block may take so many bytes of shared memory; None where it is always the
    same.
    """

    ladder: str
    number: int
    slug: str
    idea: str
    schedule: Callable[[Gemm], Schedule]
    claims: tuple[Claim, ...] = ()
    builds_on: str | None = None
    problem: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""
    choices: Choices | None = None
    schedule_within: Callable[[Gemm, int], Schedule] | None = None

    def __post_init__(self) -> None:
        if not self.label:
            object.__setattr__(self, "label", str(self.number))

    @property
    def name(self) -> str:
        return f"{self.ladder}/{self.label}"

    @property
    def title(self) -> str:
        """The name with its slug, for people; the slug alone where it is the label."""
        return self.name if self.slug == self.label else f"{self.name} {self.slug}"

    def on(self, spec: DeviceSpec) -> Rung:
        """The rung as it stands on a GPU: at a preset that fits into its shared memory, if it has one."""
        within, most_bytes = self.schedule_within, spec.max_shared_bytes_per_block
        return self if within is None else replace(self, schedule=lambda gemm: within(gemm, most_bytes))

    def gemm(self, m: int, n: int, k: int, **options: Any) -> Gemm:
        """The problem this rung is about, at a size; `options` override its storage orders, dtypes and factors.

        A dtype takes the place of all the formats of the rung.
        """
        own = {key: value for key, value in self.problem.items() if "dtype" not in options or key not in FORMAT_OPTIONS}
        return Gemm(m, n, k, **{**own, **options})


class Ladder:
    """The rungs of a ladder in the making, bottom first: each is a function from a problem to a schedule.

    first: the number of the lowest. problem: what all its rungs are about, unless one says otherwise.
    """

    def __init__(self, name: str, *, first: int = 1, **problem: Any) -> None:
        self.name = name
        self.first = first
        self.problem = problem
        self.rungs: list[Rung] = []

    def rung(
        self,
        idea: str,
        *claims: Claim,
        slug: str = "",
        label: str = "",
        builds_on: str | None = None,
        choices: Choices | None = None,
        within: Callable[[Gemm, int], Schedule] | None = None,
        **problem: Any,
    ) -> Callable[[ScheduleOf], ScheduleOf]:
        """The next rung, above the function that is its schedule.

        slug: the function's name, where it says none. builds_on: the rung below, where it says none. within:
        `schedule_within`.
        """

        def add(schedule: ScheduleOf) -> ScheduleOf:
            self.rungs.append(
                Rung(
                    ladder=self.name,
                    number=self.first + len(self.rungs),
                    slug=slug or getattr(schedule, "__name__", ""),
                    idea=idea,
                    schedule=schedule,
                    claims=claims,
                    builds_on=builds_on or (self.rungs[-1].label if self.rungs else None),
                    problem=problem or self.problem,
                    label=label,
                    choices=choices,
                    schedule_within=within,
                )
            )
            return schedule

        return add


ScheduleOf = TypeVar("ScheduleOf", bound=Callable[[Gemm], Schedule])
