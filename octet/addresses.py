"""Checks whether an address is on this machine."""

import ipaddress

_UNIX_PREFIXES = ("unix:", "unix-abstract:")


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_local(address: str) -> bool:
    """Whether a gRPC address is a Unix socket or on the loopback interface."""
    host = address.removeprefix("dns:///").removeprefix("ipv4:").removeprefix("ipv6:").rpartition(":")[0].strip("[]")
    return address.startswith(_UNIX_PREFIXES) or is_loopback(host)
