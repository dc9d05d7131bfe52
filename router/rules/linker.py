"""What linkers say: GNU ld, gold, lld, Apple's ld64 and Microsoft's link."""

from router.rules.finding import Finding, found
from router.rules.mark import Mark, marks
from router.rules.page import Page

KIND = "linker output"
_UNDEFINED = Mark("undefined reference to ")
_NAMED = ("vtable", "typeinfo", "main", "WinMain", "pthread_", "non-virtual thunk")
"""Symbols that people quote without quotation marks."""
_QUOTES = "`'\"\N{LEFT SINGLE QUOTATION MARK}"
_CERTAIN = marks(
    "collect2: error: ld returned",
    "collect2: ld returned",
    "ld.lld: error: ",
    "ld: error: undefined symbol: ",
    "ld64.lld: error: ",
    "error: linker command failed with exit code",
    "Undefined symbols for architecture ",
    "symbol(s) not found for architecture ",
    "duplicate symbols for architecture ",
    ": multiple definition of ",
    ": first defined here",
    ": cannot find -l",
    ": error adding symbols: ",
    "relocation R_X86_64_",
    "relocation R_AARCH64_",
    ": symbol lookup error: ",
    "unresolved external symbol ",
    "fatal error LNK",
    "error LNK2",
)
_LD = Mark("ld: ")
_TWICE = Mark("duplicate symbol ")
_OBJECTS = (".o", ".a", ".obj", ".lib")


def linker_output(page: Page) -> Finding | None:
    for at in page.occurrences(_UNDEFINED):
        if _is_symbol(page.after(at + len(_UNDEFINED.text))):
            return found(KIND, _UNDEFINED.text, page, at)
    for mark in _CERTAIN:
        at = page.find(mark)
        if at >= 0:
            return found(KIND, mark.text, page, at)
    at = next((at for at in page.occurrences(_TWICE) if _is_in_objects(page.after(at))), -1)
    if at >= 0:
        return found(KIND, _TWICE.text, page, at)
    if b"ld" not in page.words:
        return None
    at = next(page.line_starts(_LD), -1)
    return found(KIND, "ld:", page, at) if at >= 0 and _complains(page.after(at)) else None


def _is_symbol(rest: str) -> bool:
    """Prose goes on with a word; a linker with a name in quotation marks, or a mangled or qualified one."""
    symbol = rest.split(maxsplit=1)[0] if rest.strip() else ""
    return symbol.startswith((*_QUOTES, *_NAMED)) or any(piece in symbol for piece in ("::", "(", "_"))


def _is_in_objects(line: str) -> bool:
    """`duplicate symbol '_f' in:`, with the files below it or behind."""
    return line.rstrip().endswith(" in:") or any(word.rstrip(",:;)'\"").endswith(_OBJECTS) for word in line.split())


def _complains(line: str) -> bool:
    return any(word in line for word in ("not found", "cannot ", "can't ", "error", "undefined", "duplicate"))
