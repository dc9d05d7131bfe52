"""`octet receipt`: what became of a request."""

import argparse
import json

from octet.command_line import EXIT_STATUS, add_address, client, ended
from octet.shown import shown
from octet.text_io import write


def add_receipt_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "receipt",
        description=f"Who answered a request, why, and how it went. Receipts are kept for a while.\n\n{EXIT_STATUS}",
        help="what became of a request",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("request_id", metavar="ID", help="of the request")
    parser.add_argument("--tenant", default="", metavar="NAME", help="whose request it was, for an operator's key")
    parser.add_argument("--json", action="store_true")
    add_address(parser)
    parser.set_defaults(run=lambda arguments: ended("receipt", lambda: _look_up(arguments)))


def _look_up(arguments: argparse.Namespace) -> int:
    with client(arguments) as router:
        receipt = router.receipt(arguments.request_id, tenant=arguments.tenant)
    write((json.dumps(receipt.to_dict(), ensure_ascii=False) if arguments.json else shown(receipt)) + "\n")
    return 0
