"""Uniform numbers from a counter: Philox4x32-10, which gives the same bits for the same element on every machine.

The key is (seed, offset). The counter of an element in row r and column c is (c // 4, r, 0, 0), and its number word
c % 4 of the four; the upper 24 bits of it, over 2**24. Source: J. Salmon, M. Moraes, R. Dror, D. Shaw, Parallel random
numbers: as easy as 1, 2, 3, SC 2011; the constants are those of the paper's Random123.
"""

from __future__ import annotations

import numpy as np

from tilewright.dtypes import Array

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
WORDS = 4

LARGEST_SEED = 2**24 - 1
"""Seeds and offsets are whole numbers that an f32 holds, in which kernels take their scalars."""


def philox(counter: tuple[Array, Array, Array, Array], key: tuple[int, int]) -> tuple[Array, Array, Array, Array]:
    """The four words of counters, each of 32 bits, as uint64.

    >>> zero = np.zeros(1, np.uint64)
    >>> [hex(int(word[0])) for word in philox((zero, zero, zero, zero), (0, 0))]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    low = np.uint64(0xFFFFFFFF)
    shift = np.uint64(32)
    words, (k0, k1) = tuple(np.asarray(word, np.uint64) for word in counter), key
    for _ in range(ROUNDS):
        first, second = words[0] * np.uint64(MULTIPLIERS[0]), words[2] * np.uint64(MULTIPLIERS[1])
        words = (
            (second >> shift) ^ words[1] ^ np.uint64(k0),
            second & low,
            (first >> shift) ^ words[3] ^ np.uint64(k1),
            first & low,
        )
        k0, k1 = (k0 + KEY_STEPS[0]) & 0xFFFFFFFF, (k1 + KEY_STEPS[1]) & 0xFFFFFFFF
    return words[0], words[1], words[2], words[3]


def uniform(seed: int, offset: int, row: Array, column: Array) -> Array:
    """The numbers of elements, in [0, 1), in f32. row, column: whole numbers, which broadcast.

    >>> uniform(7, 0, np.arange(2)[:, None], np.arange(4)).shape
    (2, 4)
    """
    rows, columns = np.broadcast_arrays(np.asarray(row, np.uint64), np.asarray(column, np.uint64))
    zero = np.zeros_like(rows)
    words = np.stack(philox((columns // np.uint64(WORDS), rows, zero, zero), (seed, offset)))
    chosen = np.take_along_axis(words, (columns % np.uint64(WORDS)).astype(np.int64)[None], axis=0)[0]
    found: Array = ((chosen >> np.uint64(8)).astype(np.float32)) * np.float32(2.0**-24)
    return found
