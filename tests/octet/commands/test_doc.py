"""docs/cli.md names every command, and what is said of each is what its help says."""

import re

from octet.chat.slash import COMMANDS
from octet.completion.tree import Command
from tests.octet.commands.test_json import WITHOUT
from tests.octet.commands.tree import tree
from tests.test_docs import ROOT

DOCUMENT = (ROOT / "docs" / "cli.md").read_text()


def row(command: Command) -> str:
    return f"| `octet {command.name}` | {command.about} |"


def rows_of(heading: str) -> list[str]:
    section = DOCUMENT.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return [line for line in section.splitlines() if line.startswith("| ")]


def test_every_command_is_in_the_table() -> None:
    assert rows_of("All commands")[1:] == [row(command) for command in tree() if command.path]


def test_every_slash_command_is_told() -> None:
    told = [f"| `{command.usage}` | {command.about} |" for command in COMMANDS.values()]
    assert [line for line in rows_of("octet chat") if line.startswith("| `/") and "sent with" not in line] == told


def test_every_exit_status_is_told() -> None:
    assert re.findall(r"^\| (\d+) \|", DOCUMENT, re.M) == ["0", "1", "2", "3", "4", "5", "130", "141"]


def test_who_has_no_json_is_told() -> None:
    told = DOCUMENT.partition("serve until they are told")[0].rpartition("\n\n")[2] + "`octet completion`"
    assert {name for name in WITHOUT if f"`octet {name}`" in told} == set(WITHOUT)
