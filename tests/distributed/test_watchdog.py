"""The watchdog: it bites once, where the last call does not end, and never otherwise."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

from tilewright.distributed.watchdog import Watchdog


def test_a_call_that_never_ends_expires_once() -> None:
    bitten = threading.Event()
    count = []
    dog = Watchdog(lambda: False, 0.1, lambda: (count.append(1), bitten.set())[1])  # type: ignore[func-returns-value]
    dog.call()
    assert bitten.wait(10)
    dog.call()
    time.sleep(0.3)
    assert len(count) == 1


def test_calls_that_end_do_not() -> None:
    ended, count = [False], []
    dog = Watchdog(lambda: ended[0], 0.3, lambda: count.append(1))
    for _ in range(10):  # longer than the timeout together
        dog.call()
        time.sleep(0.06)
    ended[0] = True
    time.sleep(0.5)
    ended[0] = False
    dog.call()
    time.sleep(0.1)
    ended[0] = True
    time.sleep(0.4)
    assert not count
    dog.stop()


def test_the_process_ends_with_words() -> None:
    program = (
        "import time\n"
        "from tilewright.distributed.watchdog import Watchdog, abort\n"
        "dog = Watchdog(lambda: False, 0.1, lambda: abort('0', 1, 0.1))\n"
        "dog.call()\n"
        "time.sleep(30)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=25)
    assert done.returncode != 0 and "rank 1 of group 0 waited" in done.stderr
