"""Ports that nobody listens on."""

import socket
from contextlib import ExitStack

HOST = "127.0.0.1"


def free_ports(number: int) -> list[int]:
    with ExitStack() as stack:
        taken = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in taken:
            each.bind((HOST, 0))
        return [each.getsockname()[1] for each in taken]
