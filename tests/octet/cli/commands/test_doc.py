"""docs/cli.md lists every command with its help text."""

import re

from octet.cli.chat import SLASH_COMMANDS
from tests.octet.cli.commands.test_json import WITHOUT
from tests.octet.cli.commands.tree import CommandNode, tree
from tests.test_docs import ROOT

DOCUMENT = (ROOT / "docs" / "cli.md").read_text()


def row(command: CommandNode) -> str:
    return f"- `octet {command.name}`: {command.about}"


def rows_of(heading: str) -> list[str]:
    section = DOCUMENT.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return [line for line in section.splitlines() if line.startswith(("| ", "- "))]


def test_every_command_is_in_the_table() -> None:
    assert rows_of("All commands") == [row(command) for command in tree() if command.path]


def test_every_slash_command_is_documented() -> None:
    documented = [f"| `{command.usage}` | {command.about} |" for command in SLASH_COMMANDS.values()]
    assert [line for line in rows_of("octet chat") if line.startswith("| `/") and "sent with" not in line] == documented


def test_every_exit_status_is_documented() -> None:
    assert re.findall(r"^\| (\d+) \|", DOCUMENT, re.M) == ["0", "1", "2", "3", "4", "5", "130", "141"]


def test_commands_without_json_are_documented() -> None:
    documented = DOCUMENT.partition("serve until they are stopped")[0].rpartition("\n\n")[2] + "`octet completion`"
    assert {name for name in WITHOUT if f"`octet {name}`" in documented} == set(WITHOUT)
