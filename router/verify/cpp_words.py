"""What a compiler says in an answer's own words: they are no evidence of anything."""

import re

from router.verify.cpp_text import NOT_CODE, masked

_SPLICE = re.compile(r"\\[ \t]*\n")
_HASH = r"^[ \t\v\f]*(?:\#|%:)[ \t\v\f]*"
_ERROR = re.compile(rf"{_HASH}error\b(?P<words>[^\n]*)", re.MULTILINE)
_PRAGMA = re.compile(r"\b(?:GCC|clang)\s+error\b|\b_Pragma\b")
"""No honest answer needs it, and what it says may be put together in many ways."""
_INCLUDE = re.compile(
    rf"{_HASH}(?:include(?:_next)?|import)\b[ \t\v\f]*(?:<(?P<angled>[^>\n]*)>|\"(?P<quoted>[^\"\n]*)\"|(?P<macro>\w))",
    re.MULTILINE,
)
_OF_STD = re.compile(r"\bstd\s*::\s*(\w+)")
_ATTRIBUTE = re.compile(r"note: from 'diagnose_if' attribute on ")


def is_own_words(message: str, said: str, code: str) -> bool:
    """Whether the message, an error that is not fatal, is one that the code has the compiler say, word for word. Where
    the compiler begins with words of its own, as for an assertion, nobody takes the rest for its own complaint."""
    if _ATTRIBUTE.search(said):
        return True
    bare, shown = _without_comments(code), _plain(message)
    return _PRAGMA.search(bare) is not None or any(
        _plain(each["words"]).startswith(shown) for each in _ERROR.finditer(bare)
    )


def includes(name: str, code: str) -> bool:
    """Whether the code asks for this header, or for one whose name only the compiler can tell."""
    found = _INCLUDE.finditer(_without_comments(code))
    return any(each["macro"] or name in (each["angled"], each["quoted"]) for each in found)


def used_of_std(names: frozenset[str], code: str) -> frozenset[str]:
    """Those of the names that the code itself takes from `std`: not its comments and literals."""
    return names & frozenset(_OF_STD.findall(masked(_SPLICE.sub("", code))))


def _without_comments(code: str) -> str:
    """As the compiler reads directives: a comment is a blank, and a line may go on in the next."""
    return NOT_CODE.sub(lambda found: " " if found[0].startswith("/") else found[0], _SPLICE.sub("", code))


def _plain(words: str) -> str:
    return " ".join(words.split())
