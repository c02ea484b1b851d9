"""Chromium without a window, driven over two pipes: no driver, no port, no package.

Source: chromedevtools.github.io/devtools-protocol (Target, Page, Runtime, Input, Emulation);
`--remote-debugging-pipe` reads messages that end with a zero byte from file 3 and writes to 4.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_LAUNCH = (  # the pipes become files 3 and 4
    "import fcntl, os, sys;"
    " ends = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 10) for fd in sys.argv[1:3]];"
    " os.dup2(ends[0], 3); os.dup2(ends[1], 4); os.execv(sys.argv[3], sys.argv[3:])"
)
_OPTIONS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # this machine alone
)


class Browser:
    """One page of a browser. What it asks for in vain raises AssertionError."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._left, self._number, self._session = b"", 0, None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]

    def call(self, method: str, **given: Any) -> dict[str, Any]:
        """Return the answer to a command of the protocol."""
        self._number += 1
        asked = {"id": self._number, "method": method, "params": given}
        asked |= {"sessionId": self._session} if self._session else {}
        os.write(self._to, json.dumps(asked).encode() + b"\0")
        while True:
            told = self._read()
            if told.get("id") == self._number:
                assert "error" not in told, told
                return dict(told["result"])

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            part = os.read(self._from, 1 << 16)
            assert part, "the browser ended"
            self._left += part
        text, _, self._left = self._left.partition(b"\0")
        return dict(json.loads(text))

    def evaluate(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        told = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def until(self, script: str, seconds: float = 120.0) -> Any:
        """Return an expression's value once it is true."""
        end = time.monotonic() + seconds
        while not (found := self.evaluate(script)):
            assert time.monotonic() < end, f"in vain: {script}"
            time.sleep(0.02)
        return found

    def press(self, key: str) -> None:
        """Press a key and let it go, wherever the page's focus is."""
        codes = {"Tab": 9, "Enter": 13, "ArrowLeft": 37, "ArrowRight": 39}
        of = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key]}
        self.call("Input.dispatchKeyEvent", type="rawKeyDown", **of)
        self.call("Input.dispatchKeyEvent", type="keyUp", **of)

    def resize(self, width: int, height: int, *, is_phone: bool = False) -> None:
        """Give the page another size."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=is_phone,
        )


@contextmanager
def browser(program: str, profile: Path) -> Iterator[Browser]:
    """Start a browser whose profile is a new folder."""
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    pipes = [str(theirs_in), str(theirs_out)]
    words = [
        sys.executable,
        "-c",
        _LAUNCH,
        *pipes,
        program,
        *_OPTIONS,
        f"--user-data-dir={profile}",
    ]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(words, pass_fds=(theirs_in, theirs_out), **quiet)
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        yield Browser(ours_out, ours_in)
    finally:
        process.terminate()
        process.wait(10)
        os.close(ours_out)
        os.close(ours_in)
