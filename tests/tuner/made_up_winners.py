"""Winners that nobody measured. A module of its own: processes of tests that need no more of a search begin sooner."""

from __future__ import annotations

from typing import Any

from tilewright.kernels.simt import SimtConfig
from tilewright.winners.keys import DeviceKey, Key, ProblemKey, sources_version
from tilewright.winners.plan_config import PlanConfig
from tilewright.winners.winner import Winner


def a_winner(**changes: Any) -> Winner:
    """The winner of a problem that nobody measured: only for tests."""
    sizes = {name: changes.pop(name, 4096) for name in ("m", "n", "k")}
    alignment = changes.pop("alignment", 16)
    device = DeviceKey(changes.pop("device", "H200"), "9.0", 132)
    problem = ProblemKey("f32", "f32", "f32", "f32", "NNN", alignment, **sizes)
    values: dict[str, Any] = {
        "key": Key(device, problem),
        "config": PlanConfig(SimtConfig((128, 128, 16))),
        "order": "ascending",
        "kernel": "0123456789abcdef",
        "sources": sources_version(),
        "median_us": 100.0,
        "tflops": 1.0,
        "share_of_cublas": None,
        "tried": 1,
        "command": "tilewright tune",
        "commit": "",
        "date": "2026-01-01T00:00:00Z",
    }
    return Winner(**{**values, **changes})
