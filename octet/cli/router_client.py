"""Shared code of all commands that call the router: connection options, error reporting, exit status."""

import _thread
import argparse
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from octet.cli.arguments import Commands, add_parser, check_address, parse_seconds
from octet.client import errors
from octet.client.base import DEFAULT_ADDRESS
from octet.client.channel import API_KEY_VARIABLE
from octet.client.errors import OctetError
from octet.client.operator import DEFAULT_REASON, Operator
from octet.client.sync_client import Client
from octet.terminal import format_os_error, write_output

Result = tuple[dict[str, Any], str]  # the fields that --json prints, and the text
OperatorCall = Callable[[Operator, argparse.Namespace], Result | None]  # None if the call has printed its result itself

EXIT_INVALID, EXIT_BUSY, EXIT_FAILED, EXIT_NO_SPECIALIST, EXIT_INTERRUPTED, EXIT_PIPE_CLOSED = 2, 3, 4, 5, 130, 141
EXIT_STATUS_HELP = """\
Exit status: 0 on success, 2 when the request is invalid, 3 when the router is
unreachable or refuses the request for now (retry later), 4 when the request
failed or timed out, 5 when no specialist should answer it, 130 after Ctrl-C,
which cancels it, 141 when the reader of the output closed the pipe.
"""
_MAX_KEY_FILE = 4096


def add_connection_options(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option(
        "--address", default=DEFAULT_ADDRESS, metavar="HOST:PORT", help="address of the router; default: %(default)s"
    )
    option("--tls-ca", type=Path, metavar="FILE", help="CA that must have signed the router's certificate")
    option("--tls-certificate", type=Path, metavar="FILE", help="client certificate, if the router requires one")
    option("--tls-key", type=Path, metavar="FILE", help="key of the client certificate")
    _add_key_options(parser)


def _add_key_options(parser: argparse.ArgumentParser) -> None:
    """The key itself is not an option, because every user of the machine can read the arguments of a process."""
    about = f"file with the API key; default: the key in {API_KEY_VARIABLE}"
    parser.add_argument("--api-key-file", type=Path, metavar="FILE", help=about)
    about = "allow sending the key to another machine without TLS (trusted networks only)"
    parser.add_argument("--insecure", action="store_true", help=about)


def connection_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Raises OSError for an unreadable key file, and ValueError for an invalid address."""
    check_address(arguments.address)
    silence_grpc()
    api_key = None
    if arguments.api_key_file is not None:
        with arguments.api_key_file.open(encoding="utf-8", errors="replace") as file:
            api_key = file.read(_MAX_KEY_FILE).strip()
    tls = {"ca": arguments.tls_ca, "certificate": arguments.tls_certificate, "key": arguments.tls_key}
    return {**tls, "api_key": api_key, "insecure": arguments.insecure}


def open_client(arguments: argparse.Namespace) -> Client:
    return Client(arguments.address, **connection_options(arguments))


def open_operator(arguments: argparse.Namespace) -> Operator:
    who = getattr(arguments, "who", None)
    return Operator(arguments.address, who=who, **connection_options(arguments), timeout=arguments.timeout)


def silence_grpc() -> None:
    """Turn off gRPC's own log lines unless the environment enables them."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def run_command(command: str, call: Callable[[], int]) -> int:
    """Return the exit status; errors are reported in one line on standard error."""
    try:
        return call()
    except OctetError as error:
        print_error(command, str(error))
        return exit_status(error)
    except BrokenPipeError:
        return EXIT_PIPE_CLOSED
    except (OSError, ValueError) as error:
        print_error(command, format_os_error(error) if isinstance(error, OSError) else str(error))
        return EXIT_INVALID
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except RuntimeError as error:
        if isinstance(error.__context__, KeyboardInterrupt):  # raised while gRPC released a lock
            return EXIT_INTERRUPTED
        raise


def exit_status(error: OctetError) -> int:
    if isinstance(error, errors.InvalidRequest | errors.NotFound | errors.Unauthenticated | errors.Forbidden):
        return EXIT_INVALID
    if isinstance(error, errors.Busy | errors.Unavailable):
        return EXIT_BUSY
    return EXIT_NO_SPECIALIST if isinstance(error, errors.NoSpecialist) else EXIT_FAILED


def print_error(command: str, message: str) -> None:
    print(f"octet {command}: {message}", file=sys.stderr)


def print_json(value: dict[str, Any]) -> None:
    write_output(json.dumps(value, ensure_ascii=False) + "\n")


def print_result(arguments: argparse.Namespace, value: dict[str, Any], text: str) -> int:
    """Print the value as JSON with --json, else the text."""
    if arguments.json:
        print_json(value)
    else:
        write_output(text + "\n")
    return 0


def add_operator_command(
    commands: Commands, name: str, about: str, call: OperatorCall | None = None, more: str = ""
) -> argparse.ArgumentParser:
    """Add a command that calls octet.v1.Operator. Without a call, it only has subcommands or sets `run` itself."""
    parser = add_parser(commands, name, about, _help_tail(more))
    add_connection_options(parser)
    _add_output_options(parser, call)
    return parser


def add_operator_verb(
    verbs: Commands, name: str, about: str, call: OperatorCall, more: str = ""
) -> argparse.ArgumentParser:
    """Add a subcommand of an operator command. It has no defaults, so that options before the verb apply too."""
    parser = add_parser(verbs, name, about, _help_tail(more), argument_default=argparse.SUPPRESS)
    parser.add_argument("--address", metavar="HOST:PORT", help="address of the router")
    for option in ("--tls-ca", "--tls-certificate", "--tls-key"):
        parser.add_argument(option, type=Path, metavar="FILE", help=argparse.SUPPRESS)
    _add_key_options(parser)
    _add_output_options(parser, call)
    return parser


def _help_tail(more: str) -> str:
    return (f"\n{more}" if more else "") + f"\n\n{EXIT_STATUS_HELP}"


def _add_output_options(parser: argparse.ArgumentParser, call: OperatorCall | None) -> None:
    parser.add_argument("--json", action="store_true", help="print all fields as JSON")
    parser.add_argument("--timeout", type=parse_seconds, metavar="SECONDS", help="time limit for the whole call")
    if call is not None:
        name = parser.prog.partition(" ")[2]
        parser.set_defaults(run=lambda arguments: run_command(name, lambda: _connect_and_call(arguments, call)))


def _connect_and_call(arguments: argparse.Namespace, call: OperatorCall) -> int:
    with open_operator(arguments) as operator:
        result = call(operator, arguments)
        return 0 if result is None else print_result(arguments, *result)


def add_change_options(parser: argparse.ArgumentParser, *, reason_needed: bool = False) -> None:
    about, who = "recorded in the audit log", "who makes the change; default: your user and machine"
    if reason_needed:
        parser.add_argument("--reason", metavar="TEXT", required=True, help=about)
    else:
        parser.add_argument("--reason", metavar="TEXT", default=DEFAULT_REASON, help=f"{about}; default: %(default)s")
    parser.add_argument("--as", dest="who", metavar="NAME", default=None, help=who)


def reword_error(error: OctetError, message: str, **changed: Any) -> OctetError:
    fields = {name: getattr(error, name) for name in ("code", "reason", "field", "limit", "value", "request_id")}
    return type(error)(message, **fields | changed)


class Interrupt:
    """Makes Ctrl-C call `cancel` on another thread instead of raising in the main thread, which may hold gRPC's locks.
    Use it in the main thread: `with Interrupt(answer.cancel) as interrupt: ...`."""

    def __init__(self, cancel: Callable[[], None]) -> None:
        self.pressed = False
        self._cancel = cancel
        self._previous: Any = None

    def __enter__(self) -> "Interrupt":
        self._previous = signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._previous)

    def _press(self, number: int, frame: FrameType | None) -> None:
        if not self.pressed:
            self.pressed = True
            _thread.start_new_thread(self._cancel, ())  # unlike threading.Thread, it takes no lock
