"""Public C++ code with known verdicts, read from files that are not in the repository."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_OPENERS = ("if", "else", "for", "while")


def humaneval(folder: Path) -> list[dict[str, str]]:
    path = folder / "humaneval-x" / "humaneval_cpp.jsonl.gz"
    if not path.is_file():
        pytest.skip(f"no file {path}")
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def drrepair(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield broken programs, each with its fixed version."""
    path = folder / "drrepair" / "err-dev.1000.jsonl"
    if not path.is_file():
        pytest.skip(f"no file {path}")
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            yield program(row["code_lines"]), program(row["gold_code_lines"])


def program(lines: list[dict[str, Any]]) -> str:
    """Return the program's text, with the braces that the data file expresses by indentation."""
    kept = [line for line in lines if line["code"].strip() != "}"]
    out: list[str] = []
    for line, after in zip(kept, [*kept[1:], {"indent": 0}], strict=True):
        code, indent, next_indent = line["code"].strip(), line["indent"], after["indent"]
        if next_indent > indent:
            code += "" if code.endswith("{") else " {"
        elif code.split(" ")[0] in _OPENERS and not code.endswith((";", "}")):
            code += " {}"
        closes = indent - next_indent if next_indent < indent else 0
        if closes and after.get("code", "").strip().startswith("}"):
            closes -= 1
        out.append("  " * indent + code + " }" * closes)
    return "\n".join(out) + "\n"
