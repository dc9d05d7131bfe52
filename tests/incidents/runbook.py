"""Reads docs/runbook.md: its sections and their commands."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FILE = Path(__file__).parents[2] / "docs" / "runbook.md"
DO = "**What to do**"
_FENCE = re.compile(r"^ *```console\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_ALERT = re.compile(r"`(Octet[A-Za-z]+)`")


@dataclass(frozen=True)
class Section:
    title: str
    text: str

    @property
    def anchor(self) -> str:
        """The section's anchor, as Markdown renderers write it."""
        return self.title.lower().replace(" ", "-")

    @property
    def commands(self) -> list[str]:
        """Every command in the section's console blocks, without the prompt."""
        return _commands(self.text)

    @property
    def looks(self) -> list[str]:
        """The commands that precede the section's actions. They change nothing."""
        return _commands(self.text.partition(DO)[0])

    @property
    def alerts(self) -> list[str]:
        return _ALERT.findall(self.text)

    def command(self, beginning: str) -> str:
        (found,) = {line for line in self.commands if line.startswith(f"octet {beginning}")}
        return found


def _commands(text: str) -> list[str]:
    lines = [line for block in _FENCE.findall(text) for line in map(str.strip, block.splitlines())]
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


@cache
def sections() -> dict[str, Section]:
    """Return the sections by anchor."""
    _, *parts = re.split(r"^## ", FILE.read_text(), flags=re.MULTILINE)
    found = (Section(*part.split("\n", 1)) for part in parts)
    return {section.anchor: section for section in found}
