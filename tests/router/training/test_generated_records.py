"""Generated training records: compiler messages, labelled like the snippets that caused them."""

import shutil
from pathlib import Path

import pytest

from bench.classifier_corpus import PackageFiles, compiled_records, package_records, read_snippets

SNIPPETS = """//== debug compile
int main() { return total; }
//== build link
int f(); int main() { return f(); }
//== debug run
#include <cassert>
int main() { assert(1 == 2); }
//== debug compile
int main() {}
"""


def test_snippets_are_read_with_their_flags() -> None:
    first, second = read_snippets("//== a compile -O2 -g\nint x;\n//== b run\nint y;\n")
    assert (first.label, first.act, first.flags, first.code) == ("a", "compile", ("-O2", "-g"), "int x;\n")
    assert (second.label, second.flags) == ("b", ())


def test_compiler_messages_become_records() -> None:
    if shutil.which("g++") is None:
        pytest.skip("no g++ here")
    undeclared, undefined, failed = compiled_records(SNIPPETS, "g++")
    assert (undeclared.label, undeclared.source) == ("debug", "gcc")
    assert "not declared in this scope" in undeclared.text
    assert undefined.label == "build" and "undefined reference" in undefined.text
    assert "Assertion" in failed.text
    assert undeclared.text.startswith("main.cpp: In function")


def test_an_excerpt_carries_the_licence_of_its_source(tmp_path: Path) -> None:
    paragraphs = [f"paragraph {n} " + "of many words " * 8 for n in range(12)]
    (tmp_path / "book.txt").write_text("\n\n".join(paragraphs))
    shelf = PackageFiles("stl", "books", "BSD-3-Clause", tmp_path, ("book.txt", "missing.txt"))
    records = list(package_records([shelf]))
    assert len(records) == 2
    assert {(r.label, r.source, r.licence, r.is_prompt) for r in records} == {("stl", "books", "BSD-3-Clause", False)}
    assert all(record.text.startswith("paragraph") for record in records)
