"""Detectors for tool output: linkers, sanitizers and stack traces of native programs."""

from router.routing.rules.text import RuleMatch, ScannedText, TextMark, text_marks

LINKER_OUTPUT = "linker output"
_UNDEFINED = TextMark("undefined reference to ")
_UNQUOTED_SYMBOLS = ("vtable", "typeinfo", "main", "WinMain", "pthread_", "non-virtual thunk")
"""Symbols that are often quoted without quotation marks."""
_QUOTES = "`'\"\N{LEFT SINGLE QUOTATION MARK}"
_LINKER_MARKS = text_marks(
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
_LD = TextMark("ld: ")
_DUPLICATE = TextMark("duplicate symbol ")
_COMPLAINTS = ("not found", "cannot ", "can't ", "error", "undefined", "duplicate")
_OBJECTS = (".o", ".a", ".obj", ".lib")


def linker_output(scanned: ScannedText) -> RuleMatch | None:
    for at in scanned.occurrences(_UNDEFINED):
        if _is_symbol(scanned.after(at + len(_UNDEFINED.text))):
            return scanned.match(LINKER_OUTPUT, _UNDEFINED.text, at)
    duplicates = (at for at in scanned.occurrences(_DUPLICATE) if _is_in_objects(scanned.after(at)))
    found = scanned.match_any(LINKER_OUTPUT, _LINKER_MARKS)
    found = found or scanned.match(LINKER_OUTPUT, _DUPLICATE.text, next(duplicates, -1))
    if found is not None or b"ld" not in scanned.words:
        return found
    at = next(scanned.line_starts(_LD), -1)
    is_complaint = at >= 0 and any(word in scanned.after(at) for word in _COMPLAINTS)
    return scanned.match(LINKER_OUTPUT, "ld:", at) if is_complaint else None


def _is_symbol(rest: str) -> bool:
    """Whether a quoted, mangled or qualified symbol follows, as in linker output; prose continues with a word."""
    symbol = rest.split(maxsplit=1)[0] if rest.strip() else ""
    return symbol.startswith((*_QUOTES, *_UNQUOTED_SYMBOLS)) or any(piece in symbol for piece in ("::", "(", "_"))


def _is_in_objects(line: str) -> bool:
    """Match `duplicate symbol '_f' in:`, which object files follow."""
    return line.rstrip().endswith(" in:") or any(word.rstrip(",:;)'\"").endswith(_OBJECTS) for word in line.split())


SANITIZER_REPORT = "a sanitizer's report"
_SANITIZER = TextMark("Sanitizer: ")
_SEVERITIES = ("ERROR: ", "WARNING: ", "SUMMARY: ")
_RUNTIME_ERROR = TextMark(": runtime error: ")
_DEADLY = TextMark("Sanitizer:DEADLYSIGNAL")
_PROCESS = TextMark("== ")
_PREFIX = "=="
_MIN_PROCESS_LINES = 2


def sanitizer_report(scanned: ScannedText) -> RuleMatch | None:
    found = _sanitizer_header(scanned) or scanned.match_any(SANITIZER_REPORT, (_DEADLY,))
    return found or _undefined_behaviour(scanned) or _valgrind(scanned)


def _sanitizer_header(scanned: ScannedText) -> RuleMatch | None:
    """Match `==1==ERROR: AddressSanitizer: heap-use-after-free ...`."""
    for at in scanned.occurrences(_SANITIZER):
        before = scanned.before(at)
        for severity in _SEVERITIES:
            _, level, name = before.rpartition(severity)
            if level and name.isalpha() and scanned.after(at + len(_SANITIZER.text)).strip():
                return scanned.match(SANITIZER_REPORT, f"{severity}{name}Sanitizer", at)
    return None


def _undefined_behaviour(scanned: ScannedText) -> RuleMatch | None:
    """Match `file.cpp:3:9: runtime error: signed integer overflow`. In other languages no location precedes it."""
    for at in scanned.occurrences(_RUNTIME_ERROR):
        _, line, column = ("", "", *scanned.before(at).split(":"))[-3:]
        if line.isdecimal() and column.isdecimal():
            return scanned.match(SANITIZER_REPORT, "runtime error", at)
    return None


def _valgrind(scanned: ScannedText) -> RuleMatch | None:
    """Match lines that start with a process id: `==4711== Invalid read of size 4`."""
    lines = [at for at in scanned.occurrences(_PROCESS) if _process(scanned, at)]
    if len(lines) < _MIN_PROCESS_LINES:
        return None
    return scanned.match(SANITIZER_REPORT, f"=={_process(scanned, lines[0])}==", lines[0])


def _process(scanned: ScannedText, at: int) -> str:
    """Return the process id, or "" if anything else precedes the second `==`."""
    head, prefix, number = scanned.before(at).rpartition(_PREFIX)
    return number if prefix and not head.strip(" >|") and number.isdecimal() else ""


STACK_TRACE = "a stack trace"
_MIN_FRAMES = 2
_HEX = frozenset("0123456789abcdefABCDEF")
_MIN_ADDRESS = 4
_NEAR_CHARS = 1000
_FRAME_NUMBERS = text_marks("#0 ", "#1 ", "#2 ")
_LLDB = TextMark(" frame #")
_BRACKET = TextMark("[0x")
_GLOG = TextMark("@ ")
_BOOST = TextMark("1# ")
_KERNEL = TextMark("Call Trace:")
_LOCATION_MARKS = (") at ", ") from ", ") in ", "> at ")
_LIBRARIES = (".so", ".dll", ".dylib", "/lib")
_FINAL_MESSAGES = text_marks(
    "terminate called after throwing an instance of '",
    "terminating with uncaught exception of type ",
    "terminating due to uncaught exception of type ",
    "Program received signal SIG",
    "Program terminated with signal SIG",
    "*** stack smashing detected ***",
    "Unhandled exception at 0x",
)
"""A crashing program prints these at the start of a line; in prose they occur elsewhere."""


def stack_trace(scanned: ScannedText) -> RuleMatch | None:
    found = _numbered(scanned) or _lldb(scanned) or _addressed(scanned) or _handler(scanned)
    return found or scanned.match_any(STACK_TRACE, _FINAL_MESSAGES, line_start=True)


def _numbered(scanned: ScannedText) -> RuleMatch | None:
    """Match two frames with consecutive numbers, as in gdb, sanitizers and LLVM: `#1  0x... in f (x=3) at a.cpp:7`."""
    before = -1
    for number in _FRAME_NUMBERS:
        starts = ((at, scanned.after(at + len(number.text)).strip()) for at in scanned.line_starts(number))
        frames = (at for at, rest in starts if rest.startswith("<signal handler") or _is_code(rest))
        at = next(frames, -1)
        if at >= 0 and before >= 0:
            return scanned.match(STACK_TRACE, scanned.text[before : before + 2] + " ...", before)
        before = at
    return None


def _is_code(frame: str) -> bool:
    """Whether the frame has an address, or a function with its location."""
    located = (mark in frame and _is_location(frame.rpartition(mark)[2]) for mark in _LOCATION_MARKS)
    return _is_address(frame) or any(located)


def _is_location(rest: str) -> bool:
    """Whether the text is a location in code: `a.cpp:7`, `/lib64/libc.so.6`, `./a.out`."""
    word = rest.split(maxsplit=1)[0] if rest.strip() else ""
    file, colon, line = word.rpartition(":")
    if colon and "." in file and line.isdecimal():
        return True
    return word.startswith("./") or any(piece in word for piece in _LIBRARIES)


def _is_address(word: str) -> bool:
    digits = word[2 : 2 + _MIN_ADDRESS]
    return word.startswith("0x") and len(digits) == _MIN_ADDRESS and _HEX.issuperset(digits)


def _lldb(scanned: ScannedText) -> RuleMatch | None:
    for at in scanned.occurrences(_LLDB):
        number, colon, rest = scanned.after(at + len(_LLDB.text)).partition(": ")
        if colon and number.isdecimal() and _is_address(rest) and "`" in rest:
            return scanned.match(STACK_TRACE, f"frame #{number}", at)
    return None


def _addressed(scanned: ScannedText) -> RuleMatch | None:
    """Match glibc's backtrace_symbols: `./a.out(main+0x1d) [0x401136]`."""
    frames = [at for at in scanned.occurrences(_BRACKET) if _is_symbolised(scanned, at)]
    return scanned.match(STACK_TRACE, "[0x...]", frames[0]) if len(frames) >= _MIN_FRAMES else None


def _is_symbolised(scanned: ScannedText, at: int) -> bool:
    before = scanned.before(at).rstrip()
    rest = scanned.after(at + 1)
    return before.endswith(")") and "(" in before and rest.rstrip().endswith("]") and _is_address(rest)


def _handler(scanned: ScannedText) -> RuleMatch | None:
    """Match crash handlers: `  @  0x7f1e2 raise` (glog, Abseil), ` 1# f() at a.cpp:7` (Boost), kernel call traces."""
    glog = [at for at in scanned.line_starts(_GLOG) if _is_address(scanned.after(at + 1).strip())]
    if len(glog) >= _MIN_FRAMES:
        return scanned.match(STACK_TRACE, "@ 0x...", glog[0])
    for at in scanned.line_starts(_BOOST):
        rest = scanned.after(at + len(_BOOST.text))
        if _is_code(rest):
            return scanned.match(STACK_TRACE, "1#", at)
    at = next(scanned.line_starts(_KERNEL), -1)
    has_offset = at >= 0 and scanned.text.find("+0x", at, at + _NEAR_CHARS) >= 0
    return scanned.match(STACK_TRACE, _KERNEL.text, at) if has_offset else None
