"""What a call runs, as a value: the launches of each of its products, estimates, the bound of its precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tilewright.dtypes import DType
from tilewright.errors import ProblemError
from tilewright.html_text import table
from tilewright.planning.account import ALWAYS, Account, Launch
from tilewright.units import format_bytes

COLUMNS = ("launch", "what", "kernel", "grid", "estimated", "runs")


@dataclass(frozen=True, slots=True)
class ProductPlan:
    """How one product of a call is computed.

    m, n, k: as kernels have them: where `swapped`, C is computed transposed. batch: matrices of each launch. repeats:
    how often the launches are started, at other addresses. runs: the account of what is launched. next_best: other
    plans, best first.
    """

    m: int
    n: int
    k: int
    batch: int
    repeats: int
    swapped: bool
    runs: Account
    next_best: tuple[Account, ...] = ()

    @property
    def title(self) -> str:
        """The size, for people."""
        each = f"{self.m} x {self.n} x {self.k}"
        each = f"{self.batch} of {each}" if self.batch > 1 else each
        return f"{each}, {self.repeats} times" if self.repeats > 1 else each

    @property
    def flops(self) -> int:
        """Multiplications and additions of all."""
        return 2 * self.m * self.n * self.k * self.batch * self.repeats


@dataclass(frozen=True, slots=True)
class CallPlan:
    """What `tilewright.plan` returns.

    device: the GPU. shape: of the result. dtype, out: formats of the operands and of the result. precision: as asked.
    copied: arguments that are copied before, as no kernel reads or writes them as they lie. products: in the order of
    their launches; none for an empty result. bound: W of |C - AB| <= W u |A||B|, u = 2**-24, elementwise, beside
    underflow (docs/accuracy.md); None where none is stated. note: of products of complex numbers. Times are estimates,
    in microseconds.
    """

    device: str
    shape: tuple[int, ...]
    dtype: DType
    out: DType
    precision: str
    copied: tuple[str, ...]
    products: tuple[ProductPlan, ...]
    bound: float | None = None
    note: str = ""
    _ran: Callable[[], tuple[str, ...]] | None = field(default=None, repr=False, compare=False)

    @property
    def launches(self) -> tuple[Launch, ...]:
        """Every launch, in order; repeated ones once."""
        return tuple(launch for product in self.products for launch in product.runs.launches)

    @property
    def estimated_us(self) -> float:
        """Of the whole call but copies of its arguments; of a guarded product with no flag raised."""
        return sum(product.repeats * product.runs.estimated_us for product in self.products)

    @property
    def tflops(self) -> float:
        """Of the product asked for, not of those of its pieces."""
        return sum(one.flops for one in self.products) / self.estimated_us / 1e6 if self.estimated_us else 0.0

    @property
    def scratch_bytes(self) -> int:
        """Of workspace, which the products share."""
        return max((product.runs.scratch_bytes for product in self.products), default=0)

    @property
    def words(self) -> str:
        """The kernels in short."""
        return "; ".join(dict.fromkeys(product.runs.words for product in self.products))

    def ran(self) -> tuple[str, ...]:
        """Which plan the device took in the last call of this kind: for each product the algorithm of its pieces, as
        "f16x3", or what runs.

        Of a call of "f32_emulated" the device chooses, by flags in its memory: they are read now, behind all work of
        the GPU. The last call is the last that Python made, on any stream; of one that a CUDA graph recorded it is the
        last replay. Raises LaunchError where no such call was made yet, or a stream is recording a graph, ProblemError
        where the plan is not of arrays on a GPU.
        """
        if self._ran is None:
            raise ProblemError(
                "This plan is of shapes, of arrays in host memory, or for a named GPU: no call of it runs.",
                hint="ask with the arrays of the call: plan(a, b, ...).ran().",
            )
        return self._ran()

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self, width: int = 100) -> Iterator[str]:
        """The text, at most so many columns wide where words allow it."""
        from textwrap import wrap

        for sentence in self.sentences():
            yield from wrap(sentence, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        for product in self.products:
            if len(self.products) > 1:
                yield f"{product.title}:"
            for number, launch in enumerate(product.runs.launches, 1):
                first = f"{number:3}  {launch.role} {launch.what}: {launch.estimated_us:.1f} us, {_runs(launch)}"
                kernel = f"{launch.kernel}, {blocks_of(launch)}"
                yield from wrap(f"{first}, {kernel}", width, subsequent_indent=" " * 5, break_long_words=False)
            for other in product.next_best:
                found = f"next best, {other.estimated_us:.1f} us: {other.words}"
                yield from wrap(found, width, initial_indent="  ", subsequent_indent=" " * 5, break_long_words=False)

    def sentences(self) -> Iterator[str]:
        """What is computed, how fast it is estimated to be, and what is promised."""
        sizes = ", ".join(product.title for product in self.products) or f"an empty result of shape {self.shape}"
        asked = "" if self.precision == "default" else f", precision {self.precision}"
        into = "" if self.out is self.dtype else f" into {self.out}"
        yield f"{sizes}, {self.dtype}{into}{asked}, on {self.device}"
        if self.note:
            yield self.note
        if not self.products:
            return
        measured = "" if any(one.runs.winner for one in self.products) else ", not measured"
        yield f"estimated: {self.estimated_us:.1f} us, {self.tflops:.3g} TFLOP/s{measured}"
        guarded = [one.runs.fallback_us for one in self.products if one.runs.fallback_us is not None]
        if guarded:
            yield f"the device chooses by two flags; with one raised: {sum(guarded):.1f} us"
        yield f"chosen by {' and '.join(dict.fromkeys(_decision(one.runs) for one in self.products))}"
        if self.scratch_bytes:
            yield f"workspace: {format_bytes(self.scratch_bytes)}"
        if self.bound is not None:
            yield f"bound: |C - AB| <= {self.bound:.0f} u |A||B|, u = 2^-24, elementwise, beside underflow"
        if self.copied:
            yield f"copied, as no kernel takes it as it lies: {', '.join(self.copied)}"

    def as_data(self) -> dict[str, Any]:
        """Plain values, as for JSON; texts of kernels are left out."""
        return {
            "figure": "estimated",
            "device": self.device,
            "shape": list(self.shape),
            "dtype": str(self.dtype),
            "out": str(self.out),
            "precision": self.precision,
            "note": self.note,
            "copied": list(self.copied),
            "estimated_us": self.estimated_us,
            "tflops": self.tflops,
            "scratch_bytes": self.scratch_bytes,
            "bound_u": self.bound,
            "products": [_data_of(product) for product in self.products],
        }

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        title, *said = self.sentences()
        return table(title, COLUMNS, [cells_of(launch) for launch in self.launches], below="; ".join(said))


def _decision(account: Account) -> str:
    found = account.winner
    if found is None:
        return account.chosen_by
    size = f"{found.key.problem.m} x {found.key.problem.n} x {found.key.problem.k}"
    return f"{account.chosen_by}: {found.median_us:.1f} us measured at {size}, {found.date[:10]}"


def _winner_of(account: Account) -> dict[str, Any] | None:
    found = account.winner
    if found is None:
        return None
    return {**{dim: getattr(found.key.problem, dim) for dim in "mnk"}, "median_us": found.median_us, "date": found.date}


def cells_of(launch: Launch) -> tuple[str, ...]:
    """A launch as a row below `COLUMNS`."""
    return (
        launch.role,
        launch.what,
        launch.kernel,
        _times(launch.grid),
        f"{launch.estimated_us:.1f} us",
        _runs(launch),
    )


def _runs(launch: Launch) -> str:
    return launch.condition if launch.condition == ALWAYS else f"if {launch.condition}"


def blocks_of(launch: Launch) -> str:
    """The grid, for people."""
    return f"grid {_times(launch.grid)}, {launch.block[0] * launch.block[1] * launch.block[2]} threads per block"


def _times(extents: tuple[int, ...]) -> str:
    last = max((at for at, extent in enumerate(extents) if extent > 1), default=0)
    return "x".join(str(extent) for extent in extents[: last + 1])


def _data_of(product: ProductPlan) -> dict[str, Any]:
    sizes = {name: getattr(product, name) for name in ("m", "n", "k", "batch", "repeats", "swapped")}
    others = [{"words": one.words, "estimated_us": one.estimated_us} for one in product.next_best]
    names = ("role", "what", "kernel", "grid", "block", "estimated_us", "condition")
    return {
        **sizes,
        "words": product.runs.words,
        "chosen_by": product.runs.chosen_by,
        "winner": _winner_of(product.runs),
        "estimated_us": product.runs.estimated_us,
        "fallback_us": product.runs.fallback_us,
        "scratch_bytes": product.runs.scratch_bytes,
        "launches": [{name: getattr(launch, name) for name in names} for launch in product.runs.launches],
        "next_best": others,
    }
