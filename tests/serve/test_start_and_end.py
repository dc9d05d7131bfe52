"""Start and end of commands: early signals, leftover runtime folders, and closed standard streams."""

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from octet.supervisor.placement import runtime_folder
from tests.octet.supervisor.test_supervisor import children_of, wait_until
from tests.patience import PATIENCE
from tests.serve.ensemble import ROOT, TWO

PREPARING = """
import argparse, sys, time
from octet.cli.serve import add_serve_command

def prepare(places):
    print(places[0].socket.parent, flush=True)
    time.sleep(1000)

parser = argparse.ArgumentParser()
add_serve_command(parser.add_subparsers(), prepare)
arguments = parser.parse_args(["serve", sys.argv[1], "--port", "0", "--no-http"])
sys.exit(arguments.run(arguments))
"""


@pytest.fixture
def parent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Set and yield a runtime folder whose path is short enough for Unix sockets."""
    with TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield Path(folder)


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 0), (signal.SIGHUP, 0), (signal.SIGINT, 130), (signal.SIGKILL, -9)]
)
def test_signal_during_preparation_leaves_nothing_behind(
    tmp_path: Path, parent: Path, number: signal.Signals, status: int
) -> None:
    file = tmp_path / "two.yaml"
    file.write_text(TWO)
    command = [sys.executable, "-c", PREPARING, str(file)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as popen:
        folder = Path(popen.stdout.readline().strip() if popen.stdout is not None else "")
        assert folder.is_dir() and folder.parent == parent
        popen.send_signal(number)
        assert popen.wait(PATIENCE) == status
    assert folder.exists() == (number == signal.SIGKILL)


def listen(path: Path) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    return listening


def test_folders_of_killed_supervisors_are_removed(parent: Path) -> None:
    abandoned, foreign, other = (parent / name for name in ("octet-serve-a", "octet-serve-b", "octet-x"))
    for folder in (abandoned, foreign, other):
        folder.mkdir()
        listen(folder / "0-sql.sock").close()
    (abandoned / "accepted.yaml").write_text("")
    (foreign / "notes.txt").write_text("not ours")
    (parent / "octet-serve-link").symlink_to(other)
    with runtime_folder() as first, runtime_folder() as second:
        assert first.is_dir() and second.is_dir() and first != second, (
            "two supervisors must be able to serve concurrently"
        )
        assert not abandoned.exists() and foreign.is_dir() and other.is_dir()
    assert not first.exists() and not second.exists()


def test_next_runtime_folder_is_tried(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = parent / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(blocked))
    with runtime_folder() as folder:
        assert folder.is_dir() and not folder.is_relative_to(parent)


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_commands_work_with_closed_standard_streams(tmp_path: Path, closed: str) -> None:
    file = tmp_path / "two.yaml"
    file.write_text(TWO)
    command = f"exec {sys.executable} -m octet.cli"
    asking = ["sh", "-c", f"{command} generate x --address 127.0.0.1:1 {closed}"]
    assert subprocess.run(asking, cwd=ROOT, stderr=subprocess.PIPE, timeout=PATIENCE).returncode == 3
    serving = ["sh", "-c", f"{command} serve {file} --port 0 --http-port 0 {closed}"]
    with subprocess.Popen(serving, cwd=ROOT, stderr=subprocess.PIPE) as popen:
        wait_until(lambda: len(children_of(popen.pid)) == 4)
        popen.send_signal(signal.SIGTERM)
        _, output = popen.communicate(timeout=PATIENCE)
    assert popen.returncode == 0 and b"Traceback" not in output


def test_early_interrupt_prints_no_traceback() -> None:
    script = """
import sys, octet.cli
class Interrupted:
    def find_spec(self, name, path=None, target=None):
        if name == "argparse":
            raise KeyboardInterrupt
sys.modules.pop("argparse", None)
sys.meta_path.insert(0, Interrupted())
sys.exit(octet.cli.main(["generate", "x"]))
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (130, "")
