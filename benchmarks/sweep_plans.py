"""Which plans of a problem `choice_sweep.py` measures."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import islice, zip_longest
from math import log
from typing import Any

from named_problems import request_of

from tilewright.device.spec import DeviceSpec
from tilewright.kernels.simt import SimtConfig
from tilewright.kernels.tile_sizes import CLUSTER_SIZES_ALONG_K
from tilewright.kernels.wgmma import MAX_STAGES, WgmmaConfig, deepest
from tilewright.planning.account import PaperGpu
from tilewright.planning.assembly import Request
from tilewright.planning.candidates import families
from tilewright.planning.dispatch import Dispatcher
from tilewright.planning.estimates import estimated
from tilewright.planning.on_paper import PaperKernels
from tilewright.planning.ranking import Ranking, core_of, estimate_us, packings_for, ranked, whole_space
from tilewright.suite.problems import Problem
from tilewright.suite.stacks import Batched
from tilewright.tuner.space import Candidate
from tilewright.winners.database import shipped_winners
from tilewright.winners.keys import Key, row_alignment
from tilewright.winners.plan_config import PlanConfig

SPREAD = 0.07
"""Of the logarithms of times, by which plans are drawn."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """Which plans of a problem are measured. count: drawn near the best priced ones. cluster_k: so many whose clusters
    share the sum over k. spread: see `Ranking.drawn`. families: that are drawn from, as far as they can multiply, each
    behind each packing; by default wgmma where it can, as mma.sync is hardly ever faster, or else what there is. near:
    so many of `near_choice` in their place. kinds: so many kernels of each of `of_each_kind`. classes: so many of
    `beside_choice` in their place."""

    count: int
    cluster_k: int = 0
    spread: float = SPREAD
    families: str = ""
    near: int = 0
    kinds: int = 0
    classes: int = 0


def candidates_of(problem: Problem | Batched, spec: DeviceSpec, asked_for: Drawing) -> list[Candidate]:
    """What dispatch would take, the best of each split of k, and plans drawn near the best priced ones."""
    if asked_for.classes:
        return beside_choice(problem, spec, asked_for.classes, asked_for.count)
    if asked_for.near:
        return near_choice(problem, spec, asked_for.near, asked_for.spread)
    request = request_of(problem)
    gemm, alignment, stack = request.gemm, request.alignment, request.stack
    seed = hash((gemm.m, gemm.n, gemm.k)) % 2**31
    found: dict[PlanConfig, float] = {}
    for several in spaces_of(request, spec, asked_for.families):
        for space in several:
            found |= {config: us for us, config in islice(space, -(-3 // len(several)))}
            for at, (us, config) in enumerate(space.drawn(-(-asked_for.count // len(several)), seed, asked_for.spread)):
                flips = at % 2 and config.kernel.kind == "simt"  # the space has them without dependent launch alone
                found[others([config])[0] if flips else config] = us
    ranking = [*islice(estimated(request, spec), 60)]
    cores = {core_of(one): one for one in reversed(ranking)}  # of each kernel, its best options
    best = sorted(cores.values(), key=ranking.index)
    split = {getattr(one.kernel, "split_k", 1): one for one in reversed(ranking)}
    asked = [*shipped_for(problem, spec), *ranking[:3], *best[:6], *others(best[:4])]
    asked += sorted(split.values(), key=ranking.index)[:3]
    asked += sharing_k(request, spec, asked_for.cluster_k)
    asked += of_each_kind(request, spec, asked_for.kinds)
    today = {one: estimate_us(one, gemm, spec, alignment, stack) for one in asked}
    return [
        Candidate(config, us) for config, us in (today | {c: us for c, us in found.items() if c not in today}).items()
    ]


def beside_choice(problem: Problem | Batched, spec: DeviceSpec, classes: int, count: int) -> list[Candidate]:
    """The choice, its next three kernels, and of wgmma and mma.sync, as far as their best is about as fast, the best
    priced of so many classes of kernels, and `count` others drawn near the best. Of a small problem a few of mma.sync
    in any case."""
    request = request_of(problem)
    gemm, alignment, stack = request.gemm, request.alignment, request.stack
    cores: dict[object, PlanConfig] = {}
    for one in islice(estimated(request, spec), 60):
        cores.setdefault(core_of(one), one)
    chosen = taken(request, spec)
    found = [*([chosen] if chosen else []), *islice((one for one in cores.values() if one != chosen), 3)]
    known = [family for family in ("wgmma", "mma") if family in families(gemm, spec)]
    spaces = {family: whole_space(gemm, spec, alignment, stack=stack, family=family) for family in known}
    spaces = {family: space for family, space in spaces.items() if len(space)}
    least_us = min((space[0][0] for space in spaces.values()), default=0.0)
    for family, space in spaces.items():
        near = space[0][0] <= _LEVEL * least_us
        most = classes if near else 3 if family == "mma" and gemm.compulsory_bytes < _SMALL_BYTES else 0
        best: dict[object, PlanConfig] = {}
        for us, one in islice(space, _MOST_OF_KINDS if most else 0):
            if us > _MOST_NEAR * space[0][0] or len(best) == most:
                break
            best.setdefault(class_of_kernel(one), one)
        found += best.values()
        have = set(map(core_of, found))
        drawn_ones = space.drawn(count + len(have), hash((gemm.m, gemm.n, gemm.k)) % 2**31, _WIDE) if near else []
        found += list(islice((one for _, one in drawn_ones if core_of(one) not in have), count))
    told = {one: estimate_us(one, gemm, spec, alignment, stack) for one in found}
    most_us = _MOST_NEAR * min(told.values())
    return [Candidate(one, us) for at, (one, us) in enumerate(told.items()) if at < 4 or us <= most_us]


def class_of_kernel(config: PlanConfig) -> tuple[object, ...]:
    """Of a kernel: its sides, schedule, cluster, the way to share the sum over k, and what is packed."""
    kernel = config.kernel
    names = ("swap_ab", "ping_pong", "cluster", "persistent", "consumers")
    return (*way_to_share(config), *(getattr(kernel, name, None) for name in names), bool(config.packed))


_LEVEL = 1.15
"""Times of the least estimate that the best kernel of a family may take to be drawn from."""

_SMALL_BYTES = 8 << 20
"""Of the matrices of a problem for which mma.sync may be as fast as wgmma."""

_WIDE = 0.1
"""`SPREAD` beside the best of each class."""


def near_choice(problem: Problem | Batched, spec: DeviceSpec, count: int, spread: float) -> list[Candidate]:
    """What a choice must tell apart: its first four kernels, and others drawn near the best of those that it prices, as
    many of each way to share the sum over k; with its GEMV kernel. spread: see `Ranking.drawn`."""
    request = request_of(problem)
    gemm, alignment, stack = request.gemm, request.alignment, request.stack
    rng = random.Random(hash((gemm.m, gemm.n, gemm.k)))
    told = list(ranked(gemm, spec, alignment, stack=stack, promote_every=request.promote_every, corrected=4000))
    kernels = {one if one.kernel.kind == "simt" else core_of(one): (us, one) for us, one in reversed(told)}
    best = sorted(kernels.values(), key=lambda one: one[0])
    drawn_near = [one for one in best[4:] if one[0] <= _MOST_NEAR * best[0][0]]
    drawn_near.sort(key=lambda one: log(one[0]) + rng.gauss(0.0, spread))
    ways: dict[object, list[tuple[float, PlanConfig]]] = {}
    for one in drawn_near:
        ways.setdefault(way_to_share(one[1]), []).append(one)
    half = max(0, count - 4) // 2
    found = best[: min(4, count)] + drawn_near[:half]
    turns = (one for several in zip_longest(*ways.values()) for one in several if one)
    found += list(islice((one for one in turns if one not in found), count - len(found)))
    chosen = taken(request, spec)
    gemv = [one for one in islice(estimated(request, spec), 500) if one.kernel.kind == "gemv"]
    drawn_ones = [otherwise_copied(one) if rng.random() < 0.4 else one for _, one in found[4:]]
    plans = dict.fromkeys([*([chosen] if chosen else []), *(one for _, one in found[:4]), *drawn_ones, *gemv])
    return [Candidate(one, estimate_us(one, gemm, spec, alignment, stack)) for one in plans]


def taken(request: Request, spec: DeviceSpec) -> PlanConfig | None:
    """What dispatch takes where nothing was measured: it passes over kernels of which the compiler made less."""
    gpu: Any = PaperGpu(spec.name, spec.arch)
    dispatcher = Dispatcher(gpu)
    dispatcher.kernels = PaperKernels(spec, compiles=True)
    return next((one.multiplied.config for one in dispatcher.plan(request).steps if one.multiplied), None)


_MOST_NEAR = 1.4
"""Times of the best estimate: what is slower is out of the question."""


def otherwise_copied(config: PlanConfig) -> PlanConfig:
    """The same with copies between the k steps, or without, where a SIMT kernel can have them."""
    kernel = config.kernel
    if not isinstance(kernel, SimtConfig) or kernel.unroll != kernel.tile[2]:
        return config
    return replace(config, kernel=replace(kernel, interleaved_copies=not kernel.interleaved_copies))


def way_to_share(config: PlanConfig) -> object:
    """How blocks share the sum over k: not at all, by split-K, in clusters of a size, or by stream-K."""
    kernel = config.kernel
    return kernel.split_k > 1, size_along_k(config), getattr(kernel, "stream_k", False)


def spaces_of(request: Request, spec: DeviceSpec, asked: str) -> list[list[Ranking]]:
    """Of each family that is drawn from: its plans behind each packing. Where none is asked for, one space."""
    gemm, alignment, stack = request.gemm, request.alignment, request.stack
    space = partial(whole_space, gemm, spec, alignment, stack=stack, promote_every=request.promote_every)
    known = families(gemm, spec)
    if asked:
        kinds = [kind for kind in asked.split(",") if kind in known or kind == "simt"]
        told = {kind: packings_for(kind, gemm, alignment, stack) for kind in kinds}
        found = [[space(family=kind, packing=way) for way in ways] for kind, ways in told.items()]
    else:
        found = [[space(family=kind)] for kind in (["wgmma", None] if "wgmma" in known else [None])]
    found = [[one for one in several if len(one)] for several in found]
    return [several for several in found if several][: None if asked else 1]


def sharing_k(request: Request, spec: DeviceSpec, count: int) -> list[PlanConfig]:
    """The best priced kernels whose clusters share the sum over k, as many of each size of a cluster; none of a
    batch."""
    found = list[PlanConfig]()
    for size in CLUSTER_SIZES_ALONG_K[1:] if count and request.stack is None else ():
        every = request.promote_every
        told = ranked(request.gemm, spec, request.alignment, cluster_k=(size,), promote_every=every)
        plans = (config for _, config in told)
        cores = {core_of(one): one for one in islice((one for one in plans if size_along_k(one) > 1), 4 * count)}
        found += list(cores.values())[: max(1, count // 3)]
    return found


def of_each_kind(request: Request, spec: DeviceSpec, count: int) -> list[PlanConfig]:
    """The best priced cooperative, ping-pong and swap-AB kernels of wgmma, persistent ones, as many of each; and the
    first of them with more of C staged."""
    found: dict[object, dict[object, PlanConfig]] = {}
    for one in islice(estimated(request, spec), _MOST_OF_KINDS if count else 0):
        kernel = one.kernel
        if isinstance(kernel, WgmmaConfig) and kernel.persistent and not one.packed:
            found.setdefault((kernel.ping_pong, kernel.swap_ab), {}).setdefault(core_of(one), one)
    best = [one for of in found.values() for one in islice(of.values(), count)]
    firsts = [next(iter(of.values())) for of in found.values()]
    return [*best, *(more for one in firsts for more in staging_more(one, request))]


_MOST_OF_KINDS = 4000
"""Plans among which each kind is looked for."""


def staging_more(config: PlanConfig, request: Request) -> list[PlanConfig]:
    """The same with longer rows of C in shared memory, two stages of them, or all of C; and fewer stages of the
    ring."""
    kernel, found = config.kernel, list[PlanConfig]()
    assert isinstance(kernel, WgmmaConfig)
    for subtile, stages in ((64, 1), (64, 2), (64, 4)):
        wide = replace(kernel, subtile=min(subtile, kernel.n), subtile_stages=stages)
        fitting = deepest(wide, most=MAX_STAGES)
        if kernel.subtile and fitting is not None and not fitting.reasons_against(request.gemm):
            found.append(replace(config, kernel=fitting))
    return found


def size_along_k(config: PlanConfig) -> int:
    return getattr(config.kernel, "cluster_k", 1)


def others(plans: Sequence[PlanConfig]) -> list[PlanConfig]:
    """The same with dependent launch where they have none, and without it: their difference is small."""
    kernels = [one.kernel for one in plans]
    return [
        replace(one, kernel=replace(kernel, dependent_launch=not kernel.dependent_launch))
        for one, kernel in zip(plans, kernels, strict=True)
        if isinstance(kernel, SimtConfig | WgmmaConfig)
    ]


@cache
def shipped() -> dict[Key, PlanConfig]:
    return {one.key: one.config for one in reversed(shipped_winners())}


def shipped_for(problem: Problem | Batched, spec: DeviceSpec) -> list[PlanConfig]:
    """The plan that the package ships for a problem, if any."""
    if isinstance(problem, Batched) or problem.scales:
        return []
    gemm = problem.gemm
    found = shipped().get(Key.of(spec, gemm, row_alignment(gemm)))
    return [] if found is None else [found]
