"""`octet knobs`, `octet knobs set` and `octet knobs release`."""

import argparse
import math
from collections.abc import Sequence

from octet.operate.asking import Commands, add_change, add_command, add_verb, asks, show
from octet.operate.figures import plain_number, since
from octet.operate.table import table
from octet.sdk.operating import KnobInfo
from octet.sdk.operator import Operator

_MORE = """
INTENT.shadow_threshold: below this confidence a second opinion is asked for.
INTENT.priority_floor: requests of a lower priority are refused.
INTENT/SPECIALIST in the place of INTENT: for one specialist alone."""
_HEADING = ("knob", "value", "configured", "set by", "since", "why")


def add_knob_commands(commands: Commands) -> None:
    parser = add_command(commands, "knobs", "what is shadowed and what is refused, by intent; and to change it", _MORE)
    asks(parser, "knobs", _list)
    verbs = parser.add_subparsers(metavar="set|release")
    set_one = add_verb(verbs, "set", "have a knob stand where you want it, until it is released", _MORE)
    set_one.add_argument("setting", type=setting, metavar="NAME=VALUE", help="such as review.priority_floor=5")
    add_change(set_one)
    asks(set_one, "knobs set", _set)
    release = add_verb(verbs, "release", "back to the configuration, and to what escalation makes of it")
    release.add_argument("name", metavar="NAME", help="such as review.priority_floor")
    add_change(release)
    asks(release, "knobs release", _release)


def setting(text: str) -> tuple[str, float]:
    name, equals, number = text.partition("=")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not name.strip() or not equals or not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"a knob is set as NAME=NUMBER, such as review.priority_floor=5, got {text!r}")
    return name.strip(), value


def _list(operator: Operator, arguments: argparse.Namespace) -> int:
    knobs = operator.knobs()
    return show(arguments, {"knobs": [each.to_dict() for each in knobs]}, shown(knobs))


def _set(operator: Operator, arguments: argparse.Namespace) -> int:
    name, value = arguments.setting
    knob = operator.set_knob(name, value, why=arguments.reason)
    return show(arguments, knob.to_dict(), told(knob))


def _release(operator: Operator, arguments: argparse.Namespace) -> int:
    knob = operator.release_knob(arguments.name, why=arguments.reason)
    return show(arguments, knob.to_dict(), told(knob))


def shown(knobs: Sequence[KnobInfo]) -> str:
    return table(_HEADING, [_row(each) for each in knobs])


def told(knob: KnobInfo) -> str:
    value, configured = plain_number(knob.value), plain_number(knob.configured)
    return f"{knob.name} is {value}, set by {knob.set_by} (configured: {configured})"


def _row(knob: KnobInfo) -> tuple[str, ...]:
    value, configured = plain_number(knob.value), plain_number(knob.configured)
    return knob.name, value, configured, knob.set_by, since(knob.since_unix_ms), knob.why
