"""Fenced code is found in every notation."""

from hypothesis import given
from hypothesis import strategies as st

from router.verify.fences import extract_blocks

lines = st.lists(
    st.text(st.characters(blacklist_characters="`~\n\r", blacklist_categories=["Cs"]), max_size=30), max_size=8
)
fences = st.sampled_from(["```", "````", "~~~", "~~~~~"])
languages = st.sampled_from(["", "cpp", "c++", "python", "text"])
indents = st.sampled_from(["", "  ", "   ", "\t", "> "])


def found(text: str) -> list[tuple[str, str]]:
    return [(block.language, block.code) for block in extract_blocks(text)]


@given(st.lists(st.tuples(fences, languages, lines, indents), max_size=4), st.booleans())
def test_every_block_is_returned_unchanged(blocks: list[tuple[str, str, list[str], str]], is_closed: bool) -> None:
    text, expected = "Here it is:\n", []
    for number, (fence, language, code, indent) in enumerate(blocks):
        is_last = number == len(blocks) - 1
        inner = "".join(f"{indent}{line}\n" for line in code)
        text += f"{indent}{fence}{language}\n{inner}"
        if is_closed or not is_last:
            text += f"{indent}{fence}\nprose\n"
            expected.append((language, "\n".join(code)))
        else:
            expected.append((language, "\n".join([*code, ""])))
    assert found(text) == expected


@given(st.text(max_size=300))
def test_any_text_is_parsed_without_errors(text: str) -> None:
    assert all(
        "\n```\n" not in f"\n{block.code}\n" or block.language in ("md", "markdown") or "~" in text
        for block in extract_blocks(text)
    )


def test_a_longer_fence_may_contain_shorter_fences() -> None:
    assert found("````cpp\n// ```\nint x;\n````") == [("cpp", "// ```\nint x;")]


def test_fences_inside_a_fenced_document_are_found() -> None:
    text = "```markdown\n# Title\n```cpp\nint x;\n```\nand\n```bash\nls\n```\n```\n"
    assert found(text) == [("cpp", "int x;"), ("bash", "ls")]


def test_an_opening_fence_ends_an_unclosed_block() -> None:
    assert found("```cpp\nint x;\n```cpp\nint y;\n```") == [("cpp", "int x;"), ("cpp", "int y;")]


def test_an_info_string_begins_with_the_language() -> None:
    for info in ("cpp", "C++", "{.cpp}", "cpp:main.cpp", 'cpp title="a.cpp"', "cpp, linenos"):
        assert extract_blocks(f"```{info}\nint x;\n```")[0].language in ("cpp", "c++"), info


def test_other_line_endings_are_understood() -> None:
    assert found("```cpp\r\nint x;\r\nint y;\r\n```\r\n") == [("cpp", "int x;\nint y;")]


def test_the_line_before_a_block_is_its_heading() -> None:
    assert extract_blocks("This does not compile:\n\n```cpp\nint x = ;\n```")[0].heading == "This does not compile:"
