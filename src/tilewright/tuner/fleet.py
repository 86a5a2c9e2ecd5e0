"""A list of problems that any number of machines tune together: each is taken once; one that dies gives its back."""

from __future__ import annotations

import csv
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tilewright.device.spec import DeviceSpec
from tilewright.dtypes import dtype as format_called
from tilewright.errors import LaunchError, TilewrightError
from tilewright.files import read_text
from tilewright.problem.formats import format_options
from tilewright.problem.gemm import Gemm, orders_of
from tilewright.tuner.claims import LEASE_S, Claims
from tilewright.winners.keys import DeviceKey, sources_version

_LOOK_AGAIN_S = 2.0
"""Between two looks at whether another machine has died."""

_WINNER = "winner"


@dataclass(frozen=True, slots=True)
class Listed:
    """A problem of a list."""

    gemm: Gemm

    @property
    def key(self) -> str:
        return f"{self.gemm}, C in {self.gemm.out}"


@dataclass(frozen=True, slots=True)
class Report:
    """A problem that this process tuned, or could not. left: problems that nobody has finished."""

    gemm: Gemm
    failure: str
    left: int


Tune = Callable[[Gemm], str]
"""Tunes a problem and returns its winner, as a line of JSON. Raises TilewrightError where it cannot be tuned."""


def problem(m: int, n: int, k: int, dtype: str, out: str | None, order: str) -> Gemm:
    """The problem that the arguments of a command, or the columns of a list, name."""
    a, b = orders_of(order)
    gemm = Gemm(m, n, k, **format_options(dtype), a=a, b=b)
    return gemm if out is None else replace(gemm, out=format_called(out))


def listed(path: Path) -> tuple[Listed, ...]:
    """The problems of a CSV file with columns m, n, k, and dtype (f32), out, order (NN) where they are wanted; each
    once, in the order of the file. Raises TilewrightError."""
    found: dict[Listed, None] = {}
    try:
        lines = read_text(path).splitlines()
    except OSError as failure:
        raise TilewrightError(f"{path} cannot be read: {failure.strerror}.") from None
    for number, row in enumerate(csv.DictReader(lines), 2):
        try:
            m, n, k = (int(row[name]) for name in ("m", "n", "k"))
            if min(m, n, k) < 1:
                raise ValueError
        except (KeyError, TypeError, ValueError):
            raise TilewrightError(
                f"{path.name}, line {number}: {dict(row)!r} is not a problem.",
                hint="the first line is m,n,k or m,n,k,dtype,out,order; sizes are 1 or more.",
            ) from None
        found[Listed(problem(m, n, k, row.get("dtype") or "f32", row.get("out") or None, row.get("order") or "NN"))] = (
            None
        )
    if not found:
        raise TilewrightError(
            f"{path.name} has no problems.", hint="the first line is m,n,k; each other one a problem."
        )
    return tuple(found)


class Fleet:
    """The problems of a list on one kind of GPU, by the same sources.

    lease_s: after which a problem of another machine is taken for forgotten: more than tuning one takes.
    """

    def __init__(self, url: str, problems: Iterable[Listed], spec: DeviceSpec, *, lease_s: float = LEASE_S) -> None:
        items = tuple(problems)
        digest = hashlib.sha256("\n".join(item.key for item in items).encode()).hexdigest()[:12]
        name = f"list {digest}; {DeviceKey.of(spec)}; sources {sources_version()}"
        self._claims: Claims[Listed] = Claims(url, name, items, lease_s=lease_s)

    def close(self) -> None:
        self._claims.close()

    def run(self, tune: Tune, *, wait: Callable[[float], None] = time.sleep) -> Iterator[Report]:
        """Tune problems until all are finished, by this process or others. Where others work on the last ones, it
        waits: one of them may die. A problem is given back when this machine can tune nothing more."""
        claims = self._claims
        while True:
            claims.free_the_dead()
            claim = claims.claim()
            if claim is None:
                if not claims.busy:
                    return
                wait(_LOOK_AGAIN_S)
                continue
            claims.started(claim)
            failure = ""
            try:
                claims.tell_values(claim, {_WINNER: tune(claim.candidate.gemm)})
            except TilewrightError as problem:
                if isinstance(problem, LaunchError):
                    claims.release([claim])
                    raise
                failure = problem.headline
                claims.tell_failure(claim, failure)
            except BaseException:
                claims.release([claim])
                raise
            yield Report(claim.candidate.gemm, failure, self.left)

    @property
    def left(self) -> int:
        """Problems that nobody has finished, as far as is known."""
        return len(self._claims.candidates) - len(self._claims.values()) - len(self._claims.failures())

    def winners(self) -> list[str]:
        """What all processes found, as lines of JSON."""
        self._claims.refresh()
        return [str(values[_WINNER]) for values in self._claims.values().values()]
