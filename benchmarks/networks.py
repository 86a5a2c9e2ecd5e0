"""How the networks of `planning.cost.correction` are taught, with PyTorch on the CPU: `fit_choice.py` brings rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from tilewright.planning.cost.correction import ramps_of

TEACHERS = 6
"""Networks whose mean teaches the one that is written. Each fifth of the sizes of 2,256 problems judged by the others:
one of 96 units takes 1.028 of the best plan, the mean of four 1.0247, of a boosted forest of 360 trees 1.0326."""

_UNITS = 96
"""In each hidden layer of a teacher, and of the network that is written. Of plans beside each other, of 500 drawn
problems, that one differs by 0.0097 from what six teachers say together, with 64 units and half as many epochs by
0.0130, one of the teachers by 0.0250 (logarithms)."""

_RAMPS = 8
"""Of a feature, between quantiles of what was measured and drawn; where it has no more values than that, between all of
them. Without ramps, by numbers alone: 1.0310 with one network, where it is 1.028."""

_EPOCHS, _TAUGHT_EPOCHS = 60, 24
_PROBLEMS, _TAUGHT = 48, 24
"""Of a step."""

_RATE, _DECAY = 3e-3, 1e-2
_TAUGHT_RATE, _TAUGHT_DECAY = 5e-3, 1e-4

_FAR = 0.05
"""Of logarithms: what is farther off counts by its amount, not by its square."""

_TOGETHER = 0.05
"""How much what is said of a problem's plans in the mean is held to nothing: what they have in common is learned by a
network of its own, over what the problem is. A small one that learned both took 1.0326 of the best plan instead of
1.0263 (two of the fifths)."""

_SHARED_UNITS, _SHARED_STEPS = 24, 1500
"""Of the network of what plans of a problem share."""

_BESIDE = 0.5
"""How much rows that were measured weigh beside drawn ones where a network is taught by others."""

_DIGITS = 5


class OfProblem(NamedTuple):
    """Plans of one problem. x: (plans, features). y: logarithms of measured over estimated time. w: weights. about:
    features of the problem, (1, features)."""

    x: Any
    y: Any
    w: Any
    about: Any


@dataclass(frozen=True)
class Rows:
    """Plans of problems, one behind the other. problem: of each row the number of its problem, ascending. about:
    (problems, features)."""

    x: Any
    y: Any
    w: Any
    problem: Any
    about: Any

    @classmethod
    def of(cls, found: Sequence[OfProblem]) -> Rows:
        x, y, w, about = (np.concatenate(of) for of in zip(*found, strict=True))
        return cls(x, y, w, np.repeat(np.arange(len(found)), [len(one.y) for one in found]), about)

    def where(self, kept: Any) -> Rows:
        """Some rows; problems keep their numbers."""
        return Rows(self.x[kept], self.y[kept], self.w[kept], self.problem[kept], self.about)

    def beside(self, other: Rows, weighs: float) -> Rows:
        """These, then others, whose weights are multiplied."""
        joint = (np.concatenate([getattr(self, name), getattr(other, name)]) for name in ("x", "y"))
        w, first = np.concatenate([self.w, weighs * other.w]), len(self.about)
        problem = np.concatenate([self.problem, first + other.problem])
        return Rows(*joint, w, problem, np.concatenate([self.about, other.about]))

    def left_together(self, said: Any) -> tuple[Any, Any, Any]:
        """Of each problem that has rows what is left of them in the mean: its features, the logarithm, a weight."""
        weights = np.bincount(self.problem, self.w, len(self.about))
        left = np.bincount(self.problem, self.w * (self.y - said), len(self.about))
        (there,) = np.nonzero(weights)
        most = np.zeros(len(self.about))
        np.maximum.at(most, self.problem, self.w)
        return self.about[there], left[there] / weights[there], most[there]


def knots_of(x: Any) -> list[list[float]]:
    """Of each feature, ascending; none where it has one value.

    >>> knots_of(np.array([[0.0, 7.0, 1.0], [1.0, 7.0, 1.5]]))
    [[0.0, 1.0], [], [1.0, 1.5]]
    """
    found = []
    for column in x.T:
        values = np.array(sorted({*column.tolist()}))
        if len(values) > _RAMPS + 1:
            values = np.quantile(column, np.linspace(0, 1, _RAMPS + 1))
        knots = sorted({float(f"{one:.{_DIGITS}g}") for one in values.tolist()})
        found.append(knots if len(knots) > 1 else [])
    return found


def ramps_around_zero(knots: list[list[float]], x: Any) -> Any:
    """Of rows of features: as `Network.ramps`, but around zero, (rows, ramps)."""
    feature, start, end = (np.array(of) for of in zip(*ramps_of(knots), strict=True))
    return (np.clip((x[:, feature] - start) / (end - start), 0, 1) - 0.5).astype(np.float32)


def ramps_and_layers(knots: list[list[float]], network: Any) -> dict[str, Any]:
    """A network as `correction` reads it, whose ramps begin at zero."""
    layers = []
    for number, one in enumerate(layer for layer in network if hasattr(layer, "weight")):
        weights, bias = (part.detach().numpy().astype(float) for part in (one.weight.T, one.bias))
        bias = bias if number else bias - 0.5 * weights.sum(axis=0)
        layers.append({"weights": _short(weights), "bias": _short(bias)})
    return {"knots": knots, "layers": layers}


class School:
    """Networks over the same ramps of features."""

    def __init__(self, knots: list[list[float]]) -> None:
        import torch

        self.torch, self.knots = torch, knots

    def ramps(self, x: Any) -> Any:
        """Of rows of features: `ramps_around_zero`."""
        return self.torch.tensor(ramps_around_zero(self.knots, x))

    def network(self, units: int) -> Any:
        nn = self.torch.nn
        found = nn.Sequential(
            *(
                nn.Linear(len(ramps_of(self.knots)), units),
                nn.SiLU(),
                nn.Linear(units, units),
                nn.SiLU(),
                nn.Linear(units, 1),
            )
        )
        with self.torch.no_grad():
            found[-1].weight.mul_(0.1)
        return found

    def learned(self, rows: Rows, seed: int) -> Any:
        """A network that learned from rows."""
        self.torch.manual_seed(seed)
        network, rng = self.network(_UNITS), np.random.default_rng(seed)
        several, x = Problems(self.torch, rows), self.ramps(rows.x)
        self._train(
            *(network, _RATE, _DECAY, _EPOCHS * -(-len(several) // _PROBLEMS)),
            lambda: self._loss(network, x, several, several.drawn(rng, _PROBLEMS)),
        )
        return network

    def taught(self, shares: Sequence[tuple[float, Rows]], seed: int) -> Any:
        """A network that says what others do, whose words are the y of rows; the first rows set how long it learns.
        shares: how much rows weigh."""
        self.torch.manual_seed(seed)
        network, rng = self.network(_UNITS), np.random.default_rng(seed)
        several = [(share, self.ramps(rows.x), Problems(self.torch, rows)) for share, rows in shares]
        self._train(
            *(network, _TAUGHT_RATE, _TAUGHT_DECAY, _TAUGHT_EPOCHS * -(-len(several[0][2]) // _TAUGHT)),
            lambda: sum(share * self._loss(network, x, of, of.drawn(rng, _TAUGHT)) for share, x, of in several),
        )
        return network

    def said(self, networks: Sequence[Any], x: Any) -> Any:
        """The mean of what networks say of ramps."""
        with self.torch.no_grad():
            parts = (sum(one(part)[:, 0] for one in networks) / len(networks) for part in x.split(20000))
            return self.torch.cat([*parts])

    def _train(self, network: Any, rate: float, decay: float, steps: int, loss: Callable[[], Any]) -> None:
        optim = self.torch.optim
        by = optim.AdamW(network.parameters(), lr=rate, weight_decay=decay)
        schedule = optim.lr_scheduler.OneCycleLR(by, rate, total_steps=steps, pct_start=0.1)
        for _ in range(steps):
            by.zero_grad()
            loss().backward()
            by.step()
            schedule.step()

    def _loss(self, network: Any, x: Any, several: Problems, numbers: Any) -> Any:
        """Of some problems what is left of plans beside each other."""
        places = several.places[numbers]
        weights = several.w[places] * several.there[numbers]
        said = network(x[places])[..., 0]
        left, each = several.y[places] - said, weights.sum(1, keepdim=True)
        together, level = ((of * weights).sum(1, keepdim=True) / each for of in (left, said))
        apart = (weights * self._far(left - together)).sum() / weights.sum()
        return apart + _TOGETHER * (each * self._far(level)).sum() / each.sum()

    def shared(self, x: Any, y: Any, w: Any, seed: int = 0) -> Any:
        """A network that learned what problems' plans have in common."""
        torch = self.torch
        torch.manual_seed(seed)
        network, x, rng = self.network(_SHARED_UNITS), self.ramps(x), np.random.default_rng(seed)
        y, w = (torch.tensor(one.astype(np.float32)) for one in (y, w))

        def loss() -> Any:
            some = torch.tensor(rng.integers(len(y), size=256))
            return (w[some] * self._far(y[some] - network(x[some])[:, 0])).sum() / w[some].sum()

        self._train(network, _RATE, 10 * _DECAY, _SHARED_STEPS, loss)
        return network

    def _far(self, left: Any) -> Any:
        one = self.torch.nn.functional
        return one.smooth_l1_loss(left, self.torch.zeros_like(left), reduction="none", beta=_FAR)


class Problems:
    """Rows of plans as a rectangle, a line for each problem: places of rows, and which of them there are."""

    def __init__(self, torch: Any, rows: Rows) -> None:
        starts = np.flatnonzero(np.diff(rows.problem, prepend=-1))
        lengths = np.diff([*starts, len(rows.problem)])
        along = np.arange(lengths.max())
        there = along < lengths[:, None]
        self.places = torch.tensor(np.where(there, starts[:, None] + along, 0))
        self.there = torch.tensor(there.astype(np.float32))
        self.w = torch.tensor(rows.w.astype(np.float32))
        self.y = torch.tensor(rows.y.astype(np.float32))
        self._torch, self._order = torch, np.zeros(0, np.int64)

    def __len__(self) -> int:
        return len(self.places)

    def drawn(self, rng: Any, count: int) -> Any:
        """Numbers of the next problems: each comes once before any comes again."""
        if len(self._order) < count:
            self._order = np.concatenate([self._order, rng.permutation(len(self))])
        numbers, self._order = self._order[:count], self._order[count:]
        return self._torch.tensor(numbers)


def _short(values: Any) -> Any:
    """With few digits, as lists."""
    return [_short(one) if one.ndim else float(f"{one:.{_DIGITS}g}") for one in values]


def learn(school: School, rows: Rows | None, drawn: Rows, seed: int = 0) -> Any:
    """The network of a fit. Without rows it learns what is known of the drawn ones."""
    if rows is None:
        return school.taught([(1.0, drawn)], seed)
    teachers = [school.learned(rows, seed + number) for number in range(TEACHERS)]

    def told(of: Rows) -> Rows:
        return replace(of, y=school.said(teachers, school.ramps(of.x)).numpy())

    return school.taught([(1.0, told(drawn)), (_BESIDE, told(rows))], seed)


def fit_of(rows: Rows | None, drawn: Rows) -> dict[str, Any]:
    """The networks of a fit, as `correction` reads them."""
    school = School(knots_of(drawn.x if rows is None else np.concatenate([rows.x, drawn.x[::8]])))
    network = learn(school, rows, drawn)
    known = drawn if rows is None else rows
    x, y, w = known.left_together(school.said([network], school.ramps(known.x)).numpy())
    beside = School(knots_of(x))
    together = ramps_and_layers(beside.knots, beside.shared(x, y, w))
    return {"network": ramps_and_layers(school.knots, network), "shared": together}
