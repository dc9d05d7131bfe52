"""A child process that answers lines with lines, each within a time limit or not at all."""

import os
import selectors
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path

_CHUNK = 1 << 16


class ChildFailed(Exception):
    """It was too slow, said too much, or died. It has been killed."""


class Child:
    """Not thread-safe. Killed at the latest when this object goes."""

    def __init__(self, script: Path, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._process = subprocess.Popen(  # noqa: S603  # our own script, no shell
            [sys.executable, "-I", "-B", str(script)],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={"PYTHONUTF8": "1"},
        )
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("a process started with pipes has none")
        self._stdin, self._stdout = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._stdin, False)
        os.set_blocking(self._stdout, False)
        self.kill = weakref.finalize(self, _kill, self._process)

    @property
    def alive(self) -> bool:
        return self.kill.alive and self._process.poll() is None

    def ask(self, line: bytes, seconds: float, max_bytes: int) -> bytes:
        """Its answer, without the line's end. Raises ChildFailed."""
        try:
            return self._exchange(line + b"\n", self._monotonic() + seconds, max_bytes)
        except (TimeoutError, OSError, EOFError, OverflowError) as error:
            self.kill()
            raise ChildFailed(str(error)) from error

    def _exchange(self, unsent: bytes, deadline: float, max_bytes: int) -> bytes:
        answer = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(self._stdin, selectors.EVENT_WRITE)
            selector.register(self._stdout, selectors.EVENT_READ)
            while not answer.endswith(b"\n"):
                for key in self._ready(selector, deadline):
                    if key == self._stdout:
                        answer += self._read(max_bytes - len(answer))
                        continue
                    unsent = unsent[os.write(self._stdin, unsent) :]
                    if not unsent:
                        selector.unregister(self._stdin)
        return bytes(answer[:-1])

    def _ready(self, selector: selectors.BaseSelector, deadline: float) -> list[int]:
        left = deadline - self._monotonic()
        if left <= 0:
            raise TimeoutError("it took too long")
        return [key.fd for key, _ in selector.select(left)]

    def _read(self, room: int) -> bytes:
        got = os.read(self._stdout, _CHUNK)
        if not got:
            raise EOFError("the process that renders it died")
        if len(got) > room:
            raise OverflowError("its output is too long")
        return got


def _kill(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
