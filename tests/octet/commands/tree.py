"""Every command there is."""

from functools import cache

from octet.cli import whole_parser
from octet.completion.tree import Command, every, tree_of


@cache
def root() -> Command:
    return tree_of(whole_parser())


@cache
def tree() -> tuple[Command, ...]:
    return tuple(every(root()))
