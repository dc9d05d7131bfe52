"""What every command that asks the router does alike: where it asks, and how it ends."""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from octet.arguments import check_address
from octet.sdk.api_key import VARIABLE
from octet.sdk.caller import DEFAULT_ADDRESS
from octet.sdk.client import Client
from octet.sdk.errors import (
    Busy,
    Forbidden,
    InvalidRequest,
    NoSpecialist,
    NotFound,
    OctetError,
    Unauthenticated,
    Unavailable,
)
from octet.text_io import file_words

_MOST_KEY = 4096
WRONG, BUSY, FAILED, NOBODY, INTERRUPTED, PIPE_CLOSED = 2, 3, 4, 5, 130, 141
EXIT_STATUS = """\
Exit status: 0 when all went well, 2 when the request was wrong, 3 when nothing
could be reached or takes anything now (worth trying again), 4 when it failed or
the time given has passed, 5 when no specialist should answer it, 130 after
Ctrl-C, which cancels, 141 when whoever read the output has gone away.
"""
_STATUS: tuple[tuple[type[OctetError], int], ...] = (
    (InvalidRequest, WRONG),
    (NotFound, WRONG),
    (Unauthenticated, WRONG),
    (Forbidden, WRONG),
    (Busy, BUSY),
    (Unavailable, BUSY),
    (NoSpecialist, NOBODY),
    (OctetError, FAILED),
)


def add_address(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--address", default=DEFAULT_ADDRESS, metavar="HOST:PORT", help="of the router; default: %(default)s"
    )
    parser.add_argument("--tls-ca", type=Path, metavar="FILE", help="the server must show a certificate it has signed")
    parser.add_argument("--tls-certificate", type=Path, metavar="FILE", help="yours, where the server asks for one")
    parser.add_argument("--tls-key", type=Path, metavar="FILE")
    add_key(parser)


def add_key(parser: argparse.ArgumentParser) -> None:
    """Never the key itself: everybody on the machine sees what a command is given."""
    parser.add_argument(
        "--api-key-file", type=Path, metavar="FILE", help=f"holds the key to show; default: the one in {VARIABLE}"
    )
    parser.add_argument(
        "--insecure", action="store_true", help="show the key to another machine without TLS: the way is safe"
    )


def door_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """What every client is told. Raises OSError and ValueError."""
    return {
        "ca": arguments.tls_ca,
        "certificate": arguments.tls_certificate,
        "key": arguments.tls_key,
        "api_key": None if arguments.api_key_file is None else _key_in(arguments.api_key_file),
        "insecure": arguments.insecure,
    }


def _key_in(path: Path) -> str:
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(_MOST_KEY).strip()


def client(arguments: argparse.Namespace) -> Client:
    """Raises OSError and ValueError."""
    check_address(arguments.address)
    quieten_grpc()
    return Client(arguments.address, **door_options(arguments))


def quieten_grpc() -> None:
    """What it notes of its connections is for its own makers; whoever wants it says so in the environment."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def ended(command: str, ask: Callable[[], int]) -> int:
    """The exit status; what went wrong is told in one line."""
    try:
        return ask()
    except OctetError as error:
        complain(command, str(error))
        return status_of(error)
    except BrokenPipeError:
        return PIPE_CLOSED
    except OSError as error:
        complain(command, file_words(error))
        return WRONG
    except ValueError as error:
        complain(command, str(error))
        return WRONG
    except KeyboardInterrupt:
        return INTERRUPTED
    except RuntimeError as error:
        if isinstance(error.__context__, KeyboardInterrupt):  # it came while gRPC was about to let go of a lock
            return INTERRUPTED
        raise


def status_of(error: OctetError) -> int:
    return next(status for kind, status in _STATUS if isinstance(error, kind))


def complain(command: str, message: str) -> None:
    print(f"octet {command}: {message}", file=sys.stderr)
