"""`octet breakers`, `octet breaker hold` and `octet breaker release`."""

import argparse

from octet.operate.asking import Commands, add_change, add_command, add_verb, asks, show
from octet.operate.figures import duration, share, since
from octet.operate.table import table
from octet.sdk.operating import BreakerInfo, Breakers
from octet.sdk.operator import Operator

_MORE = """
closed: it serves. shadow_only: its answers were wrong too often; somebody else
answers, and it only shadows. recovering: its shadows are right again, and have
to stay so for a whole window before it serves. Held: by hand, until released."""
_HEADING = (
    "specialist",
    "lane",
    "state",
    "passed",
    "samples",
    "floor",
    "since",
    "fallback",
    "outlook",
)


def add_breaker_commands(commands: Commands) -> None:
    parser = add_command(commands, "breakers", "how right the answers of every specialist are, and what follows", _MORE)
    asks(parser, "breakers", _list)
    single = add_command(commands, "breaker", "hold a specialist's breaker by hand, or release it")
    verbs = single.add_subparsers(metavar="hold|release", required=True)
    hold = _verb(verbs, "hold", "keep a specialist from serving, or have it serve whatever happens")
    position = hold.add_mutually_exclusive_group(required=True)
    position.add_argument("--open", dest="hold", action="store_const", const="open", help="it only shadows")
    position.add_argument("--closed", dest="hold", action="store_const", const="closed", help="it serves")
    add_change(hold, reason_needed=True)
    asks(hold, "breaker hold", _hold)
    release = _verb(verbs, "release", "the breaker decides again, from where it would be without the hold")
    add_change(release)
    asks(release, "breaker release", _release)


def _verb(verbs: Commands, name: str, about: str) -> argparse.ArgumentParser:
    parser = add_verb(verbs, name, about)
    parser.add_argument("specialist", metavar="SPECIALIST")
    return parser


def _list(operator: Operator, arguments: argparse.Namespace) -> int:
    found = operator.breakers()
    return show(arguments, found.to_dict(), shown(found))


def _hold(operator: Operator, arguments: argparse.Namespace) -> int:
    held = operator.hold_breaker(arguments.specialist, arguments.hold, why=arguments.reason)
    return show(arguments, held.to_dict(), told(held))


def _release(operator: Operator, arguments: argparse.Namespace) -> int:
    released = operator.release_breaker(arguments.specialist, why=arguments.reason)
    return show(arguments, released.to_dict(), told(released))


def shown(found: Breakers) -> str:
    trouble = f"\n\nthe store does not answer, no change can be made: {found.store_trouble}"
    windows = sorted({duration(each.window_seconds) for each in found.breakers})
    note = f"\n\npassed: over the last {' or '.join(windows)}" if windows else ""
    rows = table(_HEADING, [_row(each) for each in found.breakers])
    return rows + note + (trouble if found.store_trouble else "")


def told(breaker: BreakerInfo) -> str:
    """One breaker in a sentence."""
    return f"{breaker.specialist} is {_state(breaker)}" + (f": {breaker.outlook}" if breaker.outlook else "")


def _row(breaker: BreakerInfo) -> tuple[str, ...]:
    needed = f" of {breaker.min_samples}" if breaker.samples < breaker.min_samples else ""
    return (
        breaker.specialist,
        _lane(breaker),
        _state(breaker),
        share(breaker.pass_rate),
        f"{breaker.samples}{needed}",
        share(breaker.floor),
        since(breaker.since_unix_ms),
        breaker.fallback,
        breaker.outlook,
    )


def _lane(breaker: BreakerInfo) -> str:
    adapters = "".join(f"+{name}" for name in breaker.adapters)
    status = "" if breaker.lane_status in ("", "serving") else f" {breaker.lane_status}"
    return f"{breaker.lane}{adapters}{status}"


def _state(breaker: BreakerInfo) -> str:
    if not breaker.hold:
        return breaker.state
    return f"held {breaker.hold} by {breaker.hold_by}: {breaker.hold_why}"
