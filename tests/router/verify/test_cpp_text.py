"""C++ is split at declarations without losing text, in linear time."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.verify.cpp import parse_compile_error
from router.verify.cpp_source import (
    ANSWER_FILE,
    brace_balance,
    extract_cpp,
    extract_units,
    forms_joined,
    forms_of_unit,
    looks_like_cpp,
    mask_literals,
    split_pieces,
    strip_ellipses,
    strip_line_directives,
    wrap_statements,
)

STATEMENTS = ("int x = 1;", "x += 2;", "if (x) { x = 0; }", "std::sort(a, b);")
DEFINITIONS = ("struct S { int a; };", "int f(int a) { return a; }", "#include <vector>\n")
NOT_CODE = ('"}{;"', "'{'", "// }\n", "/* ; */", 'R"x(}})x"')
bits = st.sampled_from((*STATEMENTS, *DEFINITIONS, *NOT_CODE, *"{}();\n "))
code = st.lists(bits, max_size=12).map("\n".join) | st.text(max_size=200)


@given(code)
def test_masked_text_keeps_its_position(text: str) -> None:
    mask = mask_literals(text)
    assert len(mask) == len(text)
    assert all(after in (before, " ") for before, after in zip(text, mask, strict=True))


@given(code)
def test_no_piece_is_lost_or_duplicated(text: str) -> None:
    pieces = split_pieces(text)
    at = 0
    for piece in pieces:
        found = text.index(piece.text, at)
        assert mask_literals(text)[at:found].strip() == ""
        at = found + len(piece.text)
    assert mask_literals(text)[at:].strip() == ""
    whole = wrap_statements(pieces)
    assert all(piece.text in whole for piece in pieces)


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("#include <map>\nint main() { return 0; }", "directive definition"),
        ("int x;\nstd::cin >> x;\nfor (;;) { }", "declaration statement statement"),
        ("std::sort(v.begin(), v.end());", "statement"),
        ("Foo::Foo(int x) : x_(x) {}", "definition"),
        ("template <class T> T f(T t) { return t; }\nauto y = f(2);", "definition declaration"),
        ("struct A { int x; } a;\nenum class B { c };", "definition definition"),
        ("auto f = [](int x) { return x; };\nf(2);", "declaration statement"),
        ("do { x(); } while (y);", "statement"),
        ("main() { }", "definition"),
        ("a[3] = 4;\n*p = 5;\n++i;\np->x = 1;", "statement statement statement statement"),
        ("int a[] = {1, 2};\nstd::vector<int> v{1, 2};", "declaration declaration"),
        ("using namespace std;\nnamespace x { int y; }", "definition definition"),
        ("if (x) { y(); } else { z(); }", "statement statement"),
        ("try { x(); } catch (...) { }", "statement statement"),
    ],
)
def test_the_kind_of_a_piece(text: str, kinds: str) -> None:
    assert " ".join(piece.kind for piece in split_pieces(text)) == kinds


def test_errors_keep_the_answers_line_numbers() -> None:
    assert [piece.line for piece in split_pieces("int x;\n\nint y;\n  f(x);")] == [1, 1, 3]
    assert f'# 1 "{ANSWER_FILE}"\n\n\nint y;' in wrap_statements(split_pieces("int x;\n\nint y;\nf(x);"))


@pytest.mark.parametrize(
    "directive",
    [
        '#line 1 "x"',
        '  # 7 "x"',
        '%:line 1 "x"',
        '??=line 1 "x"',
        "#\\\nli\\\nne 9 NAME",
        '/* here */ # /* and */ line 5 "x"',
        '#line 3 \\\n "x"',
        '%\\\n:line 1 "x"',
    ],
)
def test_line_directives_are_removed(directive: str) -> None:
    code = f"int a;\n{directive}\nint b;\n"
    left = strip_line_directives(code)
    assert left.split() == ["int", "a;", "int", "b;"]
    assert left.count("\n") == code.count("\n")


@pytest.mark.parametrize(
    "code",
    ['auto s = R"(\n#line 1 "x"\n)";', "// \n#define line 1\n#pragma once\n", "/*\n# 1 x\n*/", 'f("#line 1");', "#\n"],
)
def test_lines_that_resemble_line_directives_are_kept(code: str) -> None:
    assert strip_line_directives(code) == code


@given(code)
def test_no_line_is_lost(text: str) -> None:
    assert strip_line_directives(text).count("\n") == text.count("\n")


REMARKS = (
    "returns -1 on bad input",
    "exit if the password is wrong",
    "broken pipes are ignored",
    "error handling",
    "Error",
)
HEADINGS = (
    "Avoid bad allocations:",
    "This handles wrong input:",
    "A check for broken links",
    "Replace the broken code with:",
)
WRONG_REMARKS = ("error: no semicolon", "compile error", "compile-time error", "does not compile", "ill-formed")
WRONG_HEADINGS = (
    "Wrong:",
    "**Bad:**",
    "### Incorrect",
    "This does not compile:",
    "A bad example:",
    "Don't do this:",
    "This won't compile",
    "The buggy version:",
)


def is_excused(remark: str = "", heading: str = "") -> bool:
    (unit,) = extract_units("", f"{heading}\n```cpp\nint f() {{ return 1 }} // {remark}\n```")
    return unit.is_expendable


def test_an_ordinary_remark_excuses_nothing() -> None:
    assert [remark for remark in REMARKS if is_excused(remark)] == []
    assert [heading for heading in HEADINGS if is_excused(heading=heading)] == []


def test_code_that_the_answer_calls_wrong_is_expendable() -> None:
    assert [remark for remark in WRONG_REMARKS if not is_excused(remark)] == []
    assert [heading for heading in WRONG_HEADINGS if not is_excused(heading=heading)] == []


def test_ellipses_are_removed() -> None:
    text = strip_ellipses("int f() { ... }\n  ...\ntry {} catch (...) {}\ntemplate <class... T> void g(T... t);\n…\n")
    assert text.split() == "int f() {} try {} catch (...) {} template <class... T> void g(T... t);".split()  # noqa: SIM905


@pytest.mark.parametrize("text", ["", "It depends.", "Use std::move here; it is cheap.", "1. First;\n2. Second;"])
def test_prose_is_not_code(text: str) -> None:
    assert not looks_like_cpp(text)
    assert extract_cpp(text) == []


def test_code_without_fences_is_recognised() -> None:
    assert looks_like_cpp("#include <iostream>\n\nint main() {\n  std::cout << 1;\n}\n")
    assert looks_like_cpp("for (auto& x : v) {\n  x *= 2;\n}")


def test_other_languages_are_not_compiled() -> None:
    answer = "```bash\ng++ a.cpp\n```\n```cmake\nproject(x)\n```\n```\n$ ./a.out\n42\n```\n```python\nprint(1)\n```\n"
    assert extract_cpp(answer) == []


def test_code_repeated_from_the_question_is_not_judged() -> None:
    question = "Why?\n```cpp\nint main() { return x }\n```"
    answer = "You wrote\n```cpp\nint main() {\n  return x\n}\n```\nbut mean\n```cpp\nint main() { return 0; }\n```"
    assert [unit.code for unit in extract_units(question, answer)] == ["int main() { return 0; }"]


def test_braces_in_text_and_comments_are_not_counted() -> None:
    assert brace_balance("void f() { '}'; \"}\"; // }\n") == 1


LONG = 60_000


BITS = (
    "\n",
    " ",
    "/",
    ">",
    "import\n",
    '"',
    'R"(',
    "{},",
    "{",
    "}",
    "int ",
    "#\\\n",
    "a<",
    "// error\n",
    "/* ",
    "(",
    "std::",
)
MORE_BITS = ("`", "```cpp\n", "... \n", "'", "main", "\\\n", "a ", ";\n", "x = 1;", "#\n", "// }\n", "> ", "~~~ ")


@pytest.mark.parametrize("bit", (*BITS, *MORE_BITS), ids=repr)
def test_reading_time_is_linear_for_any_text(bit: str) -> None:
    """A quadratic algorithm would take minutes."""
    text = bit * (LONG // len(bit)) + "`"
    started = time.process_time()
    for answer in (text, f"```cpp\n{text}\n```"):
        units = extract_units(text, answer)
        for unit in units:
            list(forms_of_unit(unit))
        list(forms_joined(units))
    parse_compile_error(f"{ANSWER_FILE}:1:1: error: {text}", text)
    assert time.process_time() - started < 10


def test_errors_in_other_files_are_not_quoted() -> None:
    said = f"In file included from {ANSWER_FILE}:1:\n/etc/passwd:1:1: error: 'root' does not name a type\n"
    complaint = parse_compile_error(said, "")
    assert complaint is not None and "root" not in complaint.text and "passwd" not in complaint.text


def test_paths_are_not_quoted() -> None:
    complaint = parse_compile_error(f"{ANSWER_FILE}:3:1: error: cannot find /home/me/secret/x.hpp\n", "")
    assert complaint is not None and complaint.text == "line 3: cannot find x.hpp"
