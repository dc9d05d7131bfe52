"""`octet why`: the whole story of one request."""

import argparse
from dataclasses import asdict
from typing import Any

import grpc

from octet.command_line import client
from octet.operate.asking import Commands, add_command, asks, show
from octet.operate.table import fold, terminal_width
from octet.sdk.errors import Forbidden, OctetError
from octet.sdk.operator import Operator
from octet.sdk.story import Story
from octet.text_io import check_text
from octet.why.tell import Told, alone, shown, tell

_MORE = """
Who decided and why, what stood in between, which replicas were asked and what
each said, how the time was spent, how it ended, and what was changed in the hour
before. Receipts are kept for a while. With a key that may not operate: what the
caller's own receipt tells, without the shadow's answer, the verdict on samples
and the changes.

  octet why 0a4c5d1e-demo
  octet why nightly-17 --tenant batch --json"""
_REST = "the comparison with a shadow, the verdict on samples and the changes before it"


def add_why_command(commands: Commands) -> None:
    parser = add_command(commands, "why", "the whole story of one request, in plain words", _MORE)
    parser.add_argument("request_id", metavar="REQUEST_ID", help="as its receipt or `octet receipts` has it")
    parser.add_argument("--tenant", default="", metavar="NAME", help="whose request it was, for an operator's key")
    asks(parser, "why", _why)


def _why(operator: Operator, arguments: argparse.Namespace) -> int:
    check_text("REQUEST_ID", arguments.request_id)
    check_text("--tenant", arguments.tenant)
    story, missing = found(operator, arguments)
    told = tell(story, is_whole=not missing)
    width = terminal_width()
    text = "\n\n".join([shown(told, width), *(["\n".join(fold(missing, width))] if missing else [])])
    return show(arguments, plain(story, told, missing), text)


def found(operator: Operator, arguments: argparse.Namespace) -> tuple[Story, str]:
    """And why it is not all, where it is not."""
    try:
        return operator.explain(arguments.request_id, tenant=arguments.tenant), ""
    except Forbidden:
        missing = f"This is the caller's own receipt. Only operators see {_REST}: this key may not operate."
    except OctetError as error:
        if error.code != grpc.StatusCode.UNIMPLEMENTED:
            raise
        missing = f"This is the receipt alone: the router does not tell {_REST}."
    with client(arguments) as router:
        return alone(router.receipt(arguments.request_id, tenant=arguments.tenant)), missing


def plain(story: Story, told: Told, missing: str) -> dict[str, Any]:
    return {**story.to_dict(), "told": asdict(told), "missing": missing}
