"""How many planted faults the tests find: `make mutants`, or

    python benchmarks/mutants.py --sample 40 --packages layout simulator --write

A mutant is one changed place in one module (`mutant_places.py`). Of each package so many are drawn, the same for the
same seed. One run of the tests finds which of them each mutant could disturb; each is then put to those, one case of
every test function first, the quickest first, up to 60 seconds of them, and is killed when one fails
(`mutant_tests.py`). One that changes what is computed at import has a process of its own. Verdicts are kept in
build/mutants while src stays as it is: a run that was stopped goes on. Which tests a mutant could disturb is kept until
the file of the test changes: it says what is tried first, and the worst that an old answer does is to let one live.

A survivor that changes no behaviour is listed with the reason in benchmarks/mutants_equivalent.json, and counts neither
way. `--write` writes benchmarks/results/mutants.json, where packages that were not judged keep what was said of them,
and the table of CONTRIBUTING.md; `--check` compares the two.
Needs no GPU; needs os.fork.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from mutant_places import ROOT, Mutant, all_of, digest, drawn

from tilewright.bench.records import command, commit, now

PACKAGES = ("layout", "simulator", "lowering", "planning")
TESTS = (
    "tests/layout",
    "tests/test_layout_search.py",
    "tests/simulator",
    "tests/mutations",
    "tests/properties",
    "tests/planning",
    "tests/lowering",
    "tests/ladders",
    "tests/kernels",
    "tests/codegen",
    "tests/schedule",
    "tests/isa",
    "tests/frontend",
    "tests/prediction",
    "tests/tuner",
    "src/tilewright/layout",
    "src/tilewright/simulator",
    "src/tilewright/lowering",
    "src/tilewright/planning",
)
BUDGET_S = 60.0
"""Of CPU time, as the tests take it without a mutant. A mutant that lives through so much survives."""
_TURNS = 3
"""In which mutants meet other tests than those that turn out to fail by themselves."""
_VERDICT = {0: "survived", 5: "survived"}
ENDED = (0, 1, 5)
"""Statuses of pytest: all passed, some failed, none selected."""
SOURCES_DIGEST = digest(sorted((ROOT / "src").rglob("*.py")))
WORK = ROOT / "build" / "mutants"
PASSES = WORK / "passes.json"
"""The names of the mutants whose probes stood in each run that wrote `reach_<number>.jsonl`."""
RECORD = ROOT / "benchmarks" / "results" / "mutants.json"
NAMED = ROOT / "benchmarks" / "mutants_named.json"
EQUIVALENT = ROOT / "benchmarks" / "mutants_equivalent.json"
PAGE = ROOT / "CONTRIBUTING.md"
MARKS = ("<!-- mutants: begin -->", "<!-- mutants: end -->")


def log_of(mode: str) -> Path:
    """What pytest says in a run of this process."""
    return WORK / f"{mode}_{os.getpid()}.log"


def pytest_with(job: Mapping[str, Any], paths: Iterable[str], *more: str) -> int:
    """The exit status of a run with the plugin."""
    WORK.mkdir(parents=True, exist_ok=True)
    told = log_of(job["mode"]).with_suffix(".json")
    told.write_text(json.dumps(job), encoding="utf-8")
    folders = [str(ROOT / "src"), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(folders),
        "PYTHONDONTWRITEBYTECODE": "1",
        "TILEWRIGHT_MUTANTS": str(told),
    }
    words = ["-q", "--assert=plain", "-p", "mutant_tests", "-p", "no:cacheprovider", "-p", "no:xdist", *more]
    with log_of(job["mode"]).open("w") as log:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *words, *paths], cwd=ROOT, env=environment, stdout=log, check=False
        )
    return done.returncode


def append(path: Path, line: Mapping[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as out:
        out.write(json.dumps(line) + "\n")


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def reached(mutants: Sequence[Mutant], folders: Sequence[str]) -> tuple[dict[str, list[str]], dict[str, float]]:
    """The tests that each mutant could disturb; and the seconds of each test."""
    WORK.mkdir(parents=True, exist_ok=True)
    names = {mutant.name for mutant in mutants}
    passes: list[list[str]] = json.loads(PASSES.read_text()) if PASSES.exists() else []
    new = names.difference(*passes)
    if new:
        passes.append(sorted(new))
        PASSES.write_text(json.dumps(passes))
    every = {mutant.name: mutant for package in PACKAGES for mutant in all_of(package)}
    meets: dict[str, list[str]] = {name: [] for name in sorted(names)}
    seconds: dict[str, float] = {}
    for number, probes in enumerate(passes):
        if names.isdisjoint(probes):
            continue
        out = WORK / f"reach_{number}.jsonl"
        _run_with_probes([every[name] for name in probes if name in every], folders, out)
        for line in _still_true(out):
            if line["passed"]:
                seconds.setdefault(line["test"], line["s"])
                for name in names.intersection(line["met"]):
                    meets[name].append(line["test"])
    return meets, seconds


def _run_with_probes(mutants: Sequence[Mutant], folders: Sequence[str], out: Path) -> None:
    """Runs the tests that `out` does not know as they are."""
    for folder in folders:
        state = {"all": folder, "state": digest(_files_of(folder))}
        if state in lines_of(out):
            continue
        job = {"mode": "reach", "mutants": [asdict(one) for one in mutants], "out": str(out), "seconds": {}}
        if pytest_with({**job, "tests": [line["test"] for line in _still_true(out)]}, [folder]) in ENDED:
            append(out, state)


def _files_of(folder: str) -> list[Path]:
    """The tests of a folder: of src, the examples in its modules."""
    pattern = "*.py" if folder.startswith("src") else "test_*.py"
    return sorted((ROOT / folder).rglob(pattern)) or [ROOT / folder]


def _still_true(out: Path) -> list[dict[str, Any]]:
    """What is known of tests whose files are as they were."""
    states = cache(lambda file: digest([ROOT / file]) if (ROOT / file).exists() else "")
    lines = [line for line in lines_of(out) if "test" in line]
    return [line for line in lines if line["state"] == states(line["test"].partition("::")[0])]


def met_at_import() -> set[str]:
    """Mutants that change values already while the tests are collected."""
    files = WORK.glob("reach_*.jsonl")
    return {name for file in files for line in lines_of(file) for name in line.get("at_import", ())}


def of_module(mutant: Mutant, seconds: Mapping[str, float]) -> list[str]:
    """Tests of the files that are named after the module, the quickest first."""
    stem = Path(mutant.module).stem
    return [test for test in sorted(seconds, key=seconds.__getitem__) if stem in Path(test.partition("::")[0]).stem]


def within_budget(tests: Sequence[str], seconds: Mapping[str, float], budget_s: float = BUDGET_S) -> list[str]:
    chosen, spent = [], 0.0
    for test in tests:
        spent += seconds[test]
        if spent > budget_s and chosen:
            break
        chosen.append(test)
    return chosen


def cases_in_turn(tests: Iterable[str], seconds: Mapping[str, float]) -> list[str]:
    """The quickest case of each test function, the quickest first; then the second cases, and so on."""
    seen: Counter[str] = Counter()
    turns: list[tuple[int, float, str]] = []
    for test in sorted(tests, key=lambda test: (seconds[test], test)):
        function = test.partition("[")[0]
        turns.append((seen[function], seconds[test], test))
        seen[function] += 1
    return [test for _, _, test in sorted(turns)]


def _in_turn(mutant: Mutant, meets: Sequence[str], seconds: Mapping[str, float]) -> list[str]:
    """A case of the quick test functions, then the files that are named after the module, then all others."""
    turns = cases_in_turn(meets, seconds)
    own = set(of_module(mutant, seconds))
    first = within_budget(turns, seconds, BUDGET_S / 3)
    return list(dict.fromkeys((*first, *(test for test in turns if test in own), *turns)))


def verdicts(mutants: Sequence[Mutant], meets: Mapping[str, list[str]], seconds: Mapping[str, float]) -> dict[str, str]:
    """killed, circle (a test did not end) or survived, by the name of the mutant."""
    out = WORK / f"verdicts_{SOURCES_DIGEST}.jsonl"
    chosen: dict[str, list[str]] = {}
    for _ in range(_TURNS):
        unsound = _unsound(out)
        sound = {name: [test for test in tests if test not in unsound] for name, tests in meets.items()}
        chosen = {m.name: within_budget(_in_turn(m, sound[m.name], seconds), seconds) for m in mutants}
        known = _known(out)
        left = [mutant for mutant in mutants if not _is_settled(known.get(mutant.name), chosen[mutant.name], seconds)]
        if not left:
            break
        tests = sorted({test for mutant in left for test in chosen[mutant.name]})
        job = {"mode": "fork", "mutants": [asdict(one) for one in left], "out": str(out), "tests": tests}
        pytest_with({**job, "meets": chosen, "seconds": dict(seconds)}, sorted({_file_of(test) for test in tests}))
    known = _known(out)
    early, quickest = met_at_import(), sorted(seconds, key=seconds.__getitem__)
    for mutant in mutants:
        found = known.get(mutant.name, {"verdict": "unknown"})
        at_import = found["verdict"] == "unknown" or (found["verdict"] == "survived" and mutant.name in early)
        if at_import and not found.get("alone"):
            every = dict.fromkeys((*of_module(mutant, seconds), *meets[mutant.name], *quickest))
            told = alone(mutant, within_budget(list(every), seconds), seconds, out)
            known[mutant.name] = told | {"chosen": chosen[mutant.name]}
            append(out, known[mutant.name])
    return {mutant.name: known[mutant.name]["verdict"] for mutant in mutants}


def _known(out: Path) -> dict[str, dict[str, Any]]:
    """The last line of each mutant, but of those that a test killed which fails by itself."""
    unsound = _unsound(out)
    return {line["mutant"]: line for line in lines_of(out) if "mutant" in line and line["by"] not in unsound}


def _unsound(out: Path) -> set[str]:
    """Tests that have failed without a mutant."""
    return {line["fails_by_itself"] for line in lines_of(out) if "fails_by_itself" in line}


def _file_of(test: str) -> str:
    return test.partition("::")[0]


def _is_settled(found: Mapping[str, Any] | None, chosen: Sequence[str], seconds: Mapping[str, float]) -> bool:
    """A mutant stays killed while the test is there; one that survived meets the tests again when there are others."""
    if found is None:
        return False
    if found["verdict"] in ("killed", "circle"):
        return found["by"] in seconds or found.get("alone", False)
    return bool(found["chosen"] == chosen)


def alone(mutant: Mutant, tests: Sequence[str], seconds: Mapping[str, float], out: Path) -> dict[str, Any]:
    """The verdict of a process that imports the mutant."""
    job = {"mode": "alone", "mutants": [asdict(mutant)], "out": str(out), "tests": tests, "seconds": dict(seconds)}
    status = pytest_with(job, sorted({_file_of(test) for test in tests}), "-x") if tests else 0
    verdict = _VERDICT.get(status, "circle" if status < 0 else "killed")
    failed = [
        line[7:].split(" - ")[0] for line in log_of("alone").read_text().splitlines() if line.startswith("FAILED ")
    ]
    if any(fails_by_itself(test) for test in failed):
        verdict = "unsound"
    print(f"{verdict:9} {mutant.place}: {mutant.change} (alone, {len(tests)}) {' '.join(failed)}", flush=True)
    return {"mutant": mutant.name, "verdict": verdict, "by": None, "alone": True}


@cache
def fails_by_itself(test: str) -> bool:
    """Whether a test fails without a mutant: then it says nothing of one."""
    return pytest_with({"mode": "alone", "mutants": [], "out": "", "tests": [], "seconds": {}}, [test]) != 0


def named() -> list[dict[str, Any]]:
    """The mutants of benchmarks/mutants_named.json, each with the verdict of the tests of its files."""
    found = []
    for one in json.loads(NAMED.read_text()):
        source = (ROOT / one["module"]).read_text(encoding="utf-8")
        if source.count(one["was"]) != 1:
            sys.exit(f"{one['was']!r} stands {source.count(one['was'])} times in {one['module']}: edit {NAMED.name}")
        start = len(source.partition(one["was"])[0].encode())
        line = source[:start].count("\n") + 1
        end = start + len(one["was"].encode())
        mutant = Mutant("", one["module"], line, start, end, one["was"], one["text"], ("", 0, 0, 0, 0))
        job = {"mode": "alone", "mutants": [asdict(mutant)], "out": "", "tests": [], "seconds": {}}
        status = pytest_with(job, one["tests"], "-x")
        if status not in (0, 1):
            sys.exit(f"pytest {' '.join(one['tests'])} ended with {status}")
        verdict = "killed" if status else "survived"
        print(f"{verdict:9} {mutant.place}: {' '.join(mutant.change.split())}", flush=True)
        found.append({"place": mutant.place, "change": mutant.change, "verdict": verdict})
    return found


def table(record: Mapping[str, Any]) -> str:
    """The lines of CONTRIBUTING.md."""
    rows = [
        "| package | seed | planted | killed | change nothing | survived | score |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, of in record["packages"].items():
        counts = (of["planted"], of["killed"], len(of["equivalent"]), len(of["survived"]))
        rows.append(
            f"| `{name}` | {of['seed']} | {' | '.join(str(count) for count in counts)} | {of['score_percent']:.0f} % |"
        )
    by_hand = record["named"]
    left = by_hand["planted"] - by_hand["killed"]
    score = 100 - 100 * left / by_hand["planted"]
    rows.append(f"| named | - | {by_hand['planted']} | {by_hand['killed']} | 0 | {left} | {score:.0f} % |")
    return "\n".join(rows)


def page_with(text: str, record: Mapping[str, Any]) -> str:
    before, _, rest = text.partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    return f"{before}{MARKS[0]}\n{table(record)}\n{MARKS[1]}{after}"


def scored(package: str, mutants: Sequence[Mutant], found: Mapping[str, str]) -> dict[str, Any]:
    """What the record says of a package."""
    reasons = {one["mutant"]: one["why"] for one in json.loads(EQUIVALENT.read_text())}
    left = [mutant for mutant in mutants if found[mutant.name] in ("survived", "unsound")]
    told = [{"mutant": one.name, "place": one.place, "change": one.change} for one in left]
    same = [one for one in told if one["mutant"] in reasons]
    survived = [one for one in told if one["mutant"] not in reasons]
    killed = len(mutants) - len(left)
    return {
        "planted": len(mutants),
        "killed": killed,
        "score_percent": round(100 * killed / (killed + len(survived)), 1),
        "equivalent": [{**one, "why": reasons[one["mutant"]]} for one in same],
        "survived": survived,
    }


def check() -> int:
    text = PAGE.read_text(encoding="utf-8")
    if text != page_with(text, json.loads(RECORD.read_text())):
        print(f"{PAGE.name} is not what {RECORD.name} says: python benchmarks/mutants.py --write")
        return 1
    return 0


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--packages", nargs="+", choices=PACKAGES, default=list(PACKAGES))
    asked.add_argument("--sample", type=int, default=30, help="mutants of each package")
    asked.add_argument("--seed", type=int, default=20261201)
    asked.add_argument("--tests", nargs="+", default=TESTS, help="files and folders of tests")
    asked.add_argument("--named", action="store_true", help="only those of benchmarks/mutants_named.json")
    asked.add_argument("--write", action="store_true", help="the record, and the table of CONTRIBUTING.md")
    asked.add_argument("--check", action="store_true", help="run nothing: is the table that of the record?")
    given = asked.parse_args()
    if given.check:
        return check()
    if given.named:
        return any(one["verdict"] == "survived" for one in named())
    of = {package: drawn(package, given.sample, given.seed) for package in given.packages}
    every = [mutant for mutants in of.values() for mutant in mutants]
    meets, seconds = reached(every, given.tests)
    found = verdicts(every, meets, seconds)
    packages = {package: scored(package, mutants, found) for package, mutants in of.items()}
    for package, score in packages.items():
        print(f"{package}: {score['killed']} of {score['planted']} killed, {score['score_percent']} %")
        for left in score["survived"]:
            print(f"  survived: {left['place']}: {left['change']} ({left['mutant']})")
    if given.write:
        origin = {"seed": given.seed, "command": command(), "commit": commit(), "date": now()}
        verdicts_by_hand = [one["verdict"] for one in named()]
        by_hand = {"planted": len(verdicts_by_hand), "killed": verdicts_by_hand.count("killed")}
        known = json.loads(RECORD.read_text(encoding="utf-8"))["packages"]
        judged = known | {package: origin | score for package, score in packages.items()}
        record = {"packages": {package: judged[package] for package in PACKAGES}, "named": by_hand}
        RECORD.write_text(json.dumps(record, separators=(",", ":")) + "\n", encoding="utf-8")
        PAGE.write_text(page_with(PAGE.read_text(encoding="utf-8"), json.loads(RECORD.read_text())), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
