"""Points of the rungs of ladder `hopper`: the parameters of `kernels.wgmma.WgmmaConfig` that a rung leaves open."""

from __future__ import annotations

from tilewright.kernels.wgmma import WgmmaConfig, fits
from tilewright.kernels.wgmma_presets import at_depth
from tilewright.kernels.wgmma_steps import WgmmaTile
from tilewright.ladders.rung import Point
from tilewright.problem.gemm import Gemm


def tile_at(point: Point) -> WgmmaTile:
    """The tile of a point."""
    return WgmmaTile(point["m"], point["n"], point["consumers"])


def point_fits(point: Point) -> bool:
    """Whether a block of a point fits on an SM. subtiles: of the epilogue; per-thread stores where it has none."""
    m, n, subtiles = point["m"], point["n"], point.get("subtiles", 0)
    subtile = n // subtiles if subtiles else 0
    whole = subtile % 64 == 0 and (not subtiles or n % subtiles == 0)
    return whole and bool(fits(WgmmaConfig((m, n, 64), point["consumers"], stages=point["stages"], subtile=subtile)))


def point_of(config: WgmmaConfig) -> Point:
    """A kernel as a point of the rung's choices: all but k, which the format decides."""
    return {name: getattr(config, name) for name in config.columns if name not in ("k", "split_k")}


def config_at(gemm: Gemm, point: Point) -> WgmmaConfig:
    """The kernel of a point."""
    rest = {name: value for name, value in point.items() if name not in ("m", "n", "cluster_m", "cluster_n")}
    config = WgmmaConfig((point["m"], point["n"], 0), cluster=(point["cluster_m"], point["cluster_n"]), **rest)
    return at_depth(config, gemm)
