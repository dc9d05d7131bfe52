"""The connection to one replica."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import grpc

from router.replicas.address import Target

Options = tuple[tuple[str, int], ...]
LOOKAHEAD_BYTES = 256
"""Of an answer, which a replica may send before they are asked for: some tokens. Whoever reads a message that is longer
asks for all of it."""
ALIKE: Options = (
    # Hangs are found by heartbeat. This is for connections whose other end is gone without a word.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    # What is tried again, and where, is decided here and nowhere below.
    ("grpc.enable_retries", 0),
    ("grpc.service_config_disable_resolution", 1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)
"""Of every connection to a replica."""
OPTIONS: Options = (
    *ALIKE,
    ("grpc.max_receive_message_length", 32 << 20),
    # A replica that is back is noticed before those who wait for it give up; dialling one that does not answer ends
    # after a second.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    # Tokens that come faster than they are passed on wait at the replica, which makes one message of them: here, every
    # message would have to be read by itself. It also bounds what is held for a caller who does not read.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", LOOKAHEAD_BYTES),
    # The time-out of the ping itself is what ends a connection whose other end is gone.
    ("grpc.http2.ping_timeout_ms", 5_000),
)


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

    def credentials(self) -> Any:
        """Raises OSError for a file that cannot be read."""
        own = [None if path is None else path.read_bytes() for path in (self.key, self.certificate)]
        return grpc.ssl_channel_credentials(self.ca.read_bytes(), *own)


Connect: TypeAlias = Callable[[Target, Any, Options], Any]
"""To a place, with credentials and options: a grpc.aio.Channel, or what a simulation puts in its place."""


def connect(target: Target, credentials: Any, options: Options = OPTIONS) -> Any:
    """A grpc.aio.Channel, which dials when it is first used. `credentials` is None for none."""
    if credentials is None or target.address.startswith("unix:"):
        return grpc.aio.insecure_channel(target.address, options=options)
    name = (("grpc.ssl_target_name_override", target.authority),) if target.authority else ()
    return grpc.aio.secure_channel(target.address, credentials, options=(*options, *name))
