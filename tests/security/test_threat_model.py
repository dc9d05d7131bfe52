"""Every test that the threat model names exists."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


def missing(text: str, root: Path) -> list[str]:
    """Return the tests that the text names but that do not exist."""
    return [f"{file}::{test}" for file, test in NAMED.findall(text) if not _is_there(root / file, test)]


def test_every_named_test_exists() -> None:
    text = (ROOT / "docs" / "threat-model.md").read_text()
    assert len(NAMED.findall(text)) > 30
    assert missing(text, ROOT) == []


def test_every_defence_names_its_test() -> None:
    text = (ROOT / "docs" / "threat-model.md").read_text()
    defended = text.partition("## What is defended")[2].partition("## What is not defended")[0]
    rows = [line for line in defended.splitlines() if line.startswith("| ") and not line.startswith("| threat |")]
    assert len(rows) > 20
    assert [row for row in rows if not NAMED.search(row)] == []


def test_missing_test_is_detected(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text("def test_here(): ...\nasync def test_there(): ...\n")
    named = "`tests/test_a.py::test_here` `tests/test_a.py::test_there` `tests/test_a.py`"
    assert missing(named, tmp_path) == []
    assert missing("`tests/test_a.py::test_gone` `tests/test_b.py`", tmp_path) == [
        "tests/test_a.py::test_gone",
        "tests/test_b.py::",
    ]


def _is_there(path: Path, test: str) -> bool:
    if not path.is_file():
        return False
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    defined = {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, functions)}
    return not test or test in defined
