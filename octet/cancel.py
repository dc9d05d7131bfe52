"""`octet cancel`: end a request that is being answered."""

import argparse
import json

from octet.command_line import EXIT_STATUS, add_address, client, ended
from octet.text_io import write


def add_cancel_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "cancel",
        description=f"End a request; whoever reads its answer is told.\n\n{EXIT_STATUS}",
        help="end a request that is being answered",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("request_id", metavar="ID", help="of the request")
    parser.add_argument("--json", action="store_true", help="say as JSON which request was ended, instead of nothing")
    add_address(parser)
    parser.set_defaults(run=lambda arguments: ended("cancel", lambda: _cancel(arguments)))


def _cancel(arguments: argparse.Namespace) -> int:
    with client(arguments) as router:
        router.cancel(arguments.request_id)
    if arguments.json:
        write(json.dumps({"request_id": arguments.request_id, "cancelled": True}) + "\n")
    return 0
