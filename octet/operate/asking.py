"""What every command of an operator is told, and how it asks."""

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from octet.arguments import check_address, seconds
from octet.command_line import EXIT_STATUS, add_address, add_key, door_options, ended, quieten_grpc
from octet.sdk.errors import OctetError
from octet.sdk.operator import BY_HAND, Operator
from octet.text_io import write

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
Ask = Callable[[Operator, argparse.Namespace], int]


def add_command(commands: Commands, name: str, about: str, more: str = "") -> argparse.ArgumentParser:
    """One that asks the router."""
    parser = _parser(commands, name, about, more)
    add_address(parser)
    _add_form(parser)
    return parser


def add_verb(verbs: Commands, name: str, about: str, more: str = "") -> argparse.ArgumentParser:
    """A word after such a command. What stands before the word counts as well: there are no defaults here."""
    parser = _parser(verbs, name, about, more, argument_default=argparse.SUPPRESS)
    parser.add_argument("--address", metavar="HOST:PORT", help="of the router")
    for option in ("--tls-ca", "--tls-certificate", "--tls-key"):
        parser.add_argument(option, type=Path, metavar="FILE", help=argparse.SUPPRESS)
    add_key(parser)
    _add_form(parser)
    return parser


def add_change(parser: argparse.ArgumentParser, *, reason_needed: bool = False) -> None:
    """Whoever reads the audit wants to know."""
    usual: dict[str, Any] = {"required": True} if reason_needed else {"default": BY_HAND}
    shown = "goes into the audit" if reason_needed else "goes into the audit; default: %(default)s"
    parser.add_argument("--reason", metavar="TEXT", help=shown, **usual)
    parser.add_argument("--as", dest="who", default=None, metavar="NAME", help="you; default: your name and machine")


def asks(parser: argparse.ArgumentParser, name: str, ask: Ask) -> None:
    """What the command does. `name` is what it is called when something goes wrong."""

    def run(arguments: argparse.Namespace) -> int:
        return ended(name, lambda: _asked(arguments, ask))

    parser.set_defaults(run=run)


def show(arguments: argparse.Namespace, plain: dict[str, Any], text: str) -> int:
    write((json.dumps(plain, ensure_ascii=False) if arguments.json else text) + "\n")
    return 0


def advised(error: OctetError, advice: str) -> OctetError:
    """The same, and what to do about it."""
    said = {name: getattr(error, name) for name in ("code", "reason", "field", "limit", "value", "request_id")}
    return type(error)(f"{error}; {advice}", **said)


def as_typed(error: OctetError, options: Mapping[str, str]) -> OctetError:
    """The same, with the field called as on the command line. `options`: by the names of the wire."""
    option = options.get(error.field)
    if option is None:
        return error
    said = {name: getattr(error, name) for name in ("code", "reason", "limit", "value", "request_id")}
    return type(error)(str(error).replace(error.field, option, 1), field=option, **said)


def operator_at(arguments: argparse.Namespace) -> Operator:
    """Raises OSError and ValueError."""
    check_address(arguments.address)
    quieten_grpc()
    return Operator(
        arguments.address,
        who=getattr(arguments, "who", None),
        **door_options(arguments),
        timeout=arguments.timeout,
    )


def _asked(arguments: argparse.Namespace, ask: Ask) -> int:
    with operator_at(arguments) as operator:
        return ask(operator, arguments)


def _add_form(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="as JSON, with all there is")
    parser.add_argument("--timeout", type=seconds, metavar="SECONDS", help="for the whole call")


def _parser(commands: Commands, name: str, about: str, more: str, **options: Any) -> argparse.ArgumentParser:
    said = f"{about[0].upper()}{about[1:]}." + (f"\n{more}" if more else "")
    return commands.add_parser(
        name,
        help=about,
        description=f"{said}\n\n{EXIT_STATUS}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        **options,
    )
