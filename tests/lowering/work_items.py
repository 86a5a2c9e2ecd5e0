"""Runs of kernels whose work items have a problem, or a range of k, of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tests.lowering.traffic import Traffic, check_table, times_added, times_read
from tilewright.dtypes import F16, F32, Array, DType
from tilewright.ir.kernel import Variant
from tilewright.ir.program import RasterOrder
from tilewright.ir.work import Problems, SplitK
from tilewright.kernels.mma import MmaConfig
from tilewright.kernels.simt import SimtConfig
from tilewright.ladders import find_rung
from tilewright.ladders.rung import Rung
from tilewright.problem import Gemm, check, make_operands
from tilewright.problem.gemm import Dim, OperandName
from tilewright.problem.reference import Operands, view
from tilewright.schedule import Persist, Raster, Schedule
from tilewright.toolchain import Build, build

_VECTOR = 8
"""Matrices begin at multiples of so many elements, as TMA and vectors need."""


def persisted(schedule: Schedule) -> Schedule:
    """The schedule with persistent blocks, whatever it copies by."""
    raster = () if any(isinstance(step, Raster) for step in schedule) else (Raster(RasterOrder.GROUPED, group=2),)
    return Schedule(*schedule, *raster, *(() if any(isinstance(s, Persist) for s in schedule) else (Persist(),)))


SIMT = SimtConfig(
    tile=(32, 64, 8), warp_tile=(16, 64), stages=3, b_transport="cp_async", unroll=8, fma_order="m1 m0 ~n2 ~n1 ~n0"
)
MMA = MmaConfig(tile=(64, 64, 32), warp_tile=(32, 32), stages=3)
BY_THREADS: dict[str, tuple[SimtConfig | MmaConfig | str, DType]] = {
    "one stage": ("worklog/6", F32),
    "registers": (replace(SIMT, stages=2, b_transport="registers", double_buffered_fragments=True), F32),
    "registers and cp.async": (SIMT, F32),
    "halves in turn": ("worklog/11", F32),
    "fragments ahead": (MMA, F16),
    "in place": (replace(MMA, in_place_fragments=True, n_outer=True, copy_issue_distance=1), F16),
    "C through shared memory": (replace(MMA, store="shared"), F16),
    "quad shuffle": (replace(MMA, store="quad_shuffle", interleaved_copies=False), F16),
}
"""Loops over k whose threads copy for themselves; blocks are made persistent."""


def by_threads(name: str, m: int, n: int, k: int, **options: Any) -> tuple[Gemm, Schedule]:
    made, dtype = BY_THREADS[name]
    gemm = Gemm(m, n, k, dtype, out=dtype, **options)
    return gemm, persisted(find_rung(made).schedule(gemm) if isinstance(made, str) else made.schedule(gemm))


def stacked(matrices: list[Array], *, shared: bool) -> Array:
    """Flat matrices one behind the other, or only the first."""
    padded = [np.concatenate([one, np.zeros(-one.size % _VECTOR, one.dtype)]) for one in matrices]
    return padded[0] if shared else np.concatenate(padded)


def check_batch(
    gemm: Gemm,
    schedule: Schedule | Rung,
    count: int,
    /,
    *,
    shared: str = "",
    part_of_k: int = 0,
    stream_k: bool = False,
    whole_waves: bool = False,
    **options: Any,
) -> Build:
    """Simulate `count` strided problems in one launch, and hold each against its reference. shared: operands that all
    problems have in common. part_of_k: split k into partial sums of so many products. stream_k: or add up in order, but
    for whole_waves."""
    split_k = SplitK.ORDERED if stream_k else SplitK.PARTIALS if part_of_k else SplitK.NONE
    built = replace(build(gemm, schedule), problems=Problems.STRIDED, split_k=split_k, stream_k=stream_k)
    built = replace(built, whole_waves=whole_waves)
    each = [make_operands(gemm, seed=seed) for seed in range(count)]
    storages = [stacked([getattr(one, n) for one in each], shared=n.upper() in shared) for n in "abc"]
    steps = [0 if n in shared else s.size // count for n, s in zip("ABC", storages, strict=True)]
    batching = {**{f"{n}_step": step for n, step in zip("ABC", steps, strict=True)}, "batch": count}
    added = {one.name: each[0].storage(one.name) for one in gemm.epilogue.operands if one.is_vector}
    each = [replace(one, added={**one.added, **added}) for one in each]
    if gemm.epilogue.residual:
        added["residual"] = stacked([one.storage("residual") for one in each], shared=False)
        batching["residual_step"] = added["residual"].size // count
    parts = -(-gemm.k // part_of_k) if part_of_k else 1
    if part_of_k:
        storages[2] = np.full(count * parts * gemm.m * gemm.ldc, np.nan, np.float32)
    operands = Operands(gemm, *storages, added)
    traffic = Traffic(operands)
    launch = {"listeners": (traffic,), "batching": batching, "part_of_k": 64 if stream_k else part_of_k, **options}
    run = built.simulate(operands, **launch)
    for name, step in zip("AB", steps, strict=False):
        times = times_read(built, gemm, name) * (1 if step else count)  # type: ignore[arg-type]
        for number in range(count if step else 1):
            own = traffic.reads[name][number * step :][: each[0].storage(name).size]
            if not stream_k:  # else the items of a tile may meet within a step over k
                check_table(own, gemm, name, times)  # type: ignore[arg-type]
    for number, one in enumerate(each):
        own = replace(one, **{n.lower(): getattr(each[0], n.lower()) for n in shared})
        if part_of_k:
            result = run.c.reshape(count, parts, gemm.m, gemm.ldc)[number, :, :, : gemm.n].sum(0, dtype=np.float32)
        else:
            check_table(traffic.writes["C"][number * steps[2] :][: one.c.size], gemm, "C", 1)
            check_table(traffic.reads["C"][number * steps[2] :][: one.c.size], gemm, "C", times_added(gemm))
            result = gemm.out.decode(view(gemm, "C", run.c[number * steps[2] :][: one.c.size]))
        verdict = check(own, result)
        assert verdict.ok, (number, verdict.message)
    return built


def _streamed(built: Build, *, stream_k: bool, whole_waves: bool) -> Build:
    """A kernel whose blocks share out the k of tiles, or as it is."""
    return replace(built, split_k=SplitK.ORDERED, stream_k=True, whole_waves=whole_waves) if stream_k else built


def part_of(gemm: Gemm, name: OperandName, storage: Array, dim: Dim, begin: int, end: int) -> Array:
    """The storage of a matrix from `begin` of a dimension on; to `end`, where its rows or columns are whole."""
    if gemm.operand(name).contiguous == dim:
        return storage[begin:]
    return storage[begin * gemm.leading(name) : end * gemm.leading(name)]


def check_groups_along_m(
    gemm: Gemm,
    schedule: Schedule,
    rows: list[int],
    /,
    *,
    of_a_launch: int = 0,
    promote_every: int = 0,
    variant: Variant | None = None,
    stream_k: bool = False,
    whole_waves: bool = False,
    **options: Any,
) -> Build:
    """Simulate groups of so many rows of A and C, each with its own B; rows behind the last group stay as they are.
    of_a_launch: at most so many groups in each of several launches; 0: all in one."""
    built = replace(build(gemm, schedule, variant=variant), problems=Problems.GROUPED_M)
    built = _streamed(built, stream_k=stream_k, whole_waves=whole_waves)
    ends, whole = np.cumsum(rows), make_operands(gemm)
    each = [make_operands(gemm, seed=seed) for seed in range(len(rows))]
    own = [one.name for one in gemm.matrices if one.is_own]  # scales: each group has its own
    stacks = {name: stacked([one.storage(name) for one in each], shared=False) for name in ("B", *own)}
    added = {**whole.added, **{name: stacks[name] for name in own}}
    steps = {f"{name}_step": stack.size // len(rows) for name, stack in stacks.items()}
    c_then = whole.c
    for first in range(0, len(rows), of_a_launch or len(rows)):
        groups = min(of_a_launch or len(rows), len(rows) - first)
        batching = {**steps, "groups": groups, "first_group": first}
        launch = {"listeners": (), "batching": batching, "group_ends": ends.tolist(), **options}
        run = built.simulate(Operands(gemm, whole.a, stacks["B"], c_then, added), **launch)
        assert not run.findings
        c_then = run.c
    for group, (count, end) in enumerate(zip(rows, ends.tolist(), strict=True)):
        begin = end - count
        part = replace(gemm, m=count, lda=gemm.lda, ldb=gemm.ldb, ldc=gemm.ldc)
        a, c = part_of(gemm, "A", whole.a, "m", begin, end), whole.c[begin * gemm.ldc : end * gemm.ldc]
        result = gemm.out.decode(view(part, "C", run.c[begin * gemm.ldc : end * gemm.ldc]))
        beside = {name: each[group].storage(name) for name in own}
        beside |= {name: one[begin if one.size > 1 else 0 :] for name, one in whole.added.items() if name not in own}
        verdict = check(Operands(part, a, each[group].b, c, beside), result, promote_every=promote_every)
        assert verdict.ok, (group, verdict.message)
    np.testing.assert_array_equal(run.c[ends[-1] * gemm.ldc :], whole.c[ends[-1] * gemm.ldc :])
    return built


def check_counted_groups(
    gemm: Gemm,
    schedule: Schedule,
    counts: list[int],
    capacity: int,
    /,
    *,
    of_a_launch: int = 0,
    stream_k: bool = False,
    whole_waves: bool = False,
    **options: Any,
) -> Build:
    """Simulate groups that have room for `capacity` rows of A and C each and use the first ones; the others stay as
    they are. gemm: of all rows. of_a_launch: as of `check_groups_along_m`."""
    built = replace(build(gemm, schedule), problems=Problems.COUNTED_M)
    built = _streamed(built, stream_k=stream_k, whole_waves=whole_waves)
    whole = make_operands(gemm)
    each = [make_operands(gemm, seed=seed).b for seed in range(len(counts))]
    b, c_then = stacked(each, shared=False), whole.c
    for first in range(0, len(counts), of_a_launch or len(counts)):
        groups = min(of_a_launch or len(counts), len(counts) - first)
        batching = {"B_step": b.size // len(counts), "groups": groups, "first_group": first, "capacity": capacity}
        launch = {"listeners": (), "batching": batching, "group_ends": counts, **options}
        run = built.simulate(Operands(gemm, whole.a, b, c_then), **launch)
        c_then = run.c
    for group, given in enumerate(counts):
        count, begin = min(max(given, 0), capacity), group * capacity
        part = replace(gemm, m=count, lda=gemm.lda, ldb=gemm.ldb, ldc=gemm.ldc)
        a, c = (one[begin * ld :] for one, ld in ((whole.a, gemm.lda), (whole.c, gemm.ldc)))
        result = gemm.out.decode(view(part, "C", run.c[begin * gemm.ldc :]))
        verdict = check(Operands(part, a, each[group], c), result)
        assert verdict.ok, (group, verdict.message)
        unused = slice((begin + count) * gemm.ldc, (begin + capacity) * gemm.ldc)
        np.testing.assert_array_equal(run.c[unused], whole.c[unused])
    return built


def check_groups_along_k(
    gemm: Gemm, schedule: Schedule, lengths: list[int], /, *, variant: Variant | None = None, **options: Any
) -> Build:
    """Simulate groups of so many k of A and B, each with its own C."""
    built = replace(build(gemm, schedule, variant=variant), problems=Problems.GROUPED_K)
    ends, whole = np.cumsum(lengths), make_operands(gemm)
    each = [make_operands(gemm, seed=seed).c for seed in range(len(lengths))]
    c = stacked(each, shared=False)
    step = c.size // len(lengths)
    launch = {"listeners": (), "batching": {"C_step": step, "groups": len(lengths)}, "group_ends": ends.tolist()}
    run = built.simulate(Operands(gemm, whole.a, whole.b, c), **{**launch, **options})
    for group, (count, end) in enumerate(zip(lengths, ends.tolist(), strict=True)):
        begin = end - count
        part = replace(gemm, k=count, lda=gemm.lda, ldb=gemm.ldb, ldc=gemm.ldc)
        a = part_of(gemm, "A", whole.a, "k", begin, end)
        b = part_of(gemm, "B", whole.b, "k", begin, end)
        result = gemm.out.decode(view(part, "C", run.c[group * step :][: each[group].size]))
        verdict = check(Operands(part, a, b, each[group]), result)
        assert verdict.ok, (group, verdict.message)
    return built
