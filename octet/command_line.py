"""What every command that asks the router does alike: where it asks, and how it ends."""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from octet.arguments import check_address
from octet.sdk.caller import DEFAULT_ADDRESS
from octet.sdk.client import Client
from octet.sdk.errors import Busy, InvalidRequest, NoSpecialist, NotFound, OctetError, Unavailable
from octet.text_io import file_words

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


def client(arguments: argparse.Namespace) -> Client:
    """Raises OSError and ValueError."""
    check_address(arguments.address)
    quieten_grpc()
    return Client(arguments.address, ca=arguments.tls_ca, certificate=arguments.tls_certificate, key=arguments.tls_key)


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
