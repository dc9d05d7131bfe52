"""A process that can be killed, stopped, put into a cgroup or another network, and restarted."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]
OCTET = (sys.executable, "-m", "octet.cli")


class Process:
    """A child process that prints a line when it is ready, and is killed if its parent ends."""

    def __init__(
        self,
        words: Sequence[str],
        log: Path,
        *,
        cgroups: Sequence[Path] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`cgroups` are the folders of the cgroups that the process joins before it runs."""
        enter = "".join(f"echo 0 > {shlex.quote(str(folder / 'cgroup.procs'))} && " for folder in cgroups)
        self._words = ["setpriv", "--pdeathsig", "KILL", "sh", "-c", f'{enter}exec "$@"', "sh", *words]
        self._log = log
        inherited = {name: value for name, value in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"}
        self._environment = {**inherited, **(environment or {})}
        self.popen = self._begin()

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def output(self) -> str:
        return self._log.read_text()

    @property
    def is_alive(self) -> bool:
        return self.popen.poll() is None

    def ready(self, pattern: str = r"ready on (\S+)") -> "re.Match[str]":
        """Wait until the output since the last start matches `pattern`. Return the last match."""
        found: list[re.Match[str]] = []

        def look() -> bool:
            assert self.is_alive, f"{self._words} ended with {self.popen.returncode}: {self.output[-2000:]}"
            found[:] = re.finditer(pattern, self.output)
            return len(found) > 0

        wait_for(look, lambda: self.output[-2000:])
        return found[-1]

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait()

    def stop(self) -> None:
        self.popen.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.popen.send_signal(signal.SIGCONT)

    def terminate(self) -> None:
        self.popen.send_signal(signal.SIGTERM)

    def end(self) -> None:
        """Terminate the process, or kill it after a timeout."""
        if self.is_alive:
            self.resume()
            self.terminate()
            try:
                self.popen.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()
        self.popen.wait()

    def restart(self, log: Path | None = None) -> None:
        """Start again after the process has ended. Output goes to `log` if given."""
        self.popen.wait()
        self._log = log or self._log
        self.popen = self._begin()

    def _begin(self) -> "subprocess.Popen[bytes]":
        with self._log.open("w") as log:
            return subprocess.Popen(
                self._words,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                process_group=0,
            )


def wait_for(condition: Callable[[], object], why: Callable[[], str] = str, seconds: float = PATIENCE) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, why() or "the condition never became true"
        time.sleep(0.02)
