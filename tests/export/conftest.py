from __future__ import annotations

import os
from pathlib import Path

import pytest
from exports import KINDS, Project, compiled, project

from tilewright.runtime.cubin_cache import CubinCache


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> CubinCache:
    """All workers' together: each has a folder of its own in that of the run."""
    own = tmp_path_factory.getbasetemp()
    run = own.parent if os.environ.get("PYTEST_XDIST_WORKER") else own
    return CubinCache(run / "cubins")


@pytest.fixture(
    scope="session",
    params=[pytest.param(kind, marks=[] if kind == "hopper" else [pytest.mark.slow]) for kind in KINDS],
)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, cache: CubinCache) -> Project:
    """One project of each kind, written."""
    return project(request.param, tmp_path_factory.mktemp("exports") / request.param, cache)


@pytest.fixture(scope="session")
def built(exported: Project) -> Path:
    """The folder with its programs."""
    return compiled(exported)
