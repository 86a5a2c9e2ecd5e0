"""A kernel of any family as one value, as text for people, and as data that is checked when it is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np

from tilewright.kernels.columns import Columns
from tilewright.kernels.gemv import GemvConfig
from tilewright.kernels.mma import MmaConfig
from tilewright.kernels.simt import SimtConfig
from tilewright.kernels.wgmma import WgmmaConfig

GemmConfig = SimtConfig | MmaConfig | WgmmaConfig
"""Kernels that a schedule makes."""

KernelConfig = GemmConfig | GemvConfig

FAMILIES: Mapping[str, type[KernelConfig]] = {one.kind: one for one in (SimtConfig, MmaConfig, WgmmaConfig, GemvConfig)}
"""Every family by the `kind` of its configurations."""

_MOST = 1 << 20
"""Of any number in a configuration: anything above is a mistake or an attack."""


def to_data(config: KernelConfig) -> dict[str, Any]:
    """A configuration as plain values: its `kind` and its fields.

    >>> data = to_data(GemvConfig(split_k=4))
    >>> data["kind"], data["split_k"]
    ('gemv', 4)
    """
    values = {field.name: getattr(config, field.name) for field in fields(config)}
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    return {"kind": config.kind, **plain}


def from_data(data: Any) -> KernelConfig:
    """What `to_data` gave. A field that is missing has its default, if it has one.

    Raises ValueError that names the value which is not one of a configuration.

    >>> from_data({"kind": "gemv", "split_k": 4}) == GemvConfig(split_k=4)
    True
    """
    if not isinstance(data, dict) or data.get("kind") not in FAMILIES:
        raise ValueError(f"kernel is {data!r}: its kind is none of {', '.join(FAMILIES)}")
    family = FAMILIES[data["kind"]]
    hints = _hints(family.kind)
    unknown = set(data) - set(hints) - {"kind"}
    if unknown:
        raise ValueError(f"{family.kind} kernels have no {', '.join(sorted(map(str, unknown)))}")
    missing = [f.name for f in fields(family) if f.default is MISSING and f.name not in data]
    if missing:
        raise ValueError(f"{family.kind} kernel without {', '.join(missing)}")
    return family(**{name: _checked(name, hints[name], data[name]) for name in hints if name in data})


@cache
def _hints(kind: str) -> dict[str, Any]:
    family = FAMILIES[kind]
    hints = get_type_hints(family)
    return {field.name: hints[field.name] for field in fields(family)}


def _checked(name: str, kind: Any, value: Any) -> Any:
    if get_origin(kind) is tuple and isinstance(value, list) and len(value) == len(get_args(kind)):
        return tuple(_checked(name, one, part) for one, part in zip(get_args(kind), value, strict=True))
    if get_origin(kind) is Literal and isinstance(value, str) and value in get_args(kind):
        return value
    if kind is int and type(value) is int and 0 <= value <= _MOST:
        return value
    if (kind is bool or kind is str) and type(value) is kind:
        return value
    raise ValueError(f"{name} is {value!r}")


def row_of(kind: str, columns: Columns, index: int) -> GemmConfig:
    """One configuration of a table of a family: what `Columns.of` took, but for other columns.

    >>> table = Columns.of([SimtConfig(split_k=2)], SimtConfig.columns)
    >>> row_of("simt", table, 0) == SimtConfig(split_k=2)
    True
    """
    parts = _parts_of(kind)
    told = columns.values(index, [name for names, _ in parts for name in names])
    fields: list[Any] = []
    for names, is_truth in parts:
        one = told[names[0]] if len(names) == 1 else tuple(told[name] for name in names)
        fields.append(bool(one) if is_truth else one)
    found = FAMILIES[kind](*fields)
    assert not isinstance(found, GemvConfig)  # of which there are no tables
    return found


def rows_of(kind: str, columns: Columns, places: Sequence[int]) -> list[GemmConfig]:
    """Configurations of a table of a family, as `row_of`."""
    chosen = columns[np.asarray(places, dtype=np.int64)]
    lists: list[Any] = []
    for names, is_truth in _parts_of(kind):
        each = [getattr(chosen, name).tolist() for name in names]
        lists.append(zip(*each, strict=True) if len(names) > 1 else map(bool, each[0]) if is_truth else each[0])
    found: list[Any] = list(map(FAMILIES[kind], *lists))
    return found


@cache
def _parts_of(kind: str) -> tuple[tuple[tuple[str, ...], bool], ...]:
    """Of each field of a family, the columns of which it is made, and whether it is a truth value."""
    return tuple((_PARTS.get(name, (name,)), hint is bool) for name, hint in _hints(kind).items())


def parameters(config: KernelConfig) -> dict[str, Any]:
    """Every number, truth value or word of a configuration by its name; a tile is three."""
    names = ("split_k",) if isinstance(config, GemvConfig) else config.columns
    return {name: getattr(config, name) for name in names}


_PARTS: Mapping[str, tuple[str, ...]] = {
    "tile": ("m", "n", "k"),
    "warp_tile": ("warp_m", "warp_n"),
    "cluster": ("cluster_m", "cluster_n"),
}
"""The columns of fields that are tuples."""


def name_of(config: KernelConfig) -> str:
    """The family and the tile, for people and for entries of kernels.

    >>> name_of(SimtConfig()), name_of(GemvConfig(split_k=2))
    ('simt 128x256', 'gemv')
    """
    return config.kind if isinstance(config, GemvConfig) else f"{config.kind} {config.m}x{config.n}"


def described(config: KernelConfig) -> str:
    """The family and every field that is not at its default.

    >>> described(SimtConfig(tile=(64, 64, 16), split_k=2))
    'simt(tile=64x64x16, split_k=2)'
    """
    told = []
    for field in fields(config):
        value = getattr(config, field.name)
        if value != field.default:
            told.append(f"{field.name}={'x'.join(map(str, value)) if isinstance(value, tuple) else value}")
    return f"{config.kind}({', '.join(told)})" if told else config.kind
