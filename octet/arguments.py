"""What a value on the command line must be, in the same words for every command."""

import argparse
import re
from math import inf

MAX_PORT = 65535
_SCHEME = re.compile(r"(?:unix|unix-abstract|dns|ipv4|ipv6|vsock|xds):.")
"""gRPC's own ways to name a server: it checks them itself."""
_PLACE = re.compile(r"(?:\[[^\[\]]+\]|[^\s:/\[\]]+):([0-9]+)")


def port(text: str) -> int:
    if not text.isdecimal() or int(text) > MAX_PORT:
        raise argparse.ArgumentTypeError(f"a port is a number in [0, {MAX_PORT}], got {text!r}")
    return int(text)


def seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < inf:
        raise argparse.ArgumentTypeError(f"a positive number of seconds is needed, got {text!r}")
    return value


def check_address(address: str) -> None:
    """Of a server that is asked. Raises ValueError for what gRPC would look up somewhere, or not at all."""
    place = _PLACE.fullmatch(address)
    if _SCHEME.match(address) or (place is not None and 0 < int(place[1][:6]) <= MAX_PORT):
        return
    hint = "; it is gRPC's, and has no http:// before it" if "://" in address else ""
    raise ValueError(f"--address is HOST:PORT, such as 127.0.0.1:50051, or unix:PATH, got {address!r:.80}{hint}")
