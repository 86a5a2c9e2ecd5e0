"""`Rung`: one kernel of a ladder as data: a schedule, what it teaches, what it claims; what several of them share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeVar

from tilewright.device.spec import DeviceSpec
from tilewright.ir.buffer import Space
from tilewright.ir.program import Level
from tilewright.problem.gemm import FORMAT_OPTIONS, Gemm
from tilewright.schedule import Bind, Distribute, Relayout, Schedule, Split, Stage, Step, Vectorize


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


def on_grid() -> tuple[Step, ...]:
    """Rows of tiles along y of the grid, columns along x."""
    return Bind("m_block", Level.GRID_Y), Bind("n_block", Level.GRID_X)


def staged(*, vector: int = 1, rows: Literal["", "k"] = "", pad: int = 0) -> tuple[Step, ...]:
    """Tiles of A and B in shared memory, copied by all threads of a block, `vector` elements at once. rows: "k" where
    their rows run across k."""
    tiles = ("A_tile", "B_tile")
    copies = (Distribute(tile, vector=vector) for tile in tiles)
    lies = (Relayout(tile, rows=rows, pad=pad) for tile in tiles if rows or pad)
    return Stage("A", Space.SHARED, under="k_tile"), Stage("B", Space.SHARED, under="k_tile"), *copies, *lies


def fragments(under: str, *, vector: int = 1) -> tuple[Step, ...]:
    """Fragments of A and B in registers; they are loaded, and C is stored, in vectors."""
    vectors = (Vectorize(name, vector) for name in ("A_frag", "B_frag", "C") if vector > 1)
    return Stage("A", Space.REGISTER, under=under), Stage("B", Space.REGISTER, under=under), *vectors


def sized(schedule: Schedule, **factors: int) -> Schedule:
    """The schedule with other factors of its splits, by the loop that is split.

    >>> sized(Schedule(Split("k", 8, into=("k_tile", "k_in"))), k=16)[0]
    Split('k', 16, into=('k_tile', 'k_in'))
    """
    return Schedule(
        *(
            replace(step, by=factors[step.loop]) if isinstance(step, Split) and step.loop in factors else step
            for step in schedule
        )
    )


def wide_copies(schedule: Schedule, vector: int = 4) -> Schedule:
    """The schedule with so many elements in each access of its copies of A and B."""
    for tile in ("A_tile", "B_tile"):
        schedule = schedule.replace(Distribute(tile), Distribute(tile, vector=vector))
    return schedule


def wide_fragments(schedule: Schedule) -> Schedule:
    """The schedule with 16-byte loads of fragments, and 16-byte stores of C."""
    vectors = (Vectorize(name, 4) for name in ("A_frag", "B_frag", "C"))
    return schedule.insert(*vectors, after=Stage("B", Space.REGISTER, under="k_in"))


def rows_along_k(schedule: Schedule) -> Schedule:
    """The schedule with shared tiles whose rows run across k, behind copies of 16 bytes."""
    return schedule.insert(
        Relayout("A_tile", rows="k"), Relayout("B_tile", rows="k"), after=Distribute("B_tile", vector=4)
    )


def in_vectors(schedule: Schedule) -> Schedule:
    """The schedule with 16 bytes in every access, for which the A tile is transposed."""
    return wide_fragments(rows_along_k(wide_copies(schedule)))


NO_LOAD_CONFLICTS = Claim("no bank conflicts on shared loads", lambda c, g: c.shared_loads.excess_wavefronts == 0)
NO_STORE_CONFLICTS = Claim("no bank conflicts on shared stores", lambda c, g: c.shared_stores.excess_wavefronts == 0)
TWO_BARRIERS = Claim("two barriers a step over k", lambda c, g: c.barriers_per_k_step == 2)
ONE_BARRIER = Claim("one barrier a step over k", lambda c, g: c.barriers_per_k_step == 1)
COALESCED_STORES = Claim(
    "a warp stores 128 bytes of C: 4 sectors a request", lambda c, g: c.global_stores.sectors_per_request == 4
)
SCATTERED_STORES = Claim(
    "a warp stores 32 rows of C at once: 32 sectors a request",
    lambda c, g: c.global_stores.sectors_per_request == 32,
)
NO_B_CONFLICTS = Claim(
    "no bank conflicts on the loads of B fragments",
    lambda c, g: c.of_origin("B_frag").shared_loads.excess_wavefronts == 0,
)
F16_WMMA = Claim(
    "tensor cores do all the multiply-adds: each result takes K/16 * 2/256 instructions of a warp",
    lambda c, g: c.instructions["HMMA"] == g.m * g.n * g.k // 2048,
)
TF32_WMMA = Claim(
    "tensor cores do all the multiply-adds: four instructions of a warp for each 16 x 16 x 8",
    lambda c, g: c.instructions["HMMA"] == g.m * g.n * g.k // 512,
)
PAST_REGISTERS = Claim(
    "no element passes through a register on its way to shared memory",
    lambda c, g: c.of_origin("A_tile").instructions.keys() == {"LDGSTS.128"},
)
TWO_WAVEFRONTS = Claim(
    "a 16-byte load of a warp takes two wavefronts", lambda c, g: c.shared_loads.wavefronts_per_request == 2
)
B_TAKES_EIGHT = Claim(
    "the B fragments of a warp take eight wavefronts a load",
    lambda c, g: c.of_origin("B_frag").shared_loads.wavefronts_per_request == 8,
)
NINE_EIGHTHS = Claim(
    "each result takes 9K/8 loads from shared memory", lambda c, g: c.per_result(Space.SHARED) == 9 * g.k / 8
)


def loads(space: Space, *, over: int) -> Claim:
    """Each result takes so small a share of K loads."""
    sentence = f"each result takes K/{over} loads from {space.value} memory"
    return Claim(sentence, lambda c, g: c.per_result(space) == g.k / over)
