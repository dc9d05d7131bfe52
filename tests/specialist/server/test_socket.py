"""A replica behind a Unix socket."""

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from octet.rpc.listener import BindRefused, check_socket_free
from tests.patience import PATIENCE
from tests.specialist.server.test_process import Process, start_generate


@contextmanager
def specialist(path: Path) -> Iterator[tuple[Process, str]]:
    """Start a specialist at this socket. Yield its process and its ready line."""
    process = Process("specialist", "--engine", "sim", "--socket", str(path), "--name", "writer", "--kv-blocks", "64")
    try:
        yield process, process.stdout.readline()
    finally:
        process.popen.kill()
        process.popen.communicate()


def test_socket_of_a_killed_replica_is_reused(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with specialist(path) as (_, ready_line):
        assert f" ready on unix:{path} " in ready_line
    assert path.is_socket(), "kill -9 leaves the socket behind"
    with specialist(path) as (replica, ready_line):
        assert start_generate(ready_line, 5).rest()[0] == 0
        status, _, said = Process("specialist", "--engine", "sim", "--socket", str(path)).rest()
        assert (status, said) == (2, f"octet specialist: cannot listen on {path}: another process already does\n")
        assert start_generate(ready_line, 5).rest()[0] == 0
        replica.popen.send_signal(signal.SIGTERM)
        assert replica.popen.wait(PATIENCE) == 0
    assert not path.exists()


def test_unusable_socket_path_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    for path, says in [
        (tmp_path / "file", "a file with that name exists"),
        (tmp_path / "none" / "a.sock", "does not exist"),
        (tmp_path / ("x" * 110), "at most 107 bytes"),
    ]:
        with pytest.raises(BindRefused, match=says):
            check_socket_free(path)
    assert (tmp_path / "file").read_text() == "precious"


def test_stale_socket_is_reused(tmp_path: Path) -> None:
    path = tmp_path / "stale.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
        left.listen()
        with pytest.raises(BindRefused, match="another process already does"):
            check_socket_free(path)
    check_socket_free(path)
