"""Backtraces of native programs: debuggers, glibc, crash handlers, the kernel. Other languages' traces are not ours."""

from router.rules.finding import Finding, found
from router.rules.mark import Mark, marks
from router.rules.page import Page

KIND = "a stack trace"
_ENOUGH = 2
_HEX = frozenset("0123456789abcdefABCDEF")
_MIN_ADDRESS = 4
_NEAR = 1000
"""Characters."""
_NUMBERS = marks("#0 ", "#1 ", "#2 ")
_LLDB = Mark(" frame #")
_BRACKET = Mark("[0x")
_CALLED = Mark("@ ")
_BOOST = Mark("1# ")
_KERNEL = Mark("Call Trace:")
_PLACED = (") at ", ") from ", ") in ", "> at ")
_LIBRARIES = (".so", ".dll", ".dylib", "/lib")
_ALONE = marks(
    "terminate called after throwing an instance of '",
    "terminating with uncaught exception of type ",
    "terminating due to uncaught exception of type ",
    "Program received signal SIG",
    "Program terminated with signal SIG",
    "*** stack smashing detected ***",
    "Unhandled exception at 0x",
)
"""At the beginning of a line these come from a dying program, not from somebody who talks about one."""


def stack_trace(page: Page) -> Finding | None:
    return _numbered(page) or _lldb(page) or _addressed(page) or _handler(page) or _last_words(page)


def _numbered(page: Page) -> Finding | None:
    """gdb, the sanitizers, LLVM: `#1  0x... in f (x=3) at a.cpp:7`. Two frames with neighbouring numbers."""
    before = -1
    for number in _NUMBERS:
        at = next((at for at in page.line_starts(number) if _is_frame(page.after(at + len(number.text)))), -1)
        if at >= 0 and before >= 0:
            return found(KIND, page.text[before : before + 2] + " ...", page, before)
        before = at
    return None


def _is_frame(rest: str) -> bool:
    frame = rest.strip()
    if _is_address(frame) or frame.startswith("<signal handler"):
        return True
    return _is_placed(frame)


def _is_placed(frame: str) -> bool:
    return any(mark in frame and _is_place(frame.rpartition(mark)[2]) for mark in _PLACED)


def _is_place(rest: str) -> bool:
    """`a.cpp:7`, `/lib64/libc.so.6`, `./a.out`: where code is, not where people are."""
    word = rest.split(maxsplit=1)[0] if rest.strip() else ""
    file, colon, line = word.rpartition(":")
    if colon and "." in file and line.isdecimal():
        return True
    return word.startswith("./") or any(piece in word for piece in _LIBRARIES)


def _is_address(word: str) -> bool:
    digits = word[2 : 2 + _MIN_ADDRESS]
    return word.startswith("0x") and len(digits) == _MIN_ADDRESS and _HEX.issuperset(digits)


def _lldb(page: Page) -> Finding | None:
    for at in page.occurrences(_LLDB):
        number, colon, rest = page.after(at + len(_LLDB.text)).partition(": ")
        if colon and number.isdecimal() and _is_address(rest) and "`" in rest:
            return found(KIND, f"frame #{number}", page, at)
    return None


def _addressed(page: Page) -> Finding | None:
    """glibc's backtrace_symbols: `./a.out(main+0x1d) [0x401136]`."""
    frames = [at for at in page.occurrences(_BRACKET) if _is_symbolised(page, at)]
    return found(KIND, "[0x...]", page, frames[0]) if len(frames) >= _ENOUGH else None


def _is_symbolised(page: Page, at: int) -> bool:
    before = page.before(at).rstrip()
    rest = page.after(at + 1)
    return before.endswith(")") and "(" in before and rest.rstrip().endswith("]") and _is_address(rest)


def _handler(page: Page) -> Finding | None:
    """Crash handlers: `  @  0x7f1e2 raise` (glog, Abseil), ` 1# f() at a.cpp:7` (Boost), the kernel's call trace."""
    called = [at for at in page.line_starts(_CALLED) if _is_address(page.after(at + 1).strip())]
    if len(called) >= _ENOUGH:
        return found(KIND, "@ 0x...", page, called[0])
    for at in page.line_starts(_BOOST):
        rest = page.after(at + len(_BOOST.text))
        if _is_address(rest) or _is_placed(rest):
            return found(KIND, "1#", page, at)
    at = next(page.line_starts(_KERNEL), -1)
    return found(KIND, _KERNEL.text, page, at) if at >= 0 and page.text.find("+0x", at, at + _NEAR) >= 0 else None


def _last_words(page: Page) -> Finding | None:
    for mark in _ALONE:
        at = next(page.line_starts(mark), -1)
        if at >= 0:
            return found(KIND, mark.text.rstrip("'"), page, at)
    return None
