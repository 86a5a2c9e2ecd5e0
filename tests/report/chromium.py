"""A tab of a real browser, driven over its debugging pipe: mouse, keyboard, width of the screen, colour scheme."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from importlib.resources import files
from pathlib import Path
from typing import Any

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)

AXE = files("axe_core_python") / "axe.min.js"

_KEYS = {"Tab": 9, "Enter": 13, " ": 32, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
_BY_PIPE = "--remote-debugging-pipe"

_LAUNCH = """
import fcntl, os, sys
for given in (1, 2):  # first away from 3 and 4, which may be among those given
    sys.argv[given] = fcntl.fcntl(int(sys.argv[given]), fcntl.F_DUPFD, 10)
os.dup2(sys.argv[1], 3)
os.dup2(sys.argv[2], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Chromium:
    """A headless browser; its commands go through file descriptor 3 and its answers come back through 4."""

    def __init__(self, profile: Path) -> None:
        assert BROWSER is not None
        read_commands, self._commands = os.pipe()
        self._answers, write_answers = os.pipe()
        words = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--no-zygote",
            f"--user-data-dir={profile}",
        ]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _LAUNCH, f"{read_commands}", f"{write_answers}", BROWSER, *words, _BY_PIPE],
            pass_fds=(read_commands, write_answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_commands)
        os.close(write_answers)
        self._unread, self._number = b"", 0
        self.events: list[dict[str, Any]] = []

    def send(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """The answer to a command; events that come before it are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            chunk = os.read(self._answers, 1 << 16)
            assert chunk, "the browser has ended"
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def close(self) -> None:
        os.close(self._commands)  # the browser ends when its pipe does
        self._process.wait()
        os.close(self._answers)


class Tab:
    """One page, open. width: of the screen in CSS pixels."""

    def __init__(self, browser: Chromium, path: Path, width: int = 1280, *, dark: bool = False) -> None:
        self._browser = browser
        target = browser.send("Target.createTarget", url="about:blank", newWindow=True)["targetId"]
        self._session = browser.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._send(f"{domain}.enable")
        phone = width < 600
        self._send("Emulation.setDeviceMetricsOverride", width=width, height=850, deviceScaleFactor=1, mobile=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        still = {"name": "prefers-reduced-motion", "value": "reduce"}
        self._send("Emulation.setEmulatedMedia", features=[scheme, still])
        self._send("Page.navigate", url=path.as_uri())
        self.wait("!!document.querySelector('html[data-ready]')")

    def _send(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.send(method, self._session, **parameters)

    def ask(self, expression: str) -> Any:
        """The value of an expression in the page."""
        answer = self._send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        """Until it is true: a condition that never becomes true meets the limit of the whole test."""
        while not self.ask(condition):
            time.sleep(0.02)

    def text(self, selector: str) -> str:
        return str(self.ask(f"document.querySelector({selector!r}).textContent"))

    def point(self, selector: str) -> None:
        """Move the mouse to the middle of an element, wherever on the page it is."""
        self._mouse("mouseMoved", self._middle(selector))

    def click(self, selector: str) -> None:
        place = self._middle(selector)
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self._mouse(kind, place)

    def _middle(self, selector: str) -> tuple[float, float]:
        found = f"document.querySelector({selector!r})"
        self.ask(f"{found}.scrollIntoView({{ block: 'center', inline: 'center' }})")
        x, y = self.ask(
            f"(({{ x, y, width, height }}) => [x + width / 2, y + height / 2])({found}.getBoundingClientRect())"
        )
        return x, y

    def _mouse(self, kind: str, place: tuple[float, float]) -> None:
        pressed = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
        self._send("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], **pressed)

    def press(self, key: str, times: int = 1) -> None:
        parameters = {"key": key, "code": key, "windowsVirtualKeyCode": _KEYS[key]}
        if key == "Enter":
            parameters["text"] = "\r"
        for _ in range(times):
            self._send("Input.dispatchKeyEvent", type="keyDown", **parameters)
            self._send("Input.dispatchKeyEvent", type="keyUp", **parameters)

    def focus(self, selector: str) -> None:
        self.ask(f"document.querySelector({selector!r}).focus()")

    def barriers(self) -> list[str]:
        """What axe-core finds that keeps some reader out, serious or worse: the rule, and an element that breaks it."""
        self.ask(f"{AXE.read_text('utf-8')}; 0")
        run = "axe.run(document, { resultTypes: ['violations'], iframes: false })"  # a sandboxed frame does not answer
        told = "`${one.id}: ${one.nodes[0].html}`"
        serious = "(one) => ['serious', 'critical'].includes(one.impact)"
        self.ask(
            f"{run}.then((found) => {{ window.barriers = found.violations.filter({serious}).map((one) => {told}) }}); 0"
        )
        self.wait("!!window.barriers")
        found: list[str] = self.ask("window.barriers")
        return found

    @property
    def troubles(self) -> list[str]:
        """Errors and warnings of the console, and addresses that were asked for beside the page itself."""
        found = []
        for event in self._browser.events:
            if event.get("sessionId") != self._session:
                continue
            parameters = event["params"]
            match event["method"]:
                case "Runtime.exceptionThrown":
                    found.append(str(parameters["exceptionDetails"]))
                case "Runtime.consoleAPICalled" if parameters["type"] in ("error", "warning"):
                    found.append(str(parameters["args"]))
                case "Log.entryAdded" if parameters["entry"]["level"] in ("error", "warning"):
                    found.append(parameters["entry"]["text"])
                case "Network.requestWillBeSent" if parameters["type"] != "Document":
                    if not parameters["request"]["url"].startswith(("data:", "blob:")):
                        found.append(parameters["request"]["url"])
        return found
