"""The part of a CUDA text that a page shows: the loop over k, where the time goes."""

from __future__ import annotations

import re

MOST_LINES = 90
"""A longer loop is cut short, where a line of its outermost level ends."""

_OVER_K = re.compile(r"^for \(int (\w*k\w*) = .*\bK\b|^for \(int k\w* = ")


def main_loop(cuda: str) -> str:
    """The outermost loop over k of the kernel, or its body where there is none; indented as if it stood alone.

    >>> print(main_loop("__global__ void f() {\\n    for (int k = 0; k < K; ++k) {\\n        x();\\n    }\\n}"))
    for (int k = 0; k < K; ++k) {
        x();
    }
    """
    lines = cuda[cuda.index("__global__") :].splitlines()
    starts = [at for at, line in enumerate(lines) if _OVER_K.match(line.strip())]
    if not starts:
        return _dedented(lines[1:], 0)
    longest = max(starts, key=lambda at: _length(lines, at))
    return _dedented(lines[longest : longest + _length(lines, longest)], _indent(lines[longest]))


def _length(lines: list[str], start: int) -> int:
    """Lines of the block that begins at `start`: up to the brace that closes it."""
    closing = " " * _indent(lines[start]) + "}"
    for at in range(start + 1, len(lines)):
        if lines[at].rstrip() == closing:
            return at + 1 - start
    return len(lines) - start


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _dedented(lines: list[str], by: int) -> str:
    text = [line[by:] for line in lines]
    if len(text) <= MOST_LINES:
        return "\n".join(text)
    return "\n".join([*text[:MOST_LINES], f"    ...  // {len(text) - MOST_LINES} more lines"])
