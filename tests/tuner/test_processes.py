"""Work in other processes: its answers and errors, processes that die, and the end of all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from operator import truediv

import pytest

from tilewright.errors import ProblemError
from tilewright.tuner.processes import Processes, begin_server


def refuse() -> None:
    raise ProblemError("It cannot be done.", hint="do something else.")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_work_gives_its_result_or_what_it_raised() -> None:
    with Processes(2, "json") as processes:
        processes.start(2)
        asked = [processes.call(truediv, number, 4) for number in range(9)]
        wrong, refused = processes.call(truediv, 1, 0), processes.call(refuse)
        odd = processes.call(truediv, lambda: 1, 4)  # a function that has no name cannot travel
        assert [one.result(60) for one in asked] == [number / 4 for number in range(9)]
        assert isinstance(wrong.exception(60), ZeroDivisionError)
        assert odd.exception(60) is not None
        with pytest.raises(ProblemError) as told:
            refused.result(60)
        assert told.value.hint == "do something else."


def test_a_process_that_dies_takes_its_own_work_with_it_alone() -> None:
    with Processes(1, "json") as processes:
        before, death, behind = processes.call(os.getpid), processes.call(die), processes.call(os.getpid)
        assert isinstance(death.exception(60), BrokenProcessPool)
        assert before.result(60) != behind.result(60)


def test_processes_are_forks_of_one_server_in_the_environment_of_today(monkeypatch: pytest.MonkeyPatch) -> None:
    begin_server("json")
    with Processes(2, "json") as processes:
        monkeypatch.setenv("TILEWRIGHT_TOLD", "today")
        processes.start(2)
        parents = {processes.call(os.getppid).result(60) for _ in range(4)}
        assert len(parents) == 1 and os.getpid() not in parents
        assert processes.call(os.getenv, "TILEWRIGHT_TOLD").result(60) == "today"


def test_the_end_waits_for_nothing() -> None:
    with Processes(2, "json") as processes:
        processes.start(2)
        pids = {processes.call(os.getpid).result(60)}
        long = processes.call(time.sleep, 600)
        while not long.running():
            time.sleep(0.01)
    for pid in pids:
        while _is_alive(pid):
            time.sleep(0.01)
    with Processes(2, "json"):
        pass  # none was started


def test_no_work_waits_for_processes_that_are_closed() -> None:
    processes = Processes(1, "json")
    waiting = processes.call(time.sleep, 600), processes.call(os.getpid)
    processes.close()
    for one in (*waiting, processes.call(os.getpid)):
        assert isinstance(one.exception(60), BrokenProcessPool)


PROGRAM = """
import sys, time, os
from tilewright.tuner.processes import Processes
if __name__ == "__main__":
    processes = Processes(1, "json")
    print(processes.call(os.getpid).result(60), flush=True)
    processes.call(time.sleep, 600)
    time.sleep(600)
"""


def test_processes_end_with_the_one_that_started_them() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True, env=environment) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        owner.kill()
    while _is_alive(pid):
        time.sleep(0.01)


def _is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended may still be listed."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
