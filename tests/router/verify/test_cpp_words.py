# ruff: noqa: E501
"""Verification is skipped only if a header, library or name is missing, never because of an error text that the answer
contains."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.verify.cpp import includes_header, is_from_answer, parse_compile_error, used_std_names
from router.verify.cpp_source import ANSWER_FILE, CppUnit
from tests.router.verify.conftest import all_judged, make_cpp

MISSING_HEADER = "'foo/bar.h' file not found"
NO_MEMBER = "no member named 'println' in namespace 'std'"
UNDECLARED = "use of undeclared identifier 'widget'"
BROKEN = "int main() { return y; }"

OWN_WORDS = {
    "an assertion about a standard": f'static_assert(false, "C++23");\n{BROKEN}',
    "an assertion that lacks a header": 'static_assert(false, "foo/bar.h: No such file or directory");\nint main() {}',
    "an error that lacks a header": "#error foo/bar.h file not found\nint main() {}",
    "an error that quotes it": f"#error {MISSING_HEADER}\nint main() {{}}",
    "an error and a header that nobody reads": f'#if 0\n#include "foo/bar.h"\n#endif\n#error {MISSING_HEADER}\nint main() {{}}',
    "an error about a standard": "#error only available with C++23\nint main() {}",
    "an error about a name of std": f"#if 0\nvoid f() {{ std::println(); }}\n#endif\n#error {NO_MEMBER}\nint main() {{}}",
    "an error over two lines": f"#er\\\nror {MISSING_HEADER}\nint main() {{}}",
    "an error behind a comment": f"# /*\n*/ error /* */ {UNDECLARED}\nstd::vector<int> widget;\nwidget.clear();",
    "an error in a fragment": f"#error {UNDECLARED}\nstd::vector<int> widget;\nwidget.clear();",
    "an error as g++ has it": "#error 'widget' was not declared in this scope\nstd::vector<int> widget;\nwidget.clear();",
    "a pragma": '#pragma GCC error "foo/bar.h: No such file or directory"\nint main() {}',
    "a pragma in a fragment": "#pragma GCC error \"'widget' was not declared in this scope\"\nstd::vector<int> widget;\nwidget.clear();",
    "a pragma as an operator": f'_Pragma("GCC error \\"{UNDECLARED}\\"")\nstd::vector<int> widget;\nwidget.clear();',
    "a comment about a standard": f"// std::print and std::expected are C++23\n{BROKEN}",
    "a literal about a standard": f'const char* note = "std::println of C++23";\n{BROKEN}',
    "a name of std that is not the trouble": f"#define UNUSED std::expected\n{BROKEN}",
    "a module in a comment": f"/*\nimport std;\n*/\n{BROKEN}",
    "a module in a literal": f'const char* note = R"(\nimport std;\n)";\n{BROKEN}',
    "a header in a comment": f"// #include <foo/bar.h>\n{BROKEN}",
}
OF_CLANG = {
    "an attribute": f'void f(int) __attribute__((diagnose_if(true, "{UNDECLARED}", "error")));\nstd::vector<int> widget;\nwidget.clear();\nf(1);',
    "an attribute about a name of std": f'void f(int) __attribute__((diagnose_if(true, "{NO_MEMBER}", "error")));\nint main() {{ f(1); }}',
    "a warning that is made fatal": f'#pragma clang diagnostic fatal "-W#warnings"\n#warning {MISSING_HEADER}\n{BROKEN}',
}
REALLY_MISSING = {
    "a library": "#include <fmt/core.h>\nint main() { fmt::print(1); }",
    "a library behind a comment": "#include /* of old */ <boost/asio.hpp> // C++23\nint main() {}",
    "a library by a macro": "#define LIBRARY <boost/asio.hpp>\n#include LIBRARY\nint main() {}",
    "a library beside an error that nobody reads": '#ifdef NEVER\n#error foo\n#endif\n#include "fmt/core.h"\nint main() {}',
    "a header of a later standard": "#include <inplace_vector>\nint main() {}",
    "a name of a later standard": "#include <map>\nint main() { std::flat_map<int, int> m; }",
    "a name behind a macro": '#define SAY(x) std::println(x)\nint main() { SAY("x"); }',
    "a name after a comment": 'int main() { std::println("x"); } // C++23',
}  # fmt: skip


def judged_as(driver: str, answers: dict[str, str], outcome: str) -> None:
    verdicts = all_judged(make_cpp(driver), [f"```cpp\n{code}\n```" for code in answers.values()])
    assert {name: v for name, v in zip(answers, verdicts, strict=True) if v.outcome != outcome} == {}


@pytest.mark.slow
@pytest.mark.parametrize("driver", ["clang++", "g++"])
def test_no_answer_is_skipped_for_its_own_error_texts(driver: str) -> None:
    judged_as(driver, OWN_WORDS, "failed")


def test_common_error_texts_are_not_skipped_with_either_compiler() -> None:
    some = ("a pragma in a fragment", "an error as g++ has it")
    for driver in ("clang++", "g++"):
        judged_as(driver, {name: OWN_WORDS[name] for name in some}, "failed")


def test_no_answer_is_skipped_for_texts_of_its_attributes() -> None:
    judged_as("clang++", OF_CLANG, "failed")


@pytest.mark.slow
@pytest.mark.parametrize("driver", ["clang++", "g++"])
def test_an_answer_with_a_missing_header_is_skipped(driver: str) -> None:
    judged_as(driver, REALLY_MISSING, "skipped")


def test_an_answer_with_a_missing_library_or_newer_name_is_skipped() -> None:
    some = ("a library", "a name of a later standard")
    judged_as("clang++", {name: REALLY_MISSING[name] for name in some}, "skipped")


words = st.sampled_from([MISSING_HEADER, NO_MEMBER, UNDECLARED, "C++23", "foo/bar.h: No such file or directory"]) | st.text(
    st.characters(codec="ascii", exclude_categories=["Cc"], exclude_characters="\\/\"'"), min_size=1, max_size=40
)  # fmt: skip
gaps = st.sampled_from([" ", "  ", "\t", " /* a\nb */ ", "\\\n "])


@given(words=words, gap=gaps, hash_gap=gaps, used=st.booleans())
def test_an_error_directive_never_excuses_an_answer(words: str, gap: str, hash_gap: str, used: bool) -> None:
    code = f"{'std::println();' if used else ''}\n#{hash_gap}error{gap}{words}\n"
    shown = " ".join(words.split())
    for said in (f"{ANSWER_FILE}:2:2: error: {shown}\n", f"{ANSWER_FILE}:2:2: error: #error {shown}\n"):
        complaint = parse_compile_error(said, code)
        assert complaint is not None and complaint.kind in ("wrong", "clash"), (
            "an error of either kind must fail the answer"
        )


@given(words=words, code=st.sampled_from(["", "#include <vector>\n", "int main() {}"]))
def test_a_header_is_missing_only_if_it_is_included_and_the_error_is_fatal(words: str, code: str) -> None:
    for said in (f"{ANSWER_FILE}:1:1: fatal error: {words}\n", f"{ANSWER_FILE}:1:1: error: {MISSING_HEADER}\n"):
        complaint = parse_compile_error(said, code)
        assert complaint is not None and complaint.kind != "header"
    for message in (MISSING_HEADER, "foo/bar.h: No such file or directory"):
        complaint = parse_compile_error(f"{ANSWER_FILE}:1:1: fatal error: {message}\n", f"{code}\n#include <foo/bar.h>")
        assert complaint is not None and (complaint.kind, complaint.name) == ("header", "foo/bar.h")


@pytest.mark.parametrize(
    ("message", "code", "fault"),
    [
        (NO_MEMBER, "std::println();", "newer"),
        ("'println' is not a member of 'std'; did you mean 'printf'?", "std::println();", "newer"),
        ("'expected' in namespace 'std' does not name a template type", "std::expected<int, int> f();", "newer"),
        ("too many arguments to function call, expected 0, have 1", "return std::unexpected(3);", "newer"),
        (NO_MEMBER, "std::print();", "wrong"),
        ("expected ';' after expression", "std::expected<int, int> f()", "wrong"),
        ("'y' was not declared in this scope", "std::println(y);", "undeclared"),
        ("could not convert '1' to 'std::expected<A, B>'", "std::expected<A, B> f() { return 1; }", "wrong"),
        ('static_assert failed "println"', "std::println();", "wrong"),
    ],
)
def test_a_later_standard_excuses_only_its_new_names(message: str, code: str, fault: str) -> None:
    complaint = parse_compile_error(f"{ANSWER_FILE}:1:1: error: {message}\n", code)
    assert complaint is not None and complaint.kind == fault


def test_a_later_standard_is_tried_where_it_is_mentioned() -> None:
    def hints(message: str, code: str) -> bool:
        complaint = parse_compile_error(f"{ANSWER_FILE}:1:1: error: {message}\n", code)
        assert complaint is not None
        return complaint.hints_at_newer

    assert hints("only available with '-std=c++23'", "int x;") and hints("expected ';'", "std::expected<int, int> f()")
    assert not hints("expected ';'", "int x // std::print")


def test_headers_and_names_that_an_answer_uses() -> None:
    code = (
        '# include <a/b.h>\n%:include "c.h"\n/*\n#include <d.h>\n*/ const char* e = "std::print"; std :: println();\n'
    )
    assert [includes_header(name, code) for name in ("a/b.h", "c.h", "d.h", "b.h")] == [True, True, False, False]
    assert includes_header("anything.h", "#define H <anything.h>\n#include H\n")
    assert used_std_names(frozenset({"print", "println"}), code) == {"println"}
    assert not is_from_answer("expected ';'", "", code)
    assert not CppUnit("/*\nimport std;\n*/").needs_modules and CppUnit("import std;").needs_modules
