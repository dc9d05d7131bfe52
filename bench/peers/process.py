"""The far end of the pipe: a peer's process, paused whenever nobody waits for it."""

import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any

_LAST_WORDS = 300


class PeerFailed(RuntimeError):
    """A peer died, hung, or could not do what it was asked. One line."""

    def __init__(self, name: str, why: str, *, signalled: bool = False) -> None:
        super().__init__(f"{name}: {why}")
        self.signalled = signalled
        """The system killed it: an illegal instruction, a bad address."""


class Peer:
    """Only one computes at a time: threads that spin while they wait would slow the others down, so it is stopped."""

    def __init__(
        self, name: str, command: Sequence[str], *, cwd: Path, env: Mapping[str, str], log: Path, timeout: float
    ) -> None:
        """Starts loading. Raises PeerFailed unless it says within `timeout` seconds that it is ready."""
        self.name = name
        self._timeout = timeout
        self._log = log
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(  # noqa: S603
                command,
                cwd=cwd,
                env=dict(env),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
                text=True,
                encoding="utf-8",
            )
        self._lines: Queue[str | None] = Queue()
        Thread(target=self._read, daemon=True).start()
        try:
            ready = self._receive("loading")
            self.settings = str(ready["ready"])
            self.calls = frozenset(ready["calls"])
            self._signal(signal.SIGSTOP)
        except BaseException:
            self.close()
            raise

    def call(self, name: str, **arguments: object) -> Any:
        """Wake it, ask, wait for the answer, and put it to sleep again. Raises PeerFailed; it is then closed."""
        try:
            self._signal(signal.SIGCONT)
            self._send({"call": name, **arguments})
            result = self._receive(name)["result"]
            self._signal(signal.SIGSTOP)
        except BaseException:
            self.close()
            raise
        return result

    def close(self) -> None:
        """Kills it and whatever it has started."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):  # what it was never going to read
                self._process.stdin.close()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # it has died already: whoever waits for its answer is told
            os.killpg(self._process.pid, number)

    def _read(self) -> None:
        if self._process.stdout is None:
            raise RuntimeError("a peer is started with a pipe")
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line)
        self._lines.put(None)

    def _send(self, message: dict[str, object]) -> None:
        if self._process.stdin is None:
            raise RuntimeError("a peer is started with a pipe")
        with suppress(BrokenPipeError):  # it has died: its answer will not come
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()

    def _receive(self, doing: str) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=self._timeout)
        except Empty:
            raise PeerFailed(
                self.name, f"no answer within {self._timeout:g} s while {doing}; see {self._log}"
            ) from None
        if line is None:
            raise self._death(doing)
        message = _parsed(line)
        if message is None:
            raise PeerFailed(self.name, f"answered {line[:80]!r} while {doing}, which is no JSON object")
        if "error" in message:
            raise PeerFailed(self.name, f"failed while {doing}: {_one_line(str(message['error']))}; see {self._log}")
        return message

    def _death(self, doing: str) -> PeerFailed:
        code = self._process.wait()
        cause = f"of {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        said = self._log.read_text(encoding="utf-8", errors="replace").split("\n")
        words = [line.strip() for line in said if line.strip()]
        last = f"; its last words: {words[-1][-_LAST_WORDS:]}" if words else ""
        return PeerFailed(self.name, f"died {cause} while {doing}{last}; see {self._log}", signalled=code < 0)


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        message = json.loads(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) else None


def _one_line(text: str) -> str:
    return " ".join(text.split())[:_LAST_WORDS]
