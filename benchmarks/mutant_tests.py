"""A plugin of pytest for `benchmarks/mutants.py`: which tests a mutant meets, and whether they find it.

`TILEWRIGHT_MUTANTS` names a job, as JSON. Its `mode`:

`reach`: the tests run once, with a probe at the place of every mutant. A line of `out` per test: the seconds that it
took, and the mutants that would have changed a value in it. One line says the same of importing and collecting.

`fork`: the tests are collected once; for each mutant a child of the process takes over the changed functions and runs
the mutant's tests, until one fails. The child cannot have what changes at import: `unknown`.

`alone`: one mutant, imported as it is, in a process of its own.
"""

from __future__ import annotations

import functools
import gc
import importlib.machinery
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
from mutant_places import PROBE, ROOT, Mutant, changed_codes, digest, meanings, probed

CPU_LIMIT_S = 5.0
"""Beside five times what a test takes: one that needs more goes round in a circle, and its mutant is killed."""
MEMORY_LIMIT_BYTES = 8 << 30

JOB: dict[str, Any] = json.loads(Path(os.environ["TILEWRIGHT_MUTANTS"]).read_text())
MUTANTS = {one["name"]: Mutant(**{**one, "node": tuple(one["node"])}) for one in JOB["mutants"]}
SECONDS: dict[str, float] = JOB["seconds"]
TOLD = os.fdopen(os.dup(2), "w", buffering=1)

_as_it_is = importlib.machinery.SourceFileLoader.get_code


def _append(line: Mapping[str, Any]) -> None:
    with Path(JOB["out"]).open("a", encoding="utf-8") as out:
        out.write(json.dumps(line) + "\n")


def _import_as(codes: Mapping[str, Any]) -> None:
    """From now on these modules are imported from other code: a syntax tree, or bytes."""

    def get_code(self: Any, name: str) -> CodeType | None:
        path = str(self.path)
        if path in codes:
            return compile(codes[path], path, "exec", dont_inherit=True)
        return _as_it_is(self, name)

    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign]


@functools.cache
def _state(file: Path) -> str:
    return digest([file])


def _differs(one: object, other: object) -> bool:
    import numpy as np

    if type(one) is not type(other):
        return True
    if isinstance(one, np.ndarray):
        return not np.array_equal(one, other)
    return not bool(one == other)


class Probe:
    """What a probe calls, and the mutants that change a value in the test that runs."""

    def __init__(self) -> None:
        self.met: set[str] = set()
        self.meanings = meanings(list(MUTANTS.values()))

    def __call__(self, name: str, *operands: Any) -> Any:
        if not operands:
            self.met.add(name)
            return None
        meant, planted = self.meanings[name]
        value = meant(*operands)
        if name not in self.met:
            try:
                differs = _differs(value, planted(*operands))
            except Exception:
                differs = True
            if differs:
                self.met.add(name)
        return value


match JOB["mode"]:
    case "reach":
        import builtins

        PROBED = Probe()
        setattr(builtins, PROBE, PROBED)
        _modules: dict[str, list[Mutant]] = {}
        for _mutant in MUTANTS.values():
            _modules.setdefault(_mutant.module, []).append(_mutant)
        _import_as({str(ROOT / module): probed(module, mutants) for module, mutants in _modules.items()})
    case "alone":
        _import_as({str(ROOT / one.module): one.mutated() for one in MUTANTS.values()})


@functools.cache
def _caches() -> list[Any]:
    """The caches of the library's functions: those that are there when the first test begins."""
    return [
        one
        for one in gc.get_objects()
        if type(one) is functools._lru_cache_wrapper and str(one.__module__).startswith("tilewright")
    ]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Only the tests of the job, if it names any; in a process of its own, a mutant meets them in the job's order."""
    if JOB["mode"] == "reach":
        done = set(JOB["tests"])
        items[:] = [item for item in items if item.nodeid not in done]
    elif JOB["tests"]:
        order = {name: place for place, name in enumerate(JOB["tests"])}
        items[:] = sorted((item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid])


def pytest_collection_finish() -> None:
    if JOB["mode"] == "reach":
        _append({"at_import": sorted(PROBED.met)})


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    if JOB["mode"] == "reach":
        function = item.nodeid.partition("[")[0]
        if function != getattr(pytest_runtest_protocol, "function", None):
            pytest_runtest_protocol.function = function  # type: ignore[attr-defined]
            for cache in _caches():
                cache.cache_clear()
        PROBED.met.clear()
        failed, start = item.session.testsfailed, time.process_time()
        done = yield
        seconds = round(time.process_time() - start, 4)
        passed = item.session.testsfailed == failed
        told = {"test": item.nodeid, "s": seconds, "passed": passed, "met": sorted(PROBED.met)}
        _append({**told, "state": _state(item.path)})
        return done
    signal.setitimer(signal.ITIMER_PROF, CPU_LIMIT_S + 5 * SECONDS.get(item.nodeid, 1.0))
    done = yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    return done


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    if JOB["mode"] != "fork":
        return None
    for cache in _caches():
        cache.cache_clear()
    functions = [one for one in gc.get_objects() if type(one) is FunctionType]
    by_name = {item.nodeid: item for item in session.items}
    killers: set[str] = set()
    gc.freeze()
    for name, mutant in MUTANTS.items():
        start = time.perf_counter()
        codes = changed_codes(mutant)
        changed = [(one, codes[one.__code__]) for one in functions if one.__code__ in codes]
        tests = [by_name[test] for test in JOB["meets"][name] if test in by_name]
        if changed:
            verdict, by = _in_child(tests, changed)
        else:
            verdict, by = "unknown", None
        if by is not None:
            killers.add(by)
        _append({"mutant": name, "verdict": verdict, "by": by, "chosen": JOB["meets"][name]})
        seconds = time.perf_counter() - start
        print(f"{verdict:9} {mutant.place}: {mutant.change} ({len(tests)}, {seconds:.0f} s)", file=TOLD)
    for test in sorted(killers):
        if _in_child([by_name[test]], ())[0] != "survived":
            _append({"fails_by_itself": test})
            print(f"fails without a mutant: {test}", file=TOLD)
    return True


def _in_child(tests: Sequence[pytest.Item], changed: Sequence[tuple[FunctionType, CodeType]]) -> tuple[str, str | None]:
    """What a child process that has the changed functions says, and the test by which it was killed."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reads)
        _child(tests, changed, writes)
    os.close(writes)
    with os.fdopen(reads) as told:
        names = told.read().splitlines()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return ("circle" if os.WTERMSIG(status) == signal.SIGPROF else "killed"), names[-1] if names else None
    return ("survived", None) if os.WEXITSTATUS(status) == 0 else ("killed", names[-1] if names else None)


def _child(tests: Sequence[pytest.Item], changed: Sequence[tuple[FunctionType, CodeType]], told: int) -> None:
    """Runs tests until one fails; never returns."""
    code = 1
    try:
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        for function, new in changed:
            function.__code__ = new
        for item, after in _pairs(tests):
            os.write(told, f"{item.nodeid}\n".encode())
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            if item.session.testsfailed:
                break
        else:
            code = 0
    finally:
        os._exit(code)


def _pairs(tests: Sequence[pytest.Item]) -> Iterator[tuple[pytest.Item, pytest.Item | None]]:
    """Each test with the next."""
    yield from zip(tests, [*tests, None][1:], strict=True)


def pytest_unconfigure() -> None:
    sys.stdout.flush()
