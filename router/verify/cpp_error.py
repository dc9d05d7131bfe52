"""What a compiler's output says about the answer, and no more: nothing of the files that it read."""

import re
from dataclasses import dataclass
from typing import Literal

from router.verify.cpp_text import OWN
from router.verify.preamble import NEWER

Fault = Literal["wrong", "undeclared", "header", "clash", "newer"]
"""wrong: and that is it. undeclared: a name that may come from elsewhere. header: one that is not here. clash: with
something of the preamble, perhaps. newer: something of a later standard."""

_ERROR = re.compile(r"^(?P<file>[^:\n]*):(?:(?P<line>\d+):)?(?:\d+:)? (?:fatal )?error: (?P<message>.*)$", re.MULTILINE)
_SHOWN = "<answer>"
_LONGEST_MESSAGE = 1000
"""Characters that are looked at."""
_IN_ANOTHER = "an error in a file that it includes"
_NO_HEADER = re.compile(r"^'?(?P<name>[^:'\n]+)'?(?:: No such file or directory| file not found)")
_UNDECLARED = re.compile(
    r"^(?:use of undeclared identifier|unknown type name|no template named|use of undeclared) '(?P<clang>[^']+)'"
    r"|^'(?P<gcc>[^']+)' (?:was not declared|does not name a (?:template )?type|has not been declared"
    r"|is not a (?:template|class)|is not a class)|^invalid use of '(?P<this>this)'"
)
_CLASH = re.compile(r"ambiguous|redeclar|redefin|conflict|different kind|previous|overload")
_NEWER = re.compile(r"C\+\+2[3b]|c\+\+2[3b]|[Cc]\+\+26")
_NEWER_NAMES = re.compile(r"\bstd::(?:expected|unexpected|print|println|generator|mdspan|flat_map|flat_set|byteswap)\b")
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

    @property
    def is_of_context(self) -> bool:
        return self.fault in ("undeclared", "header")


def complaint_in(said: str, code: str) -> Complaint | None:
    """The first error; None where there is none. What goes wrong in another file is not told: its lines are in it."""
    found = _ERROR.search(said)
    if found is None:
        return None
    if found["file"] != OWN:
        asked = _ASKED_FROM.search(said)
        where = f"line {asked['line']}: what it asks of a header is an error there" if asked else _IN_ANOTHER
        return Complaint("clash" if _CLASH.search(said) else "wrong", where)
    message = found["message"][:_LONGEST_MESSAGE].replace(OWN, _SHOWN)
    text = _PATH.sub("", f"line {found['line']}: {message}" if found["line"] else message)
    header = _NO_HEADER.match(message)
    if header is not None:
        return Complaint(_fault_of_header(header["name"]), text, header["name"])
    if _NEWER.search(said) or _NEWER_NAMES.search(code):
        return Complaint("newer", text)
    undeclared = _UNDECLARED.match(message)
    if undeclared is not None:
        return Complaint("undeclared", text, undeclared["clang"] or undeclared["gcc"] or undeclared["this"])
    return Complaint("clash" if _CLASH.search(said) else "wrong", text)


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
