"""All commands as a tree of names, options and values."""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from octet.cli import whole_parser


@dataclass(frozen=True, slots=True)
class CommandNode:
    path: tuple[str, ...]
    """The words that select the command; empty for `octet` itself."""
    about: str
    options: tuple[tuple[str, ...], ...]
    """The flags of each option."""
    positionals: tuple[tuple[str, ...], ...]
    """The choices of each positional argument, empty if any word is valid."""
    commands: tuple["CommandNode", ...]
    does_something: bool
    """Whether the command runs without a subcommand."""

    @property
    def name(self) -> str:
        return " ".join(self.path)


@cache
def root() -> CommandNode:
    return _node(whole_parser())


@cache
def tree() -> tuple[CommandNode, ...]:
    return tuple(_walk(root()))


def _walk(node: CommandNode) -> Iterator[CommandNode]:
    yield node
    for each in node.commands:
        yield from _walk(each)


def _node(parser: argparse.ArgumentParser, path: tuple[str, ...] = (), about: str = "") -> CommandNode:
    below = next((each for each in parser._actions if isinstance(each, argparse._SubParsersAction)), None)
    rest = [each for each in parser._actions if each is not below]
    return CommandNode(
        path,
        about,
        tuple(tuple(each.option_strings) for each in rest if each.option_strings and each.help != argparse.SUPPRESS),
        tuple(tuple(str(choice) for choice in each.choices or ()) for each in rest if not each.option_strings),
        () if below is None else _subcommands(below, path),
        "run" in parser._defaults and not (below is not None and below.required),
    )


def _subcommands(action: Any, path: tuple[str, ...]) -> tuple[CommandNode, ...]:
    about = {each.dest: each.help or "" for each in action._choices_actions}
    return tuple(_node(parser, (*path, name), about.get(name, "")) for name, parser in action.choices.items())
