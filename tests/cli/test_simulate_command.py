"""`tilewright simulate`: verdict, counters and findings at any size."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from command_runs import Cli

from tilewright import toolchain
from tilewright.ir.stmt import Barrier, Body, For
from tilewright.lowering import lower


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--seed", "-1"), "seed = -1 is not a seed."),
        (("--lda", "99999999999999999999"), "more than kernels take."),
        (("--alpha", "1e300"), "alpha = 1e+300 is more than f32 can hold, in which kernels take it."),
    ],
)
def test_what_no_kernel_takes_is_refused(cli: Cli, options: tuple[str, ...], told: str) -> None:
    ran = cli("simulate", "worklog/1", "--size", "32", *options)
    assert (ran.code, ran.out) == (1, "")
    assert told in ran.err.partition("\n")[0]


@pytest.mark.parametrize(
    "options",
    [
        ("--size", "257x129x33"),
        ("--size", "1"),
        ("--size", "0x3x3"),
        ("--size", "3x4x0", "--beta", "0.5"),
        ("--size", "40x50x60", "--lda", "64", "--ldb", "51", "--ldc", "60", "--alpha", "-1", "--beta", "0.5"),
        ("--size", "33", "--schedule", "warps", "--seed", "7"),
        ("--size", "33", "--detectors", "none"),
        ("--size", "33", "--schedule", "search", "--most-orders", "5"),
    ],
    ids=" ".join,
)
def test_it_is_right(cli: Cli, options: tuple[str, ...]) -> None:
    ran = cli("simulate", "worklog/6", *options)
    assert (ran.code, ran.err) == (0, "")
    assert "\nright: " in ran.out and "\x1b" not in ran.out
    assert ("nothing found by the detectors" in ran.out) == ("none" not in options)


def test_json(cli: Cli) -> None:
    data = cli("simulate", "worklog/3", "--size", "64", "--json").json
    assert (data["ok"], data["verified"], data["findings"]) == (True, True, [])
    assert data["counters"]["shared_loads"]["requests"] > 0
    assert data["counters"]["lines"][0]["line"] > 0


@pytest.fixture
def without_barriers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels whose barriers were removed."""

    def bare(body: Body) -> Body:
        kept = tuple(stmt for stmt in body if not isinstance(stmt, Barrier))
        return tuple(replace(stmt, body=bare(stmt.body)) if isinstance(stmt, For) else stmt for stmt in kept)

    def lowered(*arguments: Any, **options: Any) -> Any:
        kernel = lower(*arguments, **options)
        return replace(kernel, body=bare(kernel.body))

    monkeypatch.setattr(toolchain, "lower", lowered)


@pytest.mark.usefixtures("without_barriers")
def test_a_missing_barrier_is_found_named_and_fails(cli: Cli) -> None:
    ran = cli("simulate", "worklog/3", "--size", "32x32x64", "--detectors", "races")
    assert ran.code == 1
    assert "race: Race on A_tile[" in ran.out
    assert "Hint: a barrier between the two lines orders them." in ran.out
    data = cli("simulate", "worklog/3", "--size", "32x32x64", "--detectors", "races", "--json").json
    assert data["ok"] is False
    assert {finding["kind"] for finding in data["findings"] if finding["is_error"]} == {"race"}
    assert all(finding["buffer"] in ("A_tile", "B_tile") for finding in data["findings"])


@pytest.mark.usefixtures("without_barriers")
def test_only_the_detectors_asked_for_report(cli: Cli) -> None:
    data = cli("simulate", "worklog/3", "--size", "32x32x64", "--detectors", "bounds", "--json").json
    assert data["findings"] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--detectors", "rases"), "There is no detector 'rases'.\n  Hint: did you mean 'races'? "),
        (("--schedule", "warp"), "There is no schedule 'warp'.\n  Hint: did you mean 'warps'? "),
        (
            ("--size", "64", "--lda", "12"),
            "lda = 12 is smaller than the 64 elements of one row of A.\n  Hint: use lda >= 64.\n",
        ),
    ],
)
def test_mistakes_are_explained(cli: Cli, arguments: tuple[str, ...], message: str) -> None:
    ran = cli("simulate", "worklog/3", *arguments)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith(message)


def test_a_search_says_how_many_orders_it_ran(cli: Cli) -> None:
    ran = cli("simulate", "hopper/1", "--size", "64", "--schedule", "search")
    assert ran.code == 0 and "All orders: 1 order of 1 block run" in ran.out
    told = cli("simulate", "hopper/1", "--size", "64", "--schedule", "search", "--json").json
    assert told["search"] == {"blocks": 1, "orders": 1, "steps": 24, "complete": True, "same_bits": True, "bound": 1000}


def test_a_limit_of_orders_is_refused_where_no_search_runs(cli: Cli) -> None:
    ran = cli("simulate", "worklog/1", "--size", "32", "--most-orders", "5")
    assert (ran.code, ran.out) == (2, "")
    assert "--most-orders is of a search: add --schedule search, or leave it out." in ran.err


@pytest.mark.parametrize("columns", [50, 60, 80, 100])
def test_the_table_of_traffic_fits_a_narrow_terminal_whole(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    ran = cli("simulate", "worklog/6", "--size", "64")
    assert max(map(len, ran.out.splitlines())) <= columns
    assert "…" not in ran.out and " 5 wavefronts" in ran.out
    assert ("in all" in ran.out) == (columns == 100) and (" fewest " in ran.out) == (columns >= 80)
