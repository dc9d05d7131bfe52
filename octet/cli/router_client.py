"""Shared code of all commands that call the router: connection options, error reporting, exit status."""

import _thread
import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from octet.cli.arguments import Commands, add_flag, add_option, add_parser, check_address, parse_seconds
from octet.client import errors
from octet.client.base import DEFAULT_ADDRESS
from octet.client.channel import API_KEY_VARIABLE
from octet.client.clients import Client
from octet.client.errors import OctetError
from octet.client.operator import Operator
from octet.supervisor.signals import signal_handlers
from octet.terminal import format_error, write_output

Run = Callable[[argparse.Namespace], int]  # returns the exit status
Result = tuple[dict[str, Any], str]  # the fields that --json prints, and the text
OperatorCall = Callable[[Operator, argparse.Namespace], Result | None]  # None if the call has printed its result itself

EXIT_INVALID, EXIT_BUSY, EXIT_FAILED, EXIT_NO_SPECIALIST, EXIT_INTERRUPTED, EXIT_PIPE_CLOSED = 2, 3, 4, 5, 130, 141
EXIT_STATUS_HELP = """\
Exit status: 0 on success, 2 when the request is invalid, 3 when the router is
unreachable or refuses the request for now (retry later), 4 when the request
failed or timed out, 5 when no specialist should answer it, 130 after Ctrl-C,
which cancels it, 141 when the reader of the output closed the pipe.
"""
EVENTS_HELP = "print every event as a line of JSON"
_MAX_KEY_FILE = 4096


def add_command(
    commands: Commands,
    name: str,
    about: str,
    run: Run | None = None,
    more: str = "",
    *,
    json_help: str = "print all fields as JSON",
    **settings: Any,
) -> argparse.ArgumentParser:
    """Add a command that calls the router. Without `run`, it only has subcommands."""
    parser = add_parser(commands, name, about, (f"\n{more}" if more else "") + f"\n\n{EXIT_STATUS_HELP}", **settings)
    _add_connection_options(parser)
    add_flag(parser, "--json", json_help)
    if run is not None:
        command = parser.prog.partition(" ")[2]
        parser.set_defaults(run=lambda arguments: run_command(command, lambda: run(arguments)))
    return parser


def _add_connection_options(parser: argparse.ArgumentParser) -> None:
    option, default = partial(add_option, parser), parser.argument_default or DEFAULT_ADDRESS
    option("--address", "HOST:PORT", f"address of the router; default: {DEFAULT_ADDRESS}", default=default)
    option("--tls-ca", "FILE", "CA that must have signed the router's certificate", Path)
    option("--tls-certificate", "FILE", "client certificate, if the router requires one", Path)
    option("--tls-key", "FILE", "key of the client certificate", Path)
    # The key itself is not an option, because every user of the machine can read the arguments of a process.
    option("--api-key-file", "FILE", f"file with the API key; default: the key in {API_KEY_VARIABLE}", Path)
    add_flag(parser, "--insecure", "allow sending the key to another machine without TLS (trusted networks only)")


def connection_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the client's options. Raises OSError for an unreadable key file, and ValueError for an invalid address."""
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
    """Return the exit status of `call`. Errors are reported in one line on standard error."""
    try:
        return call()
    except OctetError as error:
        print_error(command, str(error))
        return exit_status(type(error))
    except BrokenPipeError:
        return EXIT_PIPE_CLOSED
    except (OSError, ValueError) as error:
        print_error(command, format_error(error))
        return EXIT_INVALID
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except RuntimeError as error:
        if isinstance(error.__context__, KeyboardInterrupt):  # raised while gRPC released a lock
            return EXIT_INTERRUPTED
        raise


def exit_status(kind: type[OctetError]) -> int:
    if kind in (errors.InvalidRequest, errors.NotFound, errors.Unauthenticated, errors.Forbidden):
        return EXIT_INVALID
    if kind in (errors.Busy, errors.Unavailable):
        return EXIT_BUSY
    return EXIT_NO_SPECIALIST if kind is errors.NoSpecialist else EXIT_FAILED


def print_error(command: str, message: str) -> None:
    print(f"octet {command}: {message}", file=sys.stderr)


def print_json(value: dict[str, Any]) -> None:
    write_output(json.dumps(value, ensure_ascii=False) + "\n")


def print_result(arguments: argparse.Namespace, value: dict[str, Any], text: str) -> int:
    """With --json, print the value as JSON, otherwise the text. Return exit status 0."""
    if arguments.json:
        print_json(value)
    else:
        write_output(text + "\n")
    return 0


def add_operator_command(
    commands: Commands, name: str, about: str, run: Run | None = None, more: str = "", **settings: Any
) -> argparse.ArgumentParser:
    """Add a command that calls octet.v1.Operator."""
    parser = add_command(commands, name, about, run, more, **settings)
    add_option(parser, "--timeout", "SECONDS", "time limit for the whole call", parse_seconds)
    return parser


add_operator_verb = partial(add_operator_command, argument_default=argparse.SUPPRESS)
"""Adds a subcommand of an operator command. It has no defaults, so that options before the verb keep their values."""


def call_operator(call: OperatorCall) -> Run:
    def run(arguments: argparse.Namespace) -> int:
        with open_operator(arguments) as operator:
            result = call(operator, arguments)
            return 0 if result is None else print_result(arguments, *result)

    return run


def reword_error(error: OctetError, message: str, **changed: Any) -> OctetError:
    fields = {name: getattr(error, name) for name in ("code", "reason", "field", "limit", "value", "request_id")}
    return type(error)(message, **fields | changed)


class Interrupt:
    pressed = False  # whether Ctrl-C was pressed


@contextmanager
def cancel_on_interrupt(cancel: Callable[[], None]) -> Iterator[Interrupt]:
    """Let Ctrl-C call `cancel` on another thread instead of raising in the main thread, which may hold gRPC's locks.
    Use it in the main thread."""
    interrupt = Interrupt()

    def press(*_: object) -> None:
        if not interrupt.pressed:
            interrupt.pressed = True
            _thread.start_new_thread(cancel, ())  # unlike threading.Thread, it takes no lock

    with signal_handlers((signal.SIGINT,), press):
        yield interrupt
