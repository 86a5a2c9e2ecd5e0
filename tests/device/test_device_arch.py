import itertools

import pytest

from tilewright.device.arch import ARCHS, Arch, Feature, arch
from tilewright.errors import UnknownName


def test_names_read_back() -> None:
    for known in ARCHS:
        assert arch(known.name) is known
        assert arch(known) is known


@pytest.mark.parametrize("spelling", ["sm_86", "SM_86", "compute_86", "86", "8.6", " sm86 "])
def test_lookup_forgives(spelling: str) -> None:
    assert arch(spelling) == Arch((8, 6))


def test_lookup_suggests_the_nearest() -> None:
    with pytest.raises(UnknownName, match=r"There is no architecture 'sm_91a'\.\n  Hint: did you mean 'sm_90a'"):
        arch("sm_91a")


@pytest.mark.parametrize(
    ("name", "has", "lacks"),
    [
        ("sm_75", {Feature.WMMA_F16, Feature.MMA_F16, Feature.LDMATRIX}, {Feature.CP_ASYNC, Feature.MMA_BF16}),
        ("sm_80", {Feature.CP_ASYNC, Feature.MMA_TF32, Feature.MBARRIER}, {Feature.MMA_F8, Feature.STMATRIX}),
        ("sm_89", {Feature.MMA_F8}, {Feature.TMA, Feature.CLUSTER}),
        ("sm_90", {Feature.TMA, Feature.STMATRIX, Feature.CLUSTER}, {Feature.WGMMA, Feature.SETMAXNREG}),
        ("sm_90a", {Feature.WGMMA, Feature.SETMAXNREG, Feature.TMA}, {Feature.TCGEN05, Feature.FMA_F32X2}),
        ("sm_100a", {Feature.TCGEN05, Feature.FMA_F32X2, Feature.SETMAXNREG}, {Feature.WGMMA}),
    ],
)
def test_features(name: str, has: set[Feature], lacks: set[Feature]) -> None:
    assert has <= arch(name).features
    assert set(arch(name).missing(has | lacks)) == lacks


def test_a_portable_target_only_gains_features_with_time() -> None:
    portable = [known for known in ARCHS if not known.is_specific]
    for older, newer in itertools.pairwise(portable):
        assert older.features <= newer.features


def test_binary_compatibility() -> None:
    assert arch("sm_80").runs_on((8, 9))
    assert not arch("sm_89").runs_on((8, 6))
    assert not arch("sm_80").runs_on((9, 0))
    assert arch("sm_90a").runs_on((9, 0))
    assert not arch("sm_100a").runs_on((10, 3))
