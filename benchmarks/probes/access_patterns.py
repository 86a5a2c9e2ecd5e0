"""Access patterns of a warp, and what each hypothesis about the hardware predicts for them. No GPU is needed.

A pattern is the byte offset of each of the 32 lanes, or None for a lane that takes no part. A hypothesis turns
a pattern and an access width into wavefronts: passes of the data stage, each serving at most one 4-byte word in
each of 32 banks.

Sources
[1] The rule that `layout/banks.py` implements, with golden vectors measured on an A100.
[2] Public notes on the RTX 5090 (sm_120), "Shared memory & cp.async bank-conflict characterization": loads merge
    only if the merged access is free of conflicts; stores never merge; cp.async serves no two lanes together;
    L1 tags are looked up in four banks chosen by a hash of the line number.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

LANES = 32
BANKS = 32
WORD_BYTES = 4
LINE_BYTES = 128
SECTOR_BYTES = 32

Pattern = tuple[int | None, ...]  # byte offset of each lane
Hypothesis = Callable[[Pattern, int], int]  # (pattern, width in bytes) -> wavefronts
Lane = Callable[[int], int | None]  # lane -> index of its chunk, a chunk being as wide as the access


# ------------------------------------------------------------------------------------------------- patterns


def _only(active: Callable[[int], bool], chunk: Lane) -> Lane:
    return lambda t: chunk(t) if active(t) else None


def _halves(first: Lane, second: Lane) -> Lane:
    return lambda t: first(t) if t < 16 else second(t)


def _without_bit(t: int, bit: int) -> int:
    """The lane number with one bit taken out: lanes t and t ^ (1 << bit) get the same value, others do not."""
    low = t & ((1 << bit) - 1)
    return (t >> (bit + 1) << bit) | low


def _shuffled(seed: int, count: int = LANES) -> list[int]:
    chunks = list(range(count))
    random.Random(seed).shuffle(chunks)
    return chunks


def _drawn(seed: int, chunks: int) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(chunks) for _ in range(LANES)]


def _paired(chunks: Sequence[int], bit: int) -> Lane:
    """Lanes t and t ^ (1 << bit) share a chunk."""
    return lambda t: chunks[_without_bit(t, bit)]


def _pair1(t: int) -> int:
    return t // 2


def _pair2(t: int) -> int:
    return _without_bit(t, 1)


def _same(t: int) -> int:
    return t


# In order of importance: a run that is short of time leaves out the end. The names of [1] are kept.
CHUNKS: Mapping[str, Lane] = {
    "contiguous (64-1)": _same,
    "t/2 (64-2)": _pair1,
    "only 15,16: 4 (128-1)": _only(lambda t: t in (15, 16), lambda t: 4),
    "only 0,15: 4 (128-2)": _only(lambda t: t in (0, 15), lambda t: 4),
    "128-3": lambda t: (t // 8) * 2 + ((t % 8) // 2) % 2,
    "128-4": _halves(
        lambda t: (t // 8) * 2 + ((t % 8) // 2) % 2,
        lambda t: (t // 8) * 2 + (t % 8) % 2,
    ),
    "128-5": lambda t: (t // 16) * 4 + (t % 16) // 8 + (t % 8) // 4 * 8,
    "uniform": lambda t: 0,
    "t^2 equal": _pair2,
    "t^4 equal": lambda t: _without_bit(t, 2),
    "t^8 equal": lambda t: _without_bit(t, 3),
    "t^16 equal": lambda t: t % 16,
    "t^3 equal": lambda t: (t // 4) * 2 + (t % 4 in (1, 2)),
    "t/4": lambda t: t // 4,
    "t/8": lambda t: t // 8,
    "t/16": lambda t: t // 16,
    "t%8": lambda t: t % 8,
    "t%4": lambda t: t % 4,
    "t%2": lambda t: t % 2,
    "t/8 * 8": lambda t: t // 8 * 8,  # the quarter warps share banks
    "t/16 * 8": lambda t: t // 16 * 8,
    "t/16 * 16": lambda t: t // 16 * 16,
    "pairs t^1, first half only": _halves(_pair1, _same),
    "pairs t^1, second half only": _halves(_same, _pair1),
    "t^1 in first half, t^2 in second": _halves(_pair1, _pair2),
    "t^1 in first half, uniform second": _halves(_pair1, lambda t: 9),
    "t^1 and t^2 by quarters": lambda t: _pair1(t) if t // 8 % 2 else _pair2(t),
    "uniform first half": _halves(lambda t: 0, _same),
    "pairs t^1 but for lane 31": lambda t: 31 if t == 31 else t // 2,
    "pairs t^1 but for lane 0": lambda t: 31 if t == 0 else t // 2,
    "even lanes": _only(lambda t: t % 2 == 0, _same),
    "odd lanes": _only(lambda t: t % 2 == 1, _same),
    "even lanes, dense": _only(lambda t: t % 2 == 0, _pair1),
    "lanes t%4 < 2": _only(lambda t: t % 4 < 2, _same),
    "lanes t%4 == 0": _only(lambda t: t % 4 == 0, _same),
    "lanes t%8 == 0": _only(lambda t: t % 8 == 0, _same),
    "lanes t%4 == 0, dense": _only(lambda t: t % 4 == 0, lambda t: t // 4),
    "lanes t%8 == 0, dense": _only(lambda t: t % 8 == 0, lambda t: t // 8),
    "lane 5": _only(lambda t: t == 5, _same),
    "lanes 0,8": _only(lambda t: t in (0, 8), _same),
    "lanes 0,8 in the same banks": _only(lambda t: t in (0, 8), lambda t: t * 4),
    "lanes 0,16": _only(lambda t: t in (0, 16), _same),
    "lanes 0,31": _only(lambda t: t in (0, 31), _same),
    "lanes 0..7": _only(lambda t: t < 8, _same),
    "lanes 0..15": _only(lambda t: t < 16, _same),
    "lanes 16..31": _only(lambda t: t >= 16, _same),
    "lanes 8..23": _only(lambda t: 8 <= t < 24, _same),
    "lanes 8..23 in pairs": _only(lambda t: 8 <= t < 24, _pair1),
    "even lanes first half, all second": _only(lambda t: t >= 16 or t % 2 == 0, _same),
    "pairs, quarters 0,1 clash": lambda t: (t % 8) // 2 + 8 * (t // 8 % 2) + 4 * (t // 16),
    "pairs, quarters 0,2 clash": lambda t: (t % 8) // 2 + 4 * (t // 8 % 2) + 8 * (t // 16),
    "pairs, all quarters equal": lambda t: (t % 8) // 2,
    "t/2 * 2": lambda t: t // 2 * 2,
    "t/2 * 4": lambda t: t // 2 * 4,
    "t/2 * 8": lambda t: t // 2 * 8,
    "t/4 * 2 (k10 A)": lambda t: t // 4 * 2,
    "t/4 * 8": lambda t: t // 4 * 8,
    "t%16 * 2 (k6 B)": lambda t: t % 16 * 2,
    "t%4, 8 rows of 33": lambda t: t % 4 + 33 * (t // 4),
    "t%8, 4 rows of 33": lambda t: t % 8 + 33 * (t // 8),
    "stride 2": lambda t: 2 * t,
    "stride 3": lambda t: 3 * t,
    "stride 4": lambda t: 4 * t,
    "stride 8": lambda t: 8 * t,
    "stride 16": lambda t: 16 * t,
    "stride 32": lambda t: 32 * t,
    "stride 33": lambda t: 33 * t,
    "two rows apart by 32, t^1": lambda t: 32 * (t % 2) + t // 2,
    "reversed": lambda t: 31 - t,
    "reversed pairs": lambda t: (31 - t) // 2,
    "rotated pairs": lambda t: (t // 2 + 5) % 16,
    "shuffled 1": _shuffled(1).__getitem__,
    "shuffled 2": _shuffled(2).__getitem__,
    "shuffled pairs t^1": _paired(_shuffled(3, 16), 0),
    "shuffled pairs t^2": _paired(_shuffled(4, 16), 1),
    "drawn from 4": _drawn(5, 4).__getitem__,
    "drawn from 16": _drawn(6, 16).__getitem__,
    "drawn from 64": _drawn(7, 64).__getitem__,
    "pairs t^1 drawn from 8": _paired(_drawn(8, 8), 0),
    "pairs t^1 drawn from 64": _paired(_drawn(9, 64), 0),
    "pairs t^2 drawn from 64": _paired(_drawn(10, 64), 1),
}

# For 4-byte accesses the pairs say little: one wavefront can serve all lanes.
WORDS = (
    "contiguous (64-1)", "t/2 (64-2)", "uniform", "128-4", "t/8 * 8", "even lanes", "lanes 0,8 in the same banks",
    "t/2 * 4", "t/2 * 8", "t%4, 8 rows of 33", "t%8, 4 rows of 33", "stride 2", "stride 3", "stride 4", "stride 8",
    "stride 16", "stride 32", "stride 33", "reversed", "shuffled 1", "drawn from 4", "drawn from 64",
)  # fmt: skip

# 2-byte accesses: two lanes in one word, and the transposing store of a bf16 tile.
HALVES: Mapping[str, Lane] = {
    name: CHUNKS[name]
    for name in ("contiguous (64-1)", "uniform", "t/2 (64-2)", "stride 2", "stride 4", "stride 16", "stride 33")
} | {"stride 64": lambda t: 64 * t, "stride 65": lambda t: 65 * t, "stride 66": lambda t: 66 * t}


def pattern(chunk: Lane, width: int) -> Pattern:
    """The byte offsets of chunks of `width` bytes.

    >>> pattern(CHUNKS["t/2 (64-2)"], 8)[:4]
    (0, 0, 8, 8)
    """
    chunks = [chunk(t) for t in range(LANES)]
    return tuple(None if index is None else index * width for index in chunks)


def shared_patterns(width: int) -> dict[str, Pattern]:
    """The patterns for a shared access of 2, 4, 8 or 16 bytes a lane."""
    words = {name: CHUNKS[name] for name in WORDS}
    chunks = HALVES if width == 2 else words if width == WORD_BYTES else CHUNKS
    return {name: pattern(chunk, width) for name, chunk in chunks.items()}


def full_warp(patterns: Mapping[str, Pattern]) -> dict[str, Pattern]:
    """Those in which every lane takes part: ldmatrix allows no others."""
    return {name: offsets for name, offsets in patterns.items() if None not in offsets}


def global_patterns(width: int) -> dict[str, Pattern]:
    """The patterns for a global access of 4, 8 or 16 bytes a lane."""
    chunks: dict[str, Lane] = {
        name: CHUNKS[name]
        for name in (
            "contiguous (64-1)", "uniform", "t/2 (64-2)", "t/4", "t/8", "t%8", "stride 2", "stride 4", "stride 8",
            "even lanes", "lanes 0..7", "lane 5", "reversed", "shuffled 1",
        )
    }  # fmt: skip
    found = {name: pattern(chunk, width) for name, chunk in chunks.items()}
    if width == WORD_BYTES:
        found["contiguous, off by 4 bytes"] = tuple(4 * t + 4 for t in range(LANES))
        for lines in (2, 4, 8, 16, 32):
            found[f"{lines} lines, same banks"] = tuple(t % lines * LINE_BYTES for t in range(LANES))
            found[f"{lines} lines, other banks"] = tuple(t % lines * LINE_BYTES + 4 * t for t in range(LANES))
        found["32 lines 512 apart, other banks"] = tuple(t * 4 * LINE_BYTES + 4 * t for t in range(LANES))
    else:
        found["contiguous, off by a chunk"] = tuple(width * t + width for t in range(LANES))
        found["8 rows of 4 KiB"] = tuple(t // 4 * 4096 + t % 4 * width for t in range(LANES))
        found["16 rows of 4 KiB"] = tuple(t // 2 * 4096 + t % 2 * width for t in range(LANES))
        found["32 rows of 4 KiB"] = tuple(t * 4096 for t in range(LANES))
    return found


# ---------------------------------------------------------------------------------------------- hypotheses


def _words(offset: int, width: int) -> range:
    return range(offset // WORD_BYTES, (offset + width - 1) // WORD_BYTES + 1)


def passes(offsets: Sequence[int | None], width: int) -> int:
    """The most distinct words that lanes want of one bank; lanes that want the same word are served together."""
    words = {word for offset in offsets if offset is not None for word in _words(offset, width)}
    return max(Counter(word % BANKS for word in words).values(), default=0)


def passes_by_lane(offsets: Sequence[int | None], width: int) -> int:
    """The most lanes that want one bank: no two lanes are served together."""
    banks = Counter(word % BANKS for offset in offsets if offset is not None for word in _words(offset, width))
    return max(banks.values(), default=0)


def by_groups(offsets: Pattern, width: int, lanes: int) -> int:
    """The passes of each group of `lanes` neighbours, added."""
    return sum(passes(offsets[first : first + lanes], width) for first in range(0, len(offsets), lanes))


def group_lanes(width: int) -> int:
    """How many lanes one wavefront can serve: as many as fill 128 bytes."""
    return min(LANES, LINE_BYTES // max(width, WORD_BYTES))


def equal_across(offsets: Sequence[int | None], distance: int) -> bool:
    """Whether each active lane t and lane t ^ distance want the same address, or the latter is inactive."""
    return all(
        offset is None or offsets[t ^ distance] is None or offsets[t ^ distance] == offset
        for t, offset in enumerate(offsets)
    )


def _merging(*distances: int, warp: bool = True, only_if_free: bool = False) -> Hypothesis:
    """Groups double where lanes at one of the distances agree. warp: all over the warp, not group by group."""

    def wavefronts(offsets: Pattern, width: int) -> int:
        lanes = group_lanes(width)
        if lanes == LANES:
            return passes(offsets, width)
        total = 0
        for first in range(0, LANES, 2 * lanes):
            merged = offsets[first : first + 2 * lanes]
            asked = offsets if warp else merged
            allowed = any(equal_across(asked, distance) for distance in distances)
            if only_if_free and by_groups(offsets, width, 2 * lanes) > LANES // (2 * lanes):
                allowed = False
            total += passes(merged, width) if allowed else by_groups(merged, width, lanes)
        return total

    return wavefronts


def never_merge(offsets: Pattern, width: int) -> int:
    return by_groups(offsets, width, group_lanes(width))


def _uniform_is_one(offsets: Pattern, width: int) -> int:
    active = {offset for offset in offsets if offset is not None}
    return 1 if len(active) == 1 else rule(offsets, width)


def _bandwidth(offsets: Pattern, width: int) -> int:
    """Banks and return path are separate limits: conflicts of all lanes at once, or registers to deliver."""
    registers = max(1, width // WORD_BYTES)
    if equal_across(offsets, 1) or equal_across(offsets, 2):
        registers = max(1, registers // 2)
    return max(passes(offsets, width), registers)


def _partner_must_be_active(offsets: Pattern, width: int) -> int:
    alone = any(
        offset is not None and offsets[t ^ 1] is None and offsets[t ^ 2] is None for t, offset in enumerate(offsets)
    )
    return never_merge(offsets, width) if alone else rule(offsets, width)


def _by_lane(offsets: Pattern, width: int) -> int:
    lanes = group_lanes(width)
    return sum(passes_by_lane(offsets[first : first + lanes], width) for first in range(0, LANES, lanes))


rule = _merging(1, 2)  # [1]

SHARED_LOAD: Mapping[str, Hypothesis] = {
    "rule": rule,
    "rule, if free of conflicts": _merging(1, 2, only_if_free=True),  # [2]
    "never merge": never_merge,
    "t^1 only": _merging(1),
    "t^2 only": _merging(2),
    "t^1, t^2 or t^3": _merging(1, 2, 3),
    "any one distance": _merging(1, 2, 4, 8, 16),
    "group by group": _merging(1, 2, warp=False),
    "uniform is one": _uniform_is_one,
    "partner must be active": _partner_must_be_active,
    "banks or return path": _bandwidth,
    "whole warp": passes,
}

SHARED_STORE: Mapping[str, Hypothesis] = {
    "never merge": never_merge,
    "rule of loads": rule,
    "lane by lane": _by_lane,
    "whole warp": passes,
}

CP_ASYNC: Mapping[str, Hypothesis] = {
    "like a store": never_merge,
    "lane by lane": _by_lane,  # [2]
    "rule of loads": rule,
    "whole warp": passes,
}


def matrix_hypotheses(matrices: int) -> dict[str, Hypothesis]:
    """For ldmatrix and stmatrix of 1, 2 or 4 matrices: row addresses are those of the first 8 * matrices lanes."""

    def rows(offsets: Pattern) -> Pattern:
        return offsets[: 8 * matrices] + (None,) * (LANES - 8 * matrices)

    return {
        "matrix by matrix": lambda offsets, width: never_merge(rows(offsets), width),
        "rule of loads": lambda offsets, width: rule(rows(offsets), width),
        "two matrices at once": lambda offsets, width: by_groups(rows(offsets), width, 16),
        "all at once": lambda offsets, width: passes(rows(offsets), width),
        "lane by lane": lambda offsets, width: _by_lane(rows(offsets), width),
    }


# --------------------------------------------------------------------------------------------- global memory


def sectors(offsets: Pattern, width: int) -> int:
    """Distinct 32-byte sectors of a request."""
    touched = [range(o // SECTOR_BYTES, (o + width - 1) // SECTOR_BYTES + 1) for o in offsets if o is not None]
    return len({sector for each in touched for sector in each})


def lines(offsets: Pattern, width: int) -> int:
    """Distinct 128-byte lines of a request."""
    return len(_lines(offsets, width))


def tag_passes(offsets: Pattern, width: int) -> int:
    """Passes of the tag stage: the most lines in one of four tag banks. [2]"""
    return max(Counter(_tag_bank(line) for line in _lines(offsets, width)).values(), default=0)


def _lines(offsets: Pattern, width: int) -> set[int]:
    return {
        line for o in offsets if o is not None for line in range(o // LINE_BYTES, (o + width - 1) // LINE_BYTES + 1)
    }


def _tag_bank(line: int) -> int:
    return (line ^ line >> 2 ^ line >> 4 ^ line >> 6 ^ line >> 8) & 3


GLOBAL_LOAD_CYCLES: Mapping[str, Hypothesis] = {
    "max(lines, sectors/4, width/4)": lambda o, w: max(lines(o, w), -(-sectors(o, w) // 4), w // 4),  # [1]
    "lines": lines,
    "tags or data": lambda o, w: max(tag_passes(o, w), never_merge(o, w)),  # [2]
    "tags plus data": lambda o, w: tag_passes(o, w) + never_merge(o, w),
    "data": never_merge,
    "data, merged": rule,
    "tags or data, merged": lambda o, w: max(tag_passes(o, w), rule(o, w)),
    "tags or data or sectors/4": lambda o, w: max(tag_passes(o, w), never_merge(o, w), -(-sectors(o, w) // 4)),
}

# [1]: (pattern, width) -> wavefronts, measured on an A100; pinned so that the rule here stays the rule there.
GOLDEN: Mapping[tuple[str, int], int] = {
    ("contiguous (64-1)", 8): 2,
    ("t/2 (64-2)", 8): 1,
    ("only 15,16: 4 (128-1)", 16): 2,
    ("only 0,15: 4 (128-2)", 16): 1,
    ("128-3", 16): 2,
    ("128-4", 16): 4,
    ("128-5", 16): 4,
    ("uniform", 16): 2,
    ("t%16 * 2 (k6 B)", 16): 8,
    ("t/16", 16): 2,
    ("t/4 * 2 (k10 A)", 16): 2,
}


def check_golden() -> None:
    """The rule gives the measured values of [1]; every hypothesis is told from the rule by some pattern."""
    for (name, width), expected in GOLDEN.items():
        got = rule(pattern(CHUNKS[name], width), width)
        assert got == expected, f"{name}, {width} bytes: the rule gives {got}, measured {expected}"
    for title, hypothesis in SHARED_LOAD.items():
        if hypothesis is not rule:
            told = [(n, w) for w in (8, 16) for n, o in shared_patterns(w).items() if hypothesis(o, w) != rule(o, w)]
            assert told, f"no pattern tells {title!r} from the rule"


if __name__ == "__main__":
    check_golden()
    for width in (4, 8, 16):
        for name, offsets in shared_patterns(width).items():
            print(f"{width:2} B  {name:36}", *(f"{each(offsets, width):3}" for each in SHARED_LOAD.values()))
