"""Lines of formats 1 and 2, which named a kernel by a rung of a ladder and a point of its parameters.

`converted` gives the configuration that is the same kernel today. This module alone knows the old names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tilewright.errors import TilewrightError
from tilewright.kernels.configuration import KernelConfig
from tilewright.kernels.gemv import GemvConfig
from tilewright.kernels.mma import MmaConfig, Store
from tilewright.kernels.simt import SimtConfig
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.ladders.worklog_points import config_at
from tilewright.winners.plan_config import PlanConfig

LAST_OLD_FORMAT = 2


class RetiredKernel(TilewrightError):
    """A line of a kernel that is a configuration of no family: a rung that only teaches."""


def converted(data: Mapping[str, Any], element_bytes: int) -> PlanConfig:
    """The plan of an old line. element_bytes: of A and B, whose tiles had a depth in bytes.

    Raises RetiredKernel for a kernel of no family; KeyError, TypeError or ValueError for what is not a line.
    """
    rung, point, parts = data["rung"], data["point"], data.get("splits", 1)
    if not isinstance(rung, str) or not isinstance(point, dict) or type(parts) is not int or parts < 1:
        raise TypeError(f"{rung!r}, {point!r}, {parts!r} are not a kernel")
    read = _FAMILIES.get(rung)
    if read is None or (rung != "thin" and not point):
        raise RetiredKernel(f"its kernel, {rung}, is one that only teaches")
    around = {"packed": data.get("pads", []), "transposed": data.get("turned", [])}
    plain = {name: value for name, value in around.items() if value}
    whole = {"tile_multiples": data["filled"]} if "filled" in data else {}
    kernel = read(_checked(point), element_bytes)
    checked = PlanConfig.from_data({"config": {"kind": "gemv"}, **plain, **whole})
    return PlanConfig(kernel.with_split_k(parts), checked.packed, checked.transposed, checked.tile_multiples)


def _checked(point: Mapping[str, Any]) -> Mapping[str, Any]:
    for name, value in point.items():
        if not (type(value) in (int, bool, str) or value is None):
            raise TypeError(f"{name} is {value!r}")
        if isinstance(value, int) and not 0 <= value <= 1 << 20:
            raise ValueError(f"{name} is {value!r}")
    return point


def _simt(point: Mapping[str, Any], element_bytes: int) -> SimtConfig:
    return config_at(point)  # the rung is searched by these names still


def _mma(point: Mapping[str, Any], element_bytes: int) -> MmaConfig:
    store: Store = "quad_shuffle" if point.get("traded") else "shared" if point.get("in_parts") else "per_thread"
    return MmaConfig(
        tile=(point["m"], point["n"], point["k_bytes"] // element_bytes),
        warp_tile=(point["warp_m"], point["warp_n"]),
        stages=point["stages"],
        double_buffered_fragments=point["ahead"],
        in_place_fragments=point.get("in_place", False),
        interleaved_copies=point["spread"],
        copy_issue_distance=point.get("behind", 0),
        serpentine=point["snake"],
        n_outer=point.get("outer", "m_frag") == "n_frag",
        row_threads=point.get("row_threads", 0),
        raster_rows=point["group"],
        store=store,
        persistent=point.get("stays", False),
    )


def _wgmma(point: Mapping[str, Any], element_bytes: int, *, early: bool, walks: bool) -> WgmmaConfig:
    ping_pong = point.get("turns", 1) > 1
    parts, pair = point.get("parts", 0), point.get("blocks", 1)
    return WgmmaConfig(
        tile=(point["m"], point["n"], 128 // element_bytes),
        consumers=point["turns"] if ping_pong else point["groups"],
        ping_pong=ping_pong,
        cluster=(pair, 1) if point.get("along") == "m_block" else (1, pair),
        stages=point["stages"],
        swap_ab=bool(point.get("turned", 0)),
        persistent=bool(point.get("walks", walks)),
        raster_rows=point.get("rows", 1),
        subtile=point["n"] // parts if parts else 0,
        subtile_stages=point.get("places", 2),
        dependent_launch=bool(point.get("early", early)),
    )


def _best(point: Mapping[str, Any], element_bytes: int) -> WgmmaConfig:
    return _wgmma(point, element_bytes, early=True, walks=True)


def _lower(point: Mapping[str, Any], element_bytes: int) -> WgmmaConfig:
    return _wgmma(point, element_bytes, early=False, walks="rows" in point)


def _gemv(point: Mapping[str, Any], element_bytes: int) -> GemvConfig:
    return GemvConfig()


_FAMILIES: Mapping[str, Callable[[Mapping[str, Any], int], KernelConfig]] = {
    "thin": _gemv,
    "worklog/best": _simt,
    "ampere/6": _mma,
    "ampere/full": _mma,
    **{f"hopper/{number}": _lower for number in (4, 5, 6, 7, 8)},
    **{f"hopper/{slug}": _lower for slug in ("persistent", "stored_by_engine", "multicast", "taking_turns")},
    "hopper/shared_b": _lower,
    "hopper/9": _best,
    "hopper/best": _best,
}
