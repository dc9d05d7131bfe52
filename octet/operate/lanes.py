"""`octet lanes`, and `octet adapters` with load, promote and rollback."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from octet.operate.asking import Commands, add_change, add_command, add_verb, advised, asks, show
from octet.operate.figures import share, since
from octet.operate.table import table
from octet.sdk.errors import OctetError
from octet.sdk.operating import LaneInfo
from octet.sdk.operator import Operator

_MORE = """
A lane is a specialist's model with its adapters. One serves; one may be a
candidate, which shadows and answers nobody until it is promoted."""
_LOAD = """
PATH is a directory below the replicas' adapter root, as the replicas see it.
One that begins with ./, ../ or ~ is meant from here, on this machine. The root
is `adapter_root` of the configuration, or the folder that its file lies in, or
without a file the one where `octet serve` was started."""
_ROOT = "adapter root"
_WHERE = (
    "the root is adapter_root of the configuration, or the folder that its file lies in, "
    "or without a file the one where octet serve was started"
)
_HEADING = ("specialist", "lane", "adapter", "status", "since", "passed", "samples", "on", "by", "outlook")
_HERE = ("./", "../", "~")


def add_lane_commands(commands: Commands) -> None:
    lanes = add_command(commands, "lanes", "which lanes serve, which are tried, and which came before", _MORE)
    lanes.add_argument("specialist", nargs="?", default="", metavar="SPECIALIST", help="default: all")
    asks(lanes, "lanes", _list)
    adapters = add_command(commands, "adapters", "try an adapter beside what serves, have it serve, or go back", _MORE)
    adapters.set_defaults(specialist="")
    asks(adapters, "adapters", _list)
    verbs = adapters.add_subparsers(metavar="load|promote|rollback")
    load = _verb(verbs, "load", "have every replica load an adapter; it begins as a candidate", _LOAD)
    load.add_argument("path", type=adapter_path, metavar="PATH")
    load.add_argument("--name", default="", help="of the lane; default: the directory's")
    add_change(load)
    asks(load, "adapters load", _load)
    promote = _verb(verbs, "promote", "have the candidate serve; what is under way finishes where it began")
    promote.add_argument("name", nargs="?", default="", metavar="NAME", help="of the candidate; default: whichever")
    add_change(promote)
    asks(promote, "adapters promote", _promote)
    back = _verb(verbs, "rollback", "the candidate goes; without one, the lane before serves again")
    add_change(back)
    asks(back, "adapters rollback", _roll_back)


def _verb(verbs: Commands, name: str, about: str, more: str = "") -> argparse.ArgumentParser:
    parser = add_verb(verbs, name, about, more)
    parser.add_argument("specialist", metavar="SPECIALIST")
    return parser


def adapter_path(text: str) -> str:
    """Replicas know nothing of where the caller is."""
    return str(Path(text).expanduser().resolve()) if text.startswith(_HERE) or text in (".", "..") else text


def _list(operator: Operator, arguments: argparse.Namespace) -> int:
    lanes = operator.lanes(arguments.specialist)
    return show(arguments, {"lanes": [each.to_dict() for each in lanes]}, shown(lanes))


def _load(operator: Operator, arguments: argparse.Namespace) -> int:
    try:
        lane = operator.load_adapter(arguments.specialist, arguments.path, name=arguments.name, why=arguments.reason)
    except OctetError as error:
        raise (advised(error, _WHERE) if _ROOT in str(error) else error) from None
    return show(arguments, lane.to_dict(), told(lane))


def _promote(operator: Operator, arguments: argparse.Namespace) -> int:
    lane = operator.promote(arguments.specialist, arguments.name, why=arguments.reason)
    return show(arguments, lane.to_dict(), told(lane))


def _roll_back(operator: Operator, arguments: argparse.Namespace) -> int:
    lane = operator.roll_back(arguments.specialist, why=arguments.reason)
    return show(arguments, lane.to_dict(), told(lane))


def shown(lanes: Sequence[LaneInfo]) -> str:
    return table(_HEADING, [_row(each) for each in lanes])


def told(lane: LaneInfo) -> str:
    words = f"lane {lane.number} of {lane.specialist}, {lane.adapter or 'the bare model'}, is {lane.status}"
    return words + (f": {lane.outlook}" if lane.outlook else "")


def _row(lane: LaneInfo) -> tuple[str, ...]:
    return (
        lane.specialist,
        str(lane.number),
        lane.adapter,
        lane.status,
        since(lane.since_unix_ms),
        share(lane.pass_rate),
        str(lane.samples),
        f"{lane.resident}/{lane.replicas}",
        lane.by,
        lane.outlook,
    )
