"""Parsers of commands, and the types of their arguments: ports, durations, addresses, numbers."""

import argparse
import re
import shutil
import sys
from collections.abc import Callable
from math import inf, nan
from pathlib import Path
from typing import Any, TypeAlias

from octet.terminal import format_error

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
EXIT_INVALID = 2
MAX_PORT = 65535
KEYS_VARIABLE = "OCTET_KEYS"
PORT_SETTING = "--port or router.port"  # how to change the port, for error messages
HTTP_PORT_SETTING = "--http-port or router.http.port, or disable HTTP with --no-http or `http: false`"
_GRPC_SCHEME = re.compile(r"(?:unix|unix-abstract|dns|ipv4|ipv6|vsock|xds):.")  # gRPC itself checks such an address
_HOST_AND_PORT = re.compile(r"(?:\[[^\[\]]+\]|[^\s:/\[\]]+):([0-9]+)")
_SECONDS_PER_UNIT = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)(s|m|h|d)?")
_MAX_DURATION_S = 10 * 365 * 86_400


def add_parser(commands: Any, name: str, about: str, more: str = "", **options: Any) -> argparse.ArgumentParser:
    """Add a command with the help text `about`. `about` and `more` form its description unless `options` has one."""
    options.setdefault("description", f"{about[0].upper()}{about[1:]}.{more}")
    formatter = argparse.RawDescriptionHelpFormatter
    parser: argparse.ArgumentParser = commands.add_parser(name, help=about, formatter_class=formatter, **options)
    return parser


def add_option(
    parser: Any, name: str, metavar: str, about: str = "", parse: Callable[[str], object] = str, **settings: Any
) -> None:
    """Add an option that takes a value, or a positional argument if the name has no dashes."""
    parser.add_argument(name, metavar=metavar, help=about or None, type=parse, **settings)


def add_flag(parser: Any, name: str, about: str) -> None:
    parser.add_argument(name, action="store_true", help=about)


def add_access_options(group: Any) -> None:
    about = f"require an API key from this file (see octet keys); default: {KEYS_VARIABLE}, or the configuration's"
    add_option(group, "--keys", "FILE", about, Path)
    add_flag(group, "--insecure", "allow access from other machines without TLS or keys (trusted networks only)")


def add_http_options(group: Any, about_port: str) -> None:
    options = group.add_mutually_exclusive_group()
    add_option(options, "--http-port", "PORT", about_port, parse_port)
    add_flag(options, "--no-http", "disable HTTP, and with it the dashboard")


def report_errors(command: str, call: Callable[[], int]) -> int:
    """Return the exit status of `call`. An error, such as an invalid option or file, is reported in one line."""
    try:
        return call()
    except BrokenPipeError:
        raise
    except (OSError, ValueError, RuntimeError, MemoryError) as error:
        print(f"octet {command}: {format_error(error)}", file=sys.stderr)
        return EXIT_INVALID


def started_as() -> list[str]:
    """Return the words with which this program was started, for commands that it prints."""
    program, python = sys.argv[0], sys.executable
    if Path(program).name == "__main__.py":
        return [python, "-m", "octet.cli"]
    if program == "-c":
        return ["octet"]
    found = shutil.which("octet")
    return ["octet"] if found is not None and Path(found).resolve() == Path(program).resolve() else [program]


def integer_type(least: int, most: float, expected: str) -> Callable[[str], int]:
    """Return an argument type for whole numbers from `least` to `most`; error messages begin with `expected`."""

    def parse(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{expected}, got {text!r}")
        return int(text)

    return parse


def parse_float(text: str) -> float:
    """Return the number, or NaN if the text is not a number."""
    try:
        return float(text)
    except ValueError:
        return nan


def number_type(is_valid: Callable[[float], bool], expected: str) -> Callable[[str], float]:
    """Return an argument type for numbers that pass `is_valid`; error messages begin with `expected`."""

    def parse(text: str) -> float:
        value = parse_float(text)
        if not is_valid(value):
            raise argparse.ArgumentTypeError(f"{expected}, got {text!r}")
        return value

    return parse


parse_port = integer_type(0, MAX_PORT, f"a port must be a number in [0, {MAX_PORT}]")
parse_positive = integer_type(1, inf, "must be a whole number of at least 1")
parse_share = number_type(lambda number: 0 <= number <= 1, "a share must be a number from 0 to 1")
parse_seconds = number_type(lambda value: 0 < value < inf, "expected a positive number of seconds")


def parse_pair(text: str, expected: str) -> tuple[str, str]:
    """Split NAME=VALUE into its two parts; error messages begin with `expected`."""
    name, _, value = text.partition("=")
    if not name or not value:
        raise argparse.ArgumentTypeError(f"{expected}, got {text!r}")
    return name, value


def parse_duration(text: str) -> float:
    """Return the duration in seconds, from `24h`, `90m`, `7d` or a number of seconds."""
    found = _DURATION.fullmatch(text.strip())
    value = 0.0 if found is None else float(found[1]) * _SECONDS_PER_UNIT[found[2] or "s"]
    if not 0 < value <= _MAX_DURATION_S:
        expected = "a duration must be above 0 and at most 10 years (such as 24h, 90m, 7d or 3600s)"
        raise argparse.ArgumentTypeError(f"{expected}, got {text!r}")
    return value


def check_address(address: str) -> None:
    """Raises ValueError for an address that gRPC would misread."""
    match = _HOST_AND_PORT.fullmatch(address)
    if _GRPC_SCHEME.match(address) or (match is not None and 0 < int(match[1][:6]) <= MAX_PORT):
        return
    hint = "; gRPC addresses are written without http://" if "://" in address else ""
    raise ValueError(f"--address must be HOST:PORT (such as 127.0.0.1:50051) or unix:PATH, got {address!r:.80}{hint}")
