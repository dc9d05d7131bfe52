"""Classifies a compiler's error output. Error texts quote only the answer, never another file."""

import re
from dataclasses import dataclass
from typing import Literal

from router.verify.cpp_compiler import NEWER_HEADERS
from router.verify.cpp_source import ANSWER_FILE, NOT_CODE, mask_literals

ErrorKind = Literal["wrong", "undeclared", "header", "clash", "newer"]
"""wrong: the answer's own error. undeclared: a name that may be defined elsewhere. header: a header that is not
installed. clash: perhaps with a header that the answer did not ask for. newer: a name of a later standard."""

_LINE_SPLICE = re.compile(r"\\[ \t]*\n")
_HASH = r"^[ \t\v\f]*(?:\#|%:)[ \t\v\f]*"
_ERROR_DIRECTIVE = re.compile(rf"{_HASH}error\b(?P<words>[^\n]*)", re.MULTILINE)
_PRAGMA = re.compile(r"\b(?:GCC|clang)\s+error\b|\b_Pragma\b")
"""Only an attempt to forge compiler output needs these, and their message can be assembled in many ways."""
_INCLUDE = re.compile(
    rf"{_HASH}(?:include(?:_next)?|import)\b[ \t\v\f]*(?:<(?P<angled>[^>\n]*)>|\"(?P<quoted>[^\"\n]*)\"|(?P<macro>\w))",
    re.MULTILINE,
)
_OF_STD = re.compile(r"\bstd\s*::\s*(\w+)")
_ATTRIBUTE = re.compile(r"note: from 'diagnose_if' attribute on ")
_ERROR_LINE = re.compile(
    r"^(?P<file>[^:\n]*):(?:(?P<line>\d+):)?(?:\d+:)? (?P<fatal>fatal )?error: (?P<message>.*)$", re.MULTILINE
)
_PUBLIC_NAME = "<answer>"
_LONGEST_MESSAGE = 1000  # characters; the rest of a message is ignored
_IN_ANOTHER = "an error in a file that it includes"
_NO_HEADER = re.compile(
    r"(?P<gcc>[^:'\n]+): No such file or directory|'(?P<clang>[^'\n]+)' file not found(?:, did .*)?"
)
_UNDECLARED = re.compile(
    r"^(?:use of undeclared identifier|unknown type name|no template named|use of undeclared) '(?P<clang>[^']+)'"
    r"|^'(?P<gcc>[^']+)' (?:was not declared|does not name a (?:template )?type|has not been declared"
    r"|is not a (?:template|class)|is not a class)|^invalid use of '(?P<this>this)'"
)
_CLASH = re.compile(r"ambiguous|redeclar|redefin|conflict|different kind|previous|overload")
_NEWER = re.compile(r"C\+\+2[3b]|c\+\+2[3b]|[Cc]\+\+26")
_NEWER_NAMES = frozenset(
    ("expected", "unexpected", "print", "println", "generator", "mdspan", "flat_map", "flat_set", "byteswap")
)
_UNEXPECTED = "unexpected"  # C++98 has a function of this name, which the code would then call with wrong arguments
_NOT_IN_STD = re.compile(
    r"(?:no (?:member|template|type|template type) named )?'(?:std::)?(?P<name>\w+)' "
    r"(?:in namespace 'std'|is not a member of 'std'|has not been declared)"
)
_PATH = re.compile(r"(?:/[\w.+@~-]+)+/")
_PRECOMPILED = re.compile(r"^(?:fatal )?error: .*(?:precompiled|PCH)", re.MULTILINE)
_ASKED_FROM = re.compile(
    rf"^{ANSWER_FILE}:(?P<line>\d+):\d+: +(?:required from here|note: in instantiation)", re.MULTILINE
)
_MEMORY = re.compile(r"out of memory|memory exhausted|bad_alloc|cannot allocate", re.IGNORECASE)
_HEADER_PATH = re.compile(r"[\w./+-]+")
_STANDARD_HEADER = re.compile(r"[a-z0-9_]+")


@dataclass(frozen=True, slots=True)
class CompileError:
    kind: ErrorKind
    text: str
    name: str = ""  # the undeclared name, or the header
    hints_at_newer: bool = False  # whether a later standard may accept the code

    @property
    def is_of_context(self) -> bool:
        return self.kind in ("undeclared", "header")


def parse_compile_error(output: str, code: str) -> CompileError | None:
    """Return the first error; None if the output contains none."""
    found = _ERROR_LINE.search(output)
    if found is None:
        return None
    if found["file"] != ANSWER_FILE:
        asked = _ASKED_FROM.search(output)
        where = f"line {asked['line']}: its use of a header causes an error in the header" if asked else _IN_ANOTHER
        return CompileError("clash" if _CLASH.search(output) else "wrong", where)
    message = found["message"][:_LONGEST_MESSAGE].replace(ANSWER_FILE, _PUBLIC_NAME)
    text = _PATH.sub("", f"line {found['line']}: {message}" if found["line"] else message)
    if found["fatal"]:
        header = _NO_HEADER.fullmatch(message)
        name = header[header.lastgroup or 0] if header else ""
        return CompileError(_header_error_kind(name) if includes_header(name, code) else "wrong", text, name)
    kind, name = _error_kind(message, output, code)
    hints_at_newer = _NEWER.search(output) is not None or bool(used_std_names(_NEWER_NAMES, code))
    return CompileError(kind, text, name, hints_at_newer)


def _error_kind(message: str, output: str, code: str) -> tuple[ErrorKind, str]:
    """Return the kind of error, and the undeclared name."""
    if is_from_answer(message, output, code):
        return "wrong", ""
    used = used_std_names(_NEWER_NAMES, code)
    missing = _NOT_IN_STD.match(message)
    if missing["name"] in used if missing else _UNEXPECTED in used and message.startswith("too many arguments"):
        return "newer", ""
    undeclared = _UNDECLARED.match(message)
    if undeclared is not None:
        return "undeclared", undeclared["clang"] or undeclared["gcc"] or undeclared["this"]
    return ("clash" if _CLASH.search(output) else "wrong"), ""


def _header_error_kind(name: str) -> ErrorKind:
    """A library may be missing here, but a path on this machine or an invented standard header is a real error."""
    if name.startswith("/") or ".." in name or not _HEADER_PATH.fullmatch(name):
        return "wrong"
    return "header" if name in NEWER_HEADERS or not _STANDARD_HEADER.fullmatch(name) else "wrong"


def mentions_precompiled(output: str) -> bool:
    """Whether the compiler may have rejected the precompiled headers; the answer itself can imitate such output."""
    return _PRECOMPILED.search(output) is not None


def mentions_memory(output: str) -> bool:
    return _MEMORY.search(output) is not None


def is_from_answer(message: str, output: str, code: str) -> bool:
    """Whether a nonfatal error only repeats text of the code (`#error`), which can imitate any other error."""
    if _ATTRIBUTE.search(output):
        return True
    bare, shown = _without_comments(code), _normalized(message)
    return _PRAGMA.search(bare) is not None or any(
        _normalized(each["words"]).startswith(shown) for each in _ERROR_DIRECTIVE.finditer(bare)
    )


def includes_header(name: str, code: str) -> bool:
    """Whether the code includes this header, or a header named by a macro."""
    found = _INCLUDE.finditer(_without_comments(code))
    return any(each["macro"] or name in (each["angled"], each["quoted"]) for each in found)


def used_std_names(names: frozenset[str], code: str) -> frozenset[str]:
    """Return the names that the code uses from `std`, outside comments and literals."""
    return names & frozenset(_OF_STD.findall(mask_literals(_LINE_SPLICE.sub("", code))))


def _without_comments(code: str) -> str:
    """Return the code as the compiler reads directives: comments become spaces, continued lines are joined."""
    return NOT_CODE.sub(lambda found: " " if found[0].startswith("/") else found[0], _LINE_SPLICE.sub("", code))


def _normalized(words: str) -> str:
    return " ".join(words.split())
