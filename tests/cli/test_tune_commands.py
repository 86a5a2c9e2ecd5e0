"""tune and database, with no GPU."""

from __future__ import annotations

import re
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
from command_runs import Cli
from made_up_winners import a_winner
from tuning_fakes import OnPaper, url_of

from tilewright.cli import tuning
from tilewright.device.catalog import device
from tilewright.device.spec import DeviceSpec
from tilewright.errors import TilewrightError
from tilewright.kernels.mma import MmaConfig
from tilewright.problem.gemm import Gemm
from tilewright.tuner import storage
from tilewright.tuner.compiling import Prepared
from tilewright.tuner.first import First
from tilewright.tuner.space import Candidate, Space
from tilewright.winners.database import Database
from tilewright.winners.plan_config import PlanConfig
from tilewright.winners.winner import Winner


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A database of this test's own, with one winner."""
    path = tmp_path / "winners.sqlite"
    monkeypatch.setenv("TILEWRIGHT_DATABASE", str(path))
    monkeypatch.setattr("tilewright.winners.database.shipped_winners", lambda: (a_winner(m=1000),))
    for place in ("tune", "tuning"):
        monkeypatch.setattr(f"tilewright.cli.{place}.gpu_problem", lambda: "No NVIDIA driver is installed here.")
    Database(path).record(a_winner())
    return path


def test_tuning_without_a_gpu_says_what_can_be_done_without_one(cli: Cli) -> None:
    ran = cli("tune", 512, 512, 512)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == (
        "Tuning measures, which needs a GPU: No NVIDIA driver is installed here.\n"
        "  Hint: --list prints the candidates and their predicted times without one; "
        "`tilewright database import` takes over what another machine has tuned.\n"
    )


def faked(monkeypatch: pytest.MonkeyPatch, matmul_us: float) -> None:
    """Searches of five candidates on paper, of which only today's choice and three stages are fast."""

    class ByStages(OnPaper):
        def us(self, prepared: Prepared) -> float:
            config = prepared.candidate
            return matmul_us if config == TODAY else 50.0 if config == FASTEST else 200.0

    monkeypatch.setattr("tilewright.cli.tune.gpu_problem", lambda: None)
    monkeypatch.setattr("tilewright.cli.tune.open_gpu", OnPaper.gpu)
    monkeypatch.setattr("tilewright.cli.tuning.probe", lambda gpu: device("H200"))
    monkeypatch.setattr("tilewright.cli.tuning.GpuMeasurer", ByStages)
    monkeypatch.setattr("tilewright.cli.tuning.todays_plan", lambda *asked: TODAY)
    monkeypatch.setattr("tilewright.cli.tune.first.begun", lambda *asked: First(TODAY))
    monkeypatch.setattr("tilewright.cli.tuning._Job._ranking", lambda job, like: ready(five(job.gemm, job.spec).ranked))
    monkeypatch.setattr("tilewright.cli.tuning._Job._peers", lambda job: {"cuBLAS": 100.0})


def test_the_next_plans_wait_for_the_first_one() -> None:
    built: Future[Any] = Future()
    others: Future[Any] = Future()
    told: list[Any] = []
    job: Any = SimpleNamespace(
        first=First(TODAY, built, others),
        words=SimpleNamespace(family=None),
        compilers=SimpleNamespace(processes=SimpleNamespace(start=lambda count: told.append("processes"))),
    )
    builds = SimpleNamespace(begin=told.append)
    thread = Thread(target=tuning._Job._compile_others, args=(job, builds, None))
    thread.start()
    others.set_result([FASTEST])
    thread.join(0.1)
    assert thread.is_alive() and told == []
    built.set_result(None)
    thread.join(10)
    assert told == [[FASTEST], "processes"]


def test_packages_are_imported_as_long_as_there_is_nothing_better_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    imported: list[str] = []
    monkeypatch.setattr(storage, "import_module", imported.append)
    for waits, expected in ((2, ["sqlalchemy", "sqlalchemy.orm"]), (0, [])):
        imported.clear()
        left = iter([True] * waits + [False] * 9)
        storage.import_while(lambda left=left: next(left))  # type: ignore[misc]
        assert imported == expected


def tuned(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch, matmul_us: float) -> tuple[str, list[Winner]]:
    """What such a search says, and the winners it leaves for 512 rows."""
    faked(monkeypatch, matmul_us)
    ran = cli("tune", 512, 512, 512, "--family", "mma", "--dtype", "f16", "--storage", url_of(folder), "--workers", 1)
    assert (ran.code, ran.err) == (0, "")
    return ran.out, [winner for winner in Database().winners() if winner.key.problem.m == 512]


def test_a_list_is_tuned_and_its_winners_are_taken_over(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faked(monkeypatch, 300.0)
    shapes, export = tmp_path / "problems.csv", tmp_path / "out" / "winners.jsonl"
    shapes.write_text("m,n,k,dtype\n512,256,128,f16\n256,512,128,f16\n")
    listed = cli("tune", "--shapes", shapes, "--list")
    assert (listed.code, listed.out) == (0, "512x256x128 f16 NN\n256x512x128 f16 NN\n")
    asked = ("tune", "--shapes", shapes, "--storage", url_of(tmp_path), "--workers", 1, "--export", export)
    ran = cli(*asked)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.endswith("2 of 2 problems have a winner, 2 of them here; 0 are new to this machine.\n")
    found = [Winner.from_json(line) for line in export.read_text().splitlines()]
    assert {winner.key.problem.m for winner in found} == {256, 512} and {winner.config for winner in found} == {FASTEST}
    monkeypatch.setenv("TILEWRIGHT_DATABASE", str(tmp_path / "another.sqlite"))  # another machine
    assert cli(*asked).out == "2 of 2 problems have a winner, none of them here; 2 are new to this machine.\n"


def test_a_list_and_sizes_do_not_go_together(cli: Cli, tmp_path: Path) -> None:
    for arguments in ((512, 512, 512), ("--suite",)):
        ran = cli("tune", *arguments, "--shapes", tmp_path / "problems.csv")
        assert ran.code == 2 and "--shapes" in ran.err


def test_all_gpus_of_a_machine_tune_a_list(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], file=open(os.environ['OUT'], 'a'))"
    started: list[list[str]] = []

    def popen(command: list[str], **options: Any) -> Any:
        started.append(command)
        return real([command[0], "-c", program], **options)

    real = tuning.subprocess.Popen
    monkeypatch.setattr(tuning, "gpu_count", lambda: 2)
    monkeypatch.setattr(tuning.subprocess, "Popen", popen)
    monkeypatch.setenv("OUT", str(tmp_path / "seen"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert tuning.one_for_each_gpu(["tune", "--shapes", "x.csv"]) == 0
    assert sorted((tmp_path / "seen").read_text().split()) == ["3", "5"]
    assert all(command[1:] == ["-m", "tilewright", "tune", "--shapes", "x.csv"] for command in started)
    monkeypatch.setattr(tuning, "gpu_count", lambda: 1)
    assert tuning.one_for_each_gpu(["tune"]) is None


SMALL = MmaConfig((64, 128, 32), (64, 32))
TODAY, FASTEST = PlanConfig(replace(SMALL, stages=2, split_k=2)), PlanConfig(replace(SMALL, stages=3))
OTHERS = tuple(PlanConfig(replace(SMALL, stages=3, raster_rows=rows)) for rows in (1, 4, 16))


def five(gemm: Gemm, spec: DeviceSpec, **options: Any) -> Space:
    """A space of five candidates."""
    return Space(gemm, spec, [Candidate(config, 1.0) for config in (FASTEST, *OTHERS, TODAY)])


def ready(found: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(found)
    return future


def test_a_winner_is_told_and_stored(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, winners = tuned(cli, tmp_path, monkeypatch, matmul_us=300.0)
    assert text.startswith("512x512x512 f16 NN on H200: 5 of 5 candidates measured, 5 of them now, in ")
    assert re.search(r"\n  The first was measured after \d+\.\d s; from \d+\.\d s on, \d+\.\d a second\.\n", text)
    assert f"200.0 % of cuBLAS: {FASTEST}" in text
    assert text.endswith("  matmul uses it from now on. Until now it took 300.00 us.\n")
    (winner,) = winners
    assert winner.config == FASTEST
    assert winner.share_of_cublas == 2.0


@pytest.mark.slow
def test_where_matmul_does_best_its_own_plan_wins(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, winners = tuned(cli, tmp_path, monkeypatch, matmul_us=1.0)
    assert text.endswith("  It is what matmul chose already.\n")
    assert [winner.config for winner in winners] == [TODAY]


def test_the_suite_is_listed_without_a_gpu(cli: Cli) -> None:
    asked = ("tune", "--suite", "--list", "--dtype", "f32", "--order", "nn")
    data = cli(*asked, "--json").json
    assert (data["device"], len(data["problems"])) == ("H200", 15)
    assert "\n1x8192x8192 f32 NN\n" in cli(*asked).out


def test_what_compilers_import_is_begun_before_the_command_is_known(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    monkeypatch.setattr("tilewright.tuner.processes.begin_server", lambda: begun.append("server"))
    for arguments, servers in (
        (("tune",), 1),
        (("tune", "--list", "64"), 1),
        (("devices",), 1),
        (("tune", "0", "1"), 2),
    ):
        cli(*arguments)
        assert len(begun) == servers


def test_without_sizes_or_the_suite_nothing_is_tuned(cli: Cli) -> None:
    ran = cli("tune", "--list")
    assert ran.code == 2
    assert "give M, N and K, or --suite." in ran.err


def test_sizes_are_three_numbers_or_one_word(cli: Cli) -> None:
    first, second = (cli("tune", *words, "--list", "--family", "gemv").out for words in (("64x1x96",), (64, 1, 96)))
    assert first == second and first.startswith("64x1x96 f32 NN on H200: ")
    assert cli("tune", 16, "--list", "--family", "simt").out.startswith("16x16x16 f32 NN on H200: ")


@pytest.mark.parametrize("arguments", [(), (512, "--suite")])
def test_wrong_use_is_told_before_a_gpu_is_asked_for(cli: Cli, arguments: tuple[object, ...]) -> None:
    ran = cli("tune", *arguments)
    assert ran.code == 2
    assert "--suite" in ran.err


def test_the_list_shows_candidates_and_their_predictions_best_first(cli: Cli) -> None:
    listed = cli("tune", 512, 512, 512, "--family", "mma", "--dtype", "f16", "--list", "--json").json["candidates"]
    times = [one["predicted_us"] for one in listed]
    assert times == sorted(times) and {one["config"]["kind"] for one in listed} == {"mma"}
    assert {one["config"]["stages"] for one in listed} == {2, 3, 4, 6}


def test_the_list_is_of_the_gpu_that_is_named(cli: Cli) -> None:
    ran = cli("tune", 512, 512, 512, "--family", "mma", "--dtype", "f16", "--list", "--device", "A100")
    assert ran.out.startswith("512x512x512 f16 NN on A100 SXM 80 GB: 3000 candidates. Predicted, not measured:\n")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--order", "XY"), "There is no order of A and B 'XY'."),
        (("--dtype", "f8"), "There is no dtype 'f8'."),
        (("--family", "nowhere"), "There is no family of kernels 'nowhere'."),
        (("--device", "H3000"), "There is no device 'H3000'."),
        (("--family", "mma"), "No kernel of family mma can multiply 512x512x512 f32 NN on H200."),
    ],
)
def test_what_cannot_be_tuned_is_refused_in_a_sentence(cli: Cli, arguments: tuple[str, ...], told: str) -> None:
    ran = cli("tune", 512, 512, 512, "--list", *arguments)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith(told)


def test_keeping_bits_of_split_k_leaves_one_split_k(cli: Cli) -> None:
    asked = ("tune", 128, 128, 16384, "--family", "simt", "--list", "--json")
    free, kept = (cli(*asked, *more).json["candidates"] for more in ((), ("--keep-bits",)))
    assert len({one["config"]["split_k"] for one in kept}) == 1 < len({one["config"]["split_k"] for one in free})


def test_the_database_lists_own_and_shipped_winners(cli: Cli, path: Path) -> None:
    assert cli("database", "path").out == f"{path}\n"
    listed = cli("database", "list", "--json").json
    assert [winner["problem"]["m"] for winner in listed] == [1000, 4096]
    assert cli("database", "list", "--device", "NVIDIA H200").out.startswith("H200 (9.0, 132 SMs): M x N x K, format, ")
    assert cli("database", "list", "--device", "A100").out.startswith("No winners for 'A100'")


def test_winners_travel_by_file(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "exported.jsonl"
    assert cli("database", "export", file).code == 0
    assert cli("database", "export").out == file.read_text() == a_winner().to_json() + "\n"
    monkeypatch.setenv("TILEWRIGHT_DATABASE", str(tmp_path / "other.sqlite"))
    assert cli("database", "import", file).out == "1 winner new, 0 replaced slower ones, 0 slower than yours.\n"
    assert Database(tmp_path / "other.sqlite", shipped=()).winners() == [a_winner()]


def test_pruning_removes_winners_whose_kernel_has_changed(cli: Cli, path: Path) -> None:
    Database(path).record(a_winner(m=512, sources="of another commit"))
    assert cli("database", "prune").out == "1 winner removed.\n"
    assert cli("database", "prune").out == "0 winners removed.\n"
    assert cli("database", "prune", "--all").code == 1
    assert cli("database", "prune", "--all", "--device", "H200").out == "1 winner removed.\n"


def test_a_damaged_database_is_told_on_stderr(cli: Cli, path: Path) -> None:
    path.write_bytes(b"no database" * 200)
    ran = cli("database", "list")
    assert ran.code == 0
    assert "was damaged" in ran.err


def test_an_unknown_action_suggests_one(cli: Cli) -> None:
    ran = cli("database", "lst")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == "No such command 'lst'. Did you mean 'list'?\n  Hint: tilewright database --help\n"


def test_the_problems_of_the_suite_share_the_budget(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faked(monkeypatch, 300.0)
    seconds: list[float] = []

    def tuned(job: Any, storage: str, budget: float, started: float) -> Any:
        seconds.append(budget)
        raise TilewrightError("Nothing is measured here.")

    monkeypatch.setattr("tilewright.cli.tuning._Job.run", tuned)
    asked = ("--dtype", "f32", "--order", "NN", "--budget", 300, "--storage", url_of(tmp_path), "--workers", 1)
    ran = cli("tune", "--suite", *asked)
    assert ran.code == 1 and "0 of 15 problems have a winner, 15 of them here" in ran.out
    assert seconds == [20.0] * 15
