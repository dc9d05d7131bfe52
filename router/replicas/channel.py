"""The connection to one replica."""

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from octet.rpc.http2.channel import Channel, Reading
from octet.rpc.http2.trust import trusting
from router.replicas.address import Target

LOOKAHEAD_BYTES = 512
"""Of an answer, which a replica may send before they are asked for: its acceptance and some tokens. Tokens that come
faster than they are passed on wait at the replica, which makes one message of them: here, every message would have to
be read by itself. It also bounds what is held for a caller who does not read. Whoever reads a message that is longer
asks for all of it."""
READING = Reading(most_message=32 << 20, lookahead=LOOKAHEAD_BYTES)


@dataclass(frozen=True, slots=True)
class ReplicaTls:
    """Raises ValueError for files that belong together and are not."""

    ca: Path
    """Replicas must show a certificate that it has signed."""
    certificate: Path | None = None
    """The router's own, for replicas that ask for one."""
    key: Path | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("--replica-certificate and --replica-key belong together")

    def credentials(self) -> ssl.SSLContext:
        """Raises OSError for a file that cannot be read or used."""
        return trusting(self.ca, self.certificate, self.key)


Connect: TypeAlias = Callable[[Target, Any, Reading], Any]
"""To a place, with credentials, and what is taken of its answers: a channel, or what a simulation puts in its place."""


def connect(target: Target, credentials: ssl.SSLContext | None, reading: Reading = READING) -> Channel:
    """Dials when it is first used. `credentials` is None for none."""
    tls = None if target.address.startswith("unix:") else credentials
    return Channel(target.address, reading, tls, target.authority if tls is not None else "")
