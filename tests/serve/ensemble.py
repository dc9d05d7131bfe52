"""A running `octet serve` and its child processes."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.octet.supervisor.test_supervisor import children_of, is_alive, kill_all
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]
TWO = """
name: two
specialists:
  sql:
    engine: sim
    describe: Databases, queries, joins and indexes in SQL.
    examples: ["write a SELECT with a join", "add an index to this table"]
  shell:
    engine: sim
    replicas: 2
    describe: Shell scripts, pipes and quoting in bash.
    examples: ["loop over files in bash", "quote this variable in a script"]
"""


class ServeProcess:
    def __init__(self, file: Path, folder: Path, *arguments: str) -> None:
        self.file = file
        http = () if "--no-http" in arguments else ("--http-port", "0")
        self._out, self._err = folder / "out", folder / "err"
        with self._out.open("w") as out, self._err.open("w") as err:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "octet.cli", "serve", str(file), "--port", "0", *http, *arguments],
                cwd=ROOT,
                stdout=out,
                stderr=err,
                start_new_session=True,
                env={**os.environ, "XDG_RUNTIME_DIR": "", "TMPDIR": "/tmp"},  # noqa: S108
            )

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    @property
    def address(self) -> str:
        return re.findall(r"octet ready on (\S+)", self.out)[0]  # type: ignore[no-any-return]

    @property
    def pids(self) -> list[int]:
        return children_of(self.popen.pid)

    @property
    def router(self) -> int:
        return next(pid for pid in self.pids if b"--replica" in _command(pid))

    def sockets(self, specialist: str) -> list[Path]:
        """Return the specialist's sockets from the router's command line."""
        found = re.findall(rf"{specialist}=unix:([^\0]+)", _command(self.router).decode())
        return [Path(path) for path in found]

    def replica(self, socket: Path) -> int:
        """Return the id of the process that listens on this socket."""
        for pid in self.pids:
            if str(socket) in _listening(pid):
                return pid
        raise LookupError(socket)

    def end(self) -> None:
        self.popen.send_signal(signal.SIGTERM)
        try:
            self.popen.wait(PATIENCE)
        finally:
            self.popen.kill()
            self.popen.wait()

    def until(self, condition: Callable[[], object], seconds: float = PATIENCE) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"out {self.out!r}, err {self.err[-3000:]!r}"
            time.sleep(0.02)


def _command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def _listening(pid: int) -> set[str]:
    """Return the paths of the Unix sockets that a process has open."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.add(link.readlink().name)
        except FileNotFoundError:  # The descriptor was closed meanwhile.
            continue
    table = Path("/proc/net/unix").read_text().splitlines()[1:]
    return {line.split()[7] for line in table if len(line.split()) > 7 and f"socket:[{line.split()[6]}]" in inodes}


@contextmanager
def serving(folder: Path, config: str = TWO, *arguments: str, seconds: float = PATIENCE) -> Iterator[ServeProcess]:
    """Yield an ensemble, ready within `seconds`. None of its processes outlives the context. Where `config` does
    not set them, the classifier and silent replicas get a long time, because the machine may be busy."""
    file = folder / "ensemble.yaml"
    patient = {"classifier": "{timeout: 60}", "dispatch": "{hang_seconds: 60}"}
    more = [f"{name}: {value}\n" for name, value in patient.items() if f"{name}:" not in config]
    file.write_text(f"{config.rstrip()}\n{''.join(more)}")
    served = ServeProcess(file, folder, *arguments)
    pids: list[int] = []
    try:
        served.until(lambda: "octet ready on" in served.out or served.popen.poll() is not None, seconds)
        assert "octet ready on" in served.out, f"octet serve ended: {served.err[-3000:]!r}"
        pids = served.pids
        yield served
    finally:
        served.end()
        try:
            served.until(lambda: not any(map(is_alive, pids)))
        finally:
            kill_all(pids)
