"""Architectures that kernels are compiled for, and the instructions each one has.

    cubin for sm_XY      runs on X.Z with Z >= Y
    cubin for sm_XYa     runs on X.Y only, and may use the instructions that NVIDIA does not carry forward

Sources: [1] PTX ISA 9.0, "Target ISA notes" of each instruction; [2] CUDA C++ programming guide, "Compute
capabilities" (binary compatibility, architecture-specific features); [3] the targets that NVRTC 13.0 accepts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from tilewright.errors import CompileError, UnknownName


class Feature(Enum):
    """Something an instruction needs from the architecture. The value is the PTX name, for people."""

    WMMA_F16 = "wmma.mma (f16)"
    MMA_F16 = "mma.sync.m16n8k8 (f16)"
    LDMATRIX = "ldmatrix"
    MMA_F16_K16 = "mma.sync.m16n8k16 (f16)"
    MMA_BF16 = "mma.sync (bf16)"
    MMA_TF32 = "mma.sync (tf32)"
    WMMA_BF16_TF32 = "wmma.mma (bf16, tf32)"
    CP_ASYNC = "cp.async"
    MBARRIER = "mbarrier"
    L2_POLICY = "createpolicy"
    MMA_F8 = "mma.sync (e4m3, e5m2)"
    STMATRIX = "stmatrix"
    MBARRIER_TX = "mbarrier.expect_tx and try_wait"
    TMA = "cp.async.bulk.tensor"
    CLUSTER = "block clusters"
    DEPENDENT_LAUNCH = "griddepcontrol"
    WGMMA = "wgmma.mma_async"
    SETMAXNREG = "setmaxnreg"
    FMA_F32X2 = "fma.rn.f32x2"
    TCGEN05 = "tcgen05.mma"


# The first compute capability that has a feature; every later one has it too.  [1]
SINCE: dict[Feature, tuple[int, int]] = {
    Feature.WMMA_F16: (7, 0),
    Feature.MMA_F16: (7, 5),
    Feature.LDMATRIX: (7, 5),
    Feature.MMA_F16_K16: (8, 0),
    Feature.MMA_BF16: (8, 0),
    Feature.MMA_TF32: (8, 0),
    Feature.WMMA_BF16_TF32: (8, 0),
    Feature.CP_ASYNC: (8, 0),
    Feature.MBARRIER: (8, 0),
    Feature.L2_POLICY: (8, 0),
    Feature.MMA_F8: (8, 9),
    Feature.STMATRIX: (9, 0),
    Feature.MBARRIER_TX: (9, 0),
    Feature.TMA: (9, 0),
    Feature.CLUSTER: (9, 0),
    Feature.DEPENDENT_LAUNCH: (9, 0),
    Feature.FMA_F32X2: (10, 0),
}

# Features that only the named architecture-specific targets have.  [1]
ONLY_ON: dict[Feature, tuple[str, ...]] = {
    Feature.WGMMA: ("sm_90a",),
    Feature.SETMAXNREG: ("sm_90a", "sm_100a", "sm_103a", "sm_120a"),
    Feature.TCGEN05: ("sm_100a", "sm_103a"),
}


@dataclass(frozen=True, slots=True)
class Arch:
    """A compilation target, such as sm_86 or sm_90a."""

    compute_capability: tuple[int, int]
    is_specific: bool = False

    @property
    def name(self) -> str:
        """
        >>> Arch((9, 0), is_specific=True).name
        'sm_90a'
        """
        major, minor = self.compute_capability
        return f"sm_{major}{minor}{'a' if self.is_specific else ''}"

    @property
    def features(self) -> frozenset[Feature]:
        return frozenset(feature for feature in Feature if self.has(feature))

    def has(self, feature: Feature) -> bool:
        """
        >>> arch("sm_90a").has(Feature.WGMMA), arch("sm_90").has(Feature.WGMMA)
        (True, False)
        """
        if feature in ONLY_ON:
            return self.name in ONLY_ON[feature]
        return self.compute_capability >= SINCE[feature]

    def missing(self, needed: Iterable[Feature]) -> tuple[Feature, ...]:
        """Those of `needed` that this architecture lacks, each once, in the order of `Feature`."""
        needed = set(needed)
        return tuple(feature for feature in Feature if feature in needed and not self.has(feature))

    def runs_on(self, compute_capability: tuple[int, int]) -> bool:
        """Whether machine code for this target runs on a GPU of that compute capability.  [2]

        >>> arch("sm_80").runs_on((8, 6)), arch("sm_86").runs_on((8, 0)), arch("sm_90a").runs_on((10, 0))
        (True, False, False)
        """
        if self.is_specific:
            return self.compute_capability == compute_capability
        major, minor = self.compute_capability
        return major == compute_capability[0] and minor <= compute_capability[1]

    def __str__(self) -> str:
        return self.name


ARCHS = (
    Arch((7, 5)),
    Arch((8, 0)),
    Arch((8, 6)),
    Arch((8, 7)),
    Arch((8, 9)),
    Arch((9, 0)),
    Arch((9, 0), is_specific=True),
    Arch((10, 0)),
    Arch((10, 0), is_specific=True),
    Arch((10, 3)),
    Arch((10, 3), is_specific=True),
    Arch((12, 0)),
    Arch((12, 0), is_specific=True),
)
"""The targets we compile for, oldest first.  [3]"""

_BY_NAME = {known.name: known for known in ARCHS}


def arch(name: str | Arch) -> Arch:
    """The target called `name`: "sm_86", "compute_86", "86" or "8.6", with an "a" where it is specific.

    >>> arch("9.0a").name, arch("sm_86").compute_capability
    ('sm_90a', (8, 6))
    """
    if isinstance(name, Arch):
        return name
    digits = re.sub(r"^(sm|compute)_?|\.", "", name.strip().lower())
    known = _BY_NAME.get(f"sm_{digits}")
    if known is None and re.fullmatch(r"\d{2}a?", digits) and int(digits[:2]) < int(ARCHS[0].name[3:]):
        raise CompileError(
            f"No kernel can be compiled for {name}: {ARCHS[0]} is the oldest architecture that NVRTC 13 knows.",
            hint=f"name {ARCHS[0]} or a later one.",
        )
    if known is None:
        raise UnknownName("architecture", name, _BY_NAME)
    return known


def archs_with(feature: Feature) -> str:
    """Where a feature exists, in words.

    >>> archs_with(Feature.CP_ASYNC), archs_with(Feature.WGMMA)
    ('sm_80 and later', 'sm_90a')
    """
    if feature in ONLY_ON:
        return ", ".join(ONLY_ON[feature])
    return f"{Arch(SINCE[feature])} and later"
