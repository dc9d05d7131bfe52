"""The `octet` command."""

import argparse
import sys
from collections.abc import Sequence

from octet import __version__
from octet.generate import add_generate_command


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="octet", description="Serve many small specialist models as one product.")
    parser.add_argument("--version", action="version", version=f"octet {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    from bench.cli import add_bench_command  # serving and measuring reach into every room; the SDK never loads them
    from specialist.cli import add_specialist_command

    add_specialist_command(commands)
    add_generate_command(commands)
    add_bench_command(commands)
    arguments = parser.parse_args(argv)
    return int(arguments.run(arguments))


if __name__ == "__main__":
    sys.exit(main())
