"""What a value on the command line must be, in the same words for every command."""

import argparse
from math import inf

MAX_PORT = 65535


def port(text: str) -> int:
    if not text.isdecimal() or int(text) > MAX_PORT:
        raise argparse.ArgumentTypeError(f"a port is a number in [0, {MAX_PORT}], got {text!r}")
    return int(text)


def seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < inf:
        raise argparse.ArgumentTypeError(f"a positive number of seconds is needed, got {text!r}")
    return value
