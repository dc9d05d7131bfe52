"""What a compiler's output says about the answer, and no more: nothing of the files that it read."""

import re
from dataclasses import dataclass
from typing import Literal

from router.verify.cpp_text import OWN
from router.verify.cpp_words import includes, is_own_words, used_of_std
from router.verify.preamble import NEWER

Fault = Literal["wrong", "undeclared", "header", "clash", "newer"]
"""wrong: and that is it. undeclared: a name that may come from elsewhere. header: one that is not here. clash: with
something of the preamble, perhaps. newer: a name of a later standard."""

_ERROR = re.compile(
    r"^(?P<file>[^:\n]*):(?:(?P<line>\d+):)?(?:\d+:)? (?P<fatal>fatal )?error: (?P<message>.*)$", re.MULTILINE
)
_SHOWN = "<answer>"
_LONGEST_MESSAGE = 1000
"""Characters that are looked at."""
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
_UNEXPECTED = "unexpected"
"""A function of old has the same name, and it is called wrong then."""
_NOT_IN_STD = re.compile(
    r"(?:no (?:member|template|type|template type) named )?'(?:std::)?(?P<name>\w+)' "
    r"(?:in namespace 'std'|is not a member of 'std'|has not been declared)"
)
_PATH = re.compile(r"(?:/[\w.+@~-]+)+/")
_PRECOMPILED = re.compile(r"^(?:fatal )?error: .*(?:precompiled|PCH)", re.MULTILINE)
_ASKED_FROM = re.compile(rf"^{OWN}:(?P<line>\d+):\d+: +(?:required from here|note: in instantiation)", re.MULTILINE)
_MEMORY = re.compile(r"out of memory|memory exhausted|bad_alloc|cannot allocate", re.IGNORECASE)
_HEADER = re.compile(r"[\w./+-]+")
_STANDARD_HEADER = re.compile(r"[a-z0-9_]+")


@dataclass(frozen=True, slots=True)
class Complaint:
    fault: Fault
    text: str
    name: str = ""
    """Undeclared, or the header's."""
    hints_at_newer: bool = False
    """Perhaps a later standard helps: worth a try, and no excuse."""

    @property
    def is_of_context(self) -> bool:
        return self.fault in ("undeclared", "header")


def complaint_in(said: str, code: str) -> Complaint | None:
    """The first error; None where there is none. What goes wrong in another file is not told: its lines are in it. What
    the compiler only repeats after the code is plainly wrong, whatever it says."""
    found = _ERROR.search(said)
    if found is None:
        return None
    if found["file"] != OWN:
        asked = _ASKED_FROM.search(said)
        where = f"line {asked['line']}: what it asks of a header is an error there" if asked else _IN_ANOTHER
        return Complaint("clash" if _CLASH.search(said) else "wrong", where)
    message = found["message"][:_LONGEST_MESSAGE].replace(OWN, _SHOWN)
    text = _PATH.sub("", f"line {found['line']}: {message}" if found["line"] else message)
    if found["fatal"]:
        header = _NO_HEADER.fullmatch(message)
        name = header[header.lastgroup or 0] if header else ""
        return Complaint(_fault_of_header(name) if includes(name, code) else "wrong", text, name)
    fault, name = _fault_of(message, said, code)
    return Complaint(fault, text, name, hints_at_newer=_hints_at_newer(said, code))


def _fault_of(message: str, said: str, code: str) -> tuple[Fault, str]:
    """And the name that is not declared."""
    if is_own_words(message, said, code):
        return "wrong", ""
    used = used_of_std(_NEWER_NAMES, code)
    missing = _NOT_IN_STD.match(message)
    if missing["name"] in used if missing else _UNEXPECTED in used and message.startswith("too many arguments"):
        return "newer", ""
    undeclared = _UNDECLARED.match(message)
    if undeclared is not None:
        return "undeclared", undeclared["clang"] or undeclared["gcc"] or undeclared["this"]
    return ("clash" if _CLASH.search(said) else "wrong"), ""


def _hints_at_newer(said: str, code: str) -> bool:
    return _NEWER.search(said) is not None or bool(used_of_std(_NEWER_NAMES, code))


def _fault_of_header(name: str) -> Fault:
    """Somebody's library may be missing here; no path of this machine, and no standard header that there never was."""
    if name.startswith("/") or ".." in name or not _HEADER.fullmatch(name):
        return "wrong"
    return "header" if name in NEWER or not _STANDARD_HEADER.fullmatch(name) else "wrong"


def is_about_precompiled(said: str) -> bool:
    """Perhaps the compiler does not like what was compiled beforehand; perhaps the answer only makes it look so."""
    return _PRECOMPILED.search(said) is not None


def is_about_memory(said: str) -> bool:
    return _MEMORY.search(said) is not None
