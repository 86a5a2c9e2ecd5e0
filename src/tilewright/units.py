"""Integer rounding, binary sizes, and quantities printed for people."""

from __future__ import annotations

import operator
from typing import SupportsIndex

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


def integer_of(value: object) -> int | None:
    """`value` as an int, also if it is one of NumPy's; None if it is not an integer. True is not a size."""
    if type(value) is int:
        return value
    return operator.index(value) if isinstance(value, SupportsIndex) and not isinstance(value, bool) else None


def ceil_div(a: int, b: int) -> int:
    """The smallest integer not below `a / b`, for `b > 0`.

    >>> ceil_div(7, 4), ceil_div(8, 4), ceil_div(0, 4)
    (2, 2, 0)
    """
    return -(-a // b)


def round_up(a: int, multiple: int) -> int:
    """`a` rounded up to a multiple of `multiple`.

    >>> round_up(13, 8)
    16
    """
    return ceil_div(a, multiple) * multiple


def resident_blocks(blocks: int, most: int, cluster: int, *, equal: bool) -> int:
    """How many of `blocks` a resident grid starts, in whole clusters, where `most` run at once.

    equal: each block stands for an item, all of the same length: no more are started than finish in as few rounds.

    >>> [resident_blocks(512, 132, 1, equal=equal) for equal in (False, True)]
    [132, 128]
    >>> [resident_blocks(blocks, 132, 4, equal=True) for blocks in (0, 100, 136)]
    [0, 100, 68]
    """
    clusters, room = blocks // cluster, max(1, most // cluster)
    if clusters <= room:
        return blocks
    return (ceil_div(clusters, ceil_div(clusters, room)) if equal else room) * cluster


def counted(count: int, noun: str, plural: str = "") -> str:
    """
    >>> counted(1, "block"), counted(2, "block"), counted(0, "entry", "entries")
    ('1 block', '2 blocks', '0 entries')
    """
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def with_article(noun: str, article: str = "a") -> str:
    """article: "A" at the beginning of a sentence.

    >>> with_article("list"), with_article("int"), with_article("ndarray", "A")
    ('a list', 'an int', 'An ndarray')
    """
    return f"{article}{'n' if noun[0].lower() in 'aeio' or noun == 'ndarray' else ''} {noun}"


def type_name(value: object, article: str = "a") -> str:
    """What a value is, as in a sentence.

    >>> type_name([]), type_name(3, "A")
    ('a list', 'An int')
    """
    return with_article(type(value).__name__, article)


def format_bytes(size_bytes: float) -> str:
    """A size in binary units.

    >>> format_bytes(512), format_bytes(8192), format_bytes(3 * 1024**3)
    ('512 B', '8.0 KiB', '3.0 GiB')
    """
    for unit, scale in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:.1f} {unit}"
    return f"{size_bytes:.0f} B"


def format_seconds(seconds: float) -> str:
    """A duration in the unit that leaves two to four digits.

    >>> format_seconds(2.5e-6), format_seconds(0.0213), format_seconds(12.3)
    ('2.50 us', '21.30 ms', '12.30 s')
    """
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.2f} {unit}"
    return f"{seconds * 1e9:.0f} ns"
