"""How long an answer may take, on a command line."""

import argparse

TIMEOUTS = ("timeout", "first_token_timeout")


def add_timeouts(parser: argparse.ArgumentParser, what: str = "the whole answer", *, is_awaited: bool = True) -> None:
    """`is_awaited`: somebody waits for the first token."""
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help=f"for {what}")
    if not is_awaited:
        parser.set_defaults(first_token_timeout=None)
        return
    parser.add_argument(
        "--first-token-timeout", type=float, metavar="SECONDS", help="for the first token: without it by then, it ends"
    )
