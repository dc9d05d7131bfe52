"""The commands for callers, without the other `octet` commands."""

import argparse
import sys

from octet.cli.receipts import add_receipt_command
from octet.cli.requests import add_cancel_command, add_generate_command, add_route_command


def octet(*arguments: str) -> int:
    parser = argparse.ArgumentParser(prog="octet")
    commands = parser.add_subparsers(required=True)
    for add in (add_generate_command, add_route_command, add_receipt_command, add_cancel_command):
        add(commands)
    parsed = parser.parse_args(arguments)
    return int(parsed.run(parsed))


if __name__ == "__main__":
    sys.exit(octet(*sys.argv[1:]))
