"""Sizes of problems, as they are written on a command line."""

from __future__ import annotations

import re

import typer


def parse_size(text: str, option: str = "--size") -> tuple[int, int, int]:
    """M, N and K from "256" or "512x256x64"; `option` is who said so.

    >>> parse_size("256"), parse_size("512x256x64")
    ((256, 256, 256), (512, 256, 64))
    """
    parts = re.split(r"[x×*,]", text.strip().lower())
    if len(parts) not in (1, 3) or not all(re.fullmatch(r"\s*\d+\s*", part) for part in parts):
        raise typer.BadParameter(
            f"{text!r} is not a size: write 256 for 256 x 256 x 256, or 512x256x64 for M x N x K.",
            param_hint=f"'{option}'",
        )
    m, *rest = (int(part) for part in parts)
    n, k = rest or (m, m)
    return m, n, k


def size_of_words(first: str, n: int | None, k: int | None, option: str) -> tuple[int, int, int]:
    """M, N and K of three words, or of one as `parse_size` takes it.

    >>> size_of_words("512", 256, 64, "M"), size_of_words("512x256x64", None, None, "M")
    ((512, 256, 64), (512, 256, 64))
    """
    if n is not None and k is None:
        raise typer.BadParameter("two numbers are no size: write M N K, one N, or MxNxK.", param_hint=f"'{option}'")
    return parse_size(first if n is None else f"{first}x{n}x{k}", option)
