"""How an answer is drawn, as options of a command."""

import argparse

_INT64 = 2**63
NUMBERS = ("temperature", "top_p", "min_p", "typical_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
_INTEGERS = ("max_tokens", "min_tokens", "top_k", "seed", "priority", "context_size", "max_experts")


def add_sampling(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how the answer is drawn")
    group.add_argument("--max-tokens", type=int, metavar="N")
    group.add_argument("--min-tokens", type=int, metavar="N")
    for name in NUMBERS:
        group.add_argument(f"--{name.replace('_', '-')}", type=float, metavar="X")
    group.add_argument("--top-k", type=int, metavar="N")
    group.add_argument("--seed", type=int, metavar="N")
    group.add_argument("--stop", action="append", default=[], metavar="TEXT", help="repeatable")
    group.add_argument("--ignore-eos", action="store_true", help="go on to --max-tokens")
    group.add_argument("--context-size", type=int, metavar="N", help="tokens, prompt and answer together")


def check_integers(arguments: argparse.Namespace) -> None:
    """Raises ValueError for what no field can carry, and names it; the server checks the rest."""
    for name in _INTEGERS:
        value = getattr(arguments, name)
        if value is not None and not -_INT64 <= value < _INT64:
            raise ValueError(f"--{name.replace('_', '-')} must be in [{-_INT64}, {_INT64 - 1}], got {value!s:.40}")
