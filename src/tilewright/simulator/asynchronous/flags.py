"""Flags in global memory: what was known to whoever set each."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tilewright.dtypes import Array

FLAGS = "flag"
"""What a journal calls them."""

COPY_ENGINES = -1
"""In place of the GPU of a thread."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What the last setter of a flag knew. gpu: whose it is. of_system: whether it orders other GPUs, too."""

    row: Array
    gpu: int = 0
    of_system: bool = False


@dataclass(slots=True)
class Flags:
    """The flags of a buffer. settings: of those that were set, by their number among all GPUs', of which these are the
    ones from `first` on. times: how often each was set, counted for a journal."""

    values: Array
    first: int = 0
    settings: dict[int, Setting | None] = field(default_factory=dict)
    times: Array = field(init=False)

    def __post_init__(self) -> None:
        self.times = np.zeros(len(self.values), np.int64)

    def set(self, flag: int, value: int, setting: Setting | None) -> None:
        """setting: None where whoever finds the value learns nothing."""
        self.values[flag] = value
        self.settings[self.first + flag] = setting

    def add(self, flag: int, value: int, setting: Setting) -> None:
        """All who add are of one GPU; whoever finds the sum learns what each of them knew."""
        before = self.setting(flag) if self.values[flag] else None
        if before is not None:
            assert before.gpu == setting.gpu, "threads of several GPUs count in one flag"
            row, of_system = np.maximum(before.row, setting.row), before.of_system and setting.of_system
            setting = Setting(row, setting.gpu, of_system)
        self.set(flag, int(self.values[flag]) + value, setting)

    def setting(self, flag: int) -> Setting | None:
        """Of the last time that a flag was set; None where it never was, or told nothing."""
        return self.settings.get(self.first + flag)
