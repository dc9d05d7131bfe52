"""What a rule saw, and where."""

from dataclasses import dataclass

from router.rules.page import Page

_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Finding:
    kind: str
    """What the text is, for people: "linker output"."""
    mark: str
    """What gave it away."""
    line: int
    """Of the mark, from 1."""

    def __str__(self) -> str:
        return f"{self.kind} ({self.mark}) on line {self.line}"


def found(kind: str, mark: str, page: Page, at: int) -> Finding:
    shown = " ".join(mark.split())
    return Finding(kind, shown[:_SHOWN], page.text.count("\n", 0, at) + 1)
