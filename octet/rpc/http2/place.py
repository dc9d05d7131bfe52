"""Where a server is: host:port, or unix:PATH."""

import asyncio
import socket
from dataclasses import dataclass
from ipaddress import ip_address

_UNIX = "unix:"


@dataclass(frozen=True, slots=True)
class Place:
    host: str
    port: int
    path: str = ""
    """Of a Unix socket; empty for a place on the network."""

    @classmethod
    def of(cls, address: str) -> "Place":
        """Raises ValueError."""
        if address.startswith(_UNIX):
            bare = address.removeprefix(_UNIX)
            return cls("localhost", 0, bare.removeprefix("//") if bare.startswith("///") else bare)
        host, _, port = address.rpartition(":")
        return cls(host[1:-1] if host.startswith("[") and host.endswith("]") else host, int(port))

    async def hosts(self) -> tuple[str, ...]:
        """Every address behind the name, in the order in which this machine would dial them. Raises OSError."""
        try:
            ip_address(self.host)
        except ValueError:
            found = await asyncio.get_running_loop().getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
            return tuple(dict.fromkeys(str(where[0]) for *_, where in found))
        return (self.host,)
