"""The commands as a tree: names, options, and what each takes."""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FILES = ("FILE", "PATH", "DIR")
"""What a value that is a file is called in the help, where its type does not tell."""


@dataclass(frozen=True, slots=True)
class Value:
    """What may be written in one place."""

    choices: tuple[str, ...] = ()
    """Empty: anything."""
    is_file: bool = False
    repeats: bool = False


@dataclass(frozen=True, slots=True)
class Option:
    flags: tuple[str, ...]
    value: Value | None
    """None: it takes none."""
    needs_value: bool
    about: str


@dataclass(frozen=True, slots=True)
class Command:
    path: tuple[str, ...]
    """Empty for `octet` itself."""
    about: str
    options: tuple[Option, ...]
    positionals: tuple[Value, ...]
    commands: tuple["Command", ...]
    does_something: bool
    """By itself, without one of the words below it."""

    @property
    def name(self) -> str:
        return " ".join(self.path)


def tree_of(parser: argparse.ArgumentParser, path: tuple[str, ...] = (), about: str = "") -> Command:
    below = next((each for each in parser._actions if isinstance(each, argparse._SubParsersAction)), None)
    rest = [each for each in parser._actions if each is not below]
    return Command(
        path,
        about,
        tuple(_option(each) for each in rest if each.option_strings and each.help != argparse.SUPPRESS),
        tuple(_value(each) for each in rest if not each.option_strings),
        () if below is None else _below(below, path),
        "run" in parser._defaults and not (below is not None and below.required),
    )


def every(command: Command) -> Iterator[Command]:
    """Itself, and all below it, in the order of the help."""
    yield command
    for each in command.commands:
        yield from every(each)


def _below(action: Any, path: tuple[str, ...]) -> tuple[Command, ...]:
    about = {each.dest: each.help or "" for each in action._choices_actions}
    return tuple(tree_of(parser, (*path, name), about.get(name, "")) for name, parser in action.choices.items())


def _option(action: argparse.Action) -> Option:
    value = None if action.nargs == 0 else _value(action)
    return Option(tuple(action.option_strings), value, value is not None and action.nargs != "?", _about(action))


def _about(action: argparse.Action) -> str:
    """What stands before the first remark."""
    text = (action.help or "").split(";")[0].split("(")[0]
    return "" if "%" in text else text.strip()


def _value(action: argparse.Action) -> Value:
    called = action.metavar if isinstance(action.metavar, str) else ""
    is_file = action.type is Path or called in _FILES
    choices = () if action.choices is None else tuple(str(each) for each in action.choices)
    return Value(choices, is_file, action.nargs in ("*", "+"))
