"""The caller's commands, without the rest of `octet`."""

import argparse
import sys

from octet.cancel import add_cancel_command
from octet.generate import add_generate_command
from octet.receipt import add_receipt_command
from octet.route import add_route_command


def octet(*arguments: str) -> int:
    parser = argparse.ArgumentParser(prog="octet")
    commands = parser.add_subparsers(required=True)
    for add in (add_generate_command, add_route_command, add_receipt_command, add_cancel_command):
        add(commands)
    parsed = parser.parse_args(arguments)
    return int(parsed.run(parsed))


if __name__ == "__main__":
    sys.exit(octet(*sys.argv[1:]))
