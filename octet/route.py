"""`octet route`: who would answer, without asking anybody."""

import argparse
import json

from octet.command_line import EXIT_STATUS, NOBODY, add_address, client, complain, ended
from octet.generate import add_routing, routing
from octet.sdk.errors import NoSpecialist
from octet.sdk.options import Options
from octet.sdk.receipt import Receipt
from octet.shown import explained, summary
from octet.text_io import check_text, standard_input, write

_DESCRIPTION = f"""\
The decision the router would take for a prompt, without generating anything: the
specialist, its probability where the classifier was asked, and who decided.

{EXIT_STATUS}"""


def add_route_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "route",
        description=_DESCRIPTION,
        help="who would answer, and why",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("prompt", nargs="?", help="default: standard input")
    parser.add_argument("--explain", action="store_true", help="all that led to the decision")
    parser.add_argument("--json", action="store_true", help="the receipt as JSON")
    parser.add_argument("--timeout", type=float, default=10.0, metavar="SECONDS", help="default: %(default)s")
    add_address(parser)
    add_routing(parser)
    parser.set_defaults(run=lambda arguments: ended("route", lambda: _route(arguments)))


def _route(arguments: argparse.Namespace) -> int:
    check_text("prompt", arguments.prompt)
    text = standard_input() if arguments.prompt is None else arguments.prompt
    options = Options(**routing(arguments), timeout=arguments.timeout)  # type: ignore[typeddict-item]
    with client(arguments) as router:
        try:
            receipt = router.route(text, **options)
        except NoSpecialist as error:
            if error.receipt is not None:
                _show(arguments, error.receipt)
            raise
    _show(arguments, receipt)
    if receipt.decision.primary:
        return 0
    complain("route", f"no specialist should answer this: {receipt.why}")
    return NOBODY


def _show(arguments: argparse.Namespace, receipt: Receipt) -> None:
    if arguments.json:
        write(json.dumps(receipt.to_dict(), ensure_ascii=False) + "\n")
    else:
        write((explained(receipt) if arguments.explain else summary(receipt.decision)) + "\n")
