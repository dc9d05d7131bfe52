"""Whether a Unix socket can be had. gRPC itself would take it from whoever listens there."""

import socket
from pathlib import Path

from octet.rpc.bind_refused import BindRefused

MAX_BYTES = 107
"""The kernel's, for a path."""


def check_socket(path: Path) -> None:
    """What a killed process has left behind is no obstacle. Raises BindRefused."""
    if len(str(path).encode()) > MAX_BYTES:
        raise BindRefused(f"the path of a Unix socket has at most {MAX_BYTES} bytes: {path} is longer")
    if not path.parent.is_dir():
        raise BindRefused(f"cannot listen on {path}: there is no folder {path.parent}")
    if path.exists() and not path.is_socket():
        raise BindRefused(f"cannot listen on {path}: there is a file of that name")
    if path.exists() and _answers(path):
        raise BindRefused(f"cannot listen on {path}: somebody does already")


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
        except OSError as error:
            raise BindRefused(f"cannot listen on {path}: {error}") from error
    return True
