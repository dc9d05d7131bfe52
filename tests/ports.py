"""Free ports."""

import random
import socket

_LOW, _HIGH = 15_000, 30_000
"""The range is below the kernel's ephemeral ports, so that a port stays free while its server is down."""


def free_port() -> int:
    while True:
        port = random.SystemRandom().randrange(_LOW, _HIGH)
        with socket.socket() as asked:
            try:
                asked.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
