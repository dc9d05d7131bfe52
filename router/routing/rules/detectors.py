"""Detectors for tool output (linkers, sanitizers, stack traces of native programs), build files and templates. A rule
of the configuration names a detector, or lists texts to search for."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise

from octet.config.ensemble import RuleConfig
from router.routing.normal_text import fold_unicode
from router.routing.rules.context import other_toolchain
from router.routing.rules.text import LINE_START, RuleMatch, ScannedText, TextMark, text_marks
from router.routing.solved import after_solved

Detector = Callable[[ScannedText], RuleMatch | None]

_LINKER_MARKS = (
    TextMark(  # linkers print a quoted, mangled or qualified symbol next; prose, a plain word
        "undefined reference to ",
        after="\\s*(?:[`'\"\N{LEFT SINGLE QUOTATION MARK}]|vtable|typeinfo|main|WinMain|pthread_|non-virtual thunk"
        r"|\S*(?:::|\(|_))",
    ),
    *text_marks(
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
    ),
    TextMark("duplicate symbol ", after=r".* in:\s*$|.*\.(?:o|a|obj|lib)[,:;)'\"]*(?:\s|$)"),  # object files follow
    TextMark("ld: ", LINE_START, ".*(?:not found|cannot |can't |error|undefined|duplicate)", shown="ld:"),
)
_SANITIZER_MARKS = (
    # ==1==ERROR: AddressSanitizer: heap-use-after-free
    TextMark("Sanitizer: ", r"((?:ERROR|WARNING|SUMMARY): [^\W\d_]+)$", r".*\S"),
    TextMark("Sanitizer:DEADLYSIGNAL"),
    # file.cpp:3:9: runtime error: signed integer overflow. Other languages print no location before it.
    TextMark(": runtime error: ", r"(?:^|:)\d+:\d+$", shown="runtime error"),
    # ==4711== Invalid read of size 4 (Valgrind)
    TextMark("== ", r"^[ >|]*(==\d+)$", least=2),
)

STACK_TRACE = "a stack trace"
_ADDRESS = "0x[0-9a-fA-F]{4}"
_LOCATION = r"(?:(?=\S*\.)\S+:\d+(?!\S)|\./|\S*(?:\.so|\.dll|\.dylib|/lib))"
"""A location in code: `a.cpp:7`, `/lib64/libc.so.6`, `./a.out`."""
_CODE = rf"\s*(?:{_ADDRESS}|.*(?:\) (?:at|from|in)|> at)\s+{_LOCATION})"
"""An address, or a function with its location."""
_NUMBERED_FRAMES = text_marks("#0 ", "#1 ", "#2 ", before=LINE_START, after=rf"\s*<signal handler|{_CODE}")
_TRACE_MARKS = (
    TextMark(" frame #", after=rf"(\d+): {_ADDRESS}.*`"),  # LLDB
    # ./a.out(main+0x1d) [0x401136] (glibc's backtrace_symbols)
    TextMark("[0x", r"^[^(]*\(.*\)\s*$", r"[0-9a-fA-F]{4}.*\]\s*$", least=2, shown="[0x...]"),
    TextMark("@ ", LINE_START, rf"\s*{_ADDRESS}", least=2, shown="@ 0x..."),  # glog and Abseil
    TextMark("1# ", LINE_START, _CODE),  # Boost
    # A crashing program prints these at the start of a line; in prose they occur elsewhere.
    *text_marks(
        "terminate called after throwing an instance of '",
        "terminating with uncaught exception of type ",
        "terminating due to uncaught exception of type ",
        "Program received signal SIG",
        "Program terminated with signal SIG",
        "*** stack smashing detected ***",
        "Unhandled exception at 0x",
        before=LINE_START,
    ),
)
_KERNEL_TRACE = TextMark("Call Trace:", LINE_START)
_KERNEL_TRACE_CHARS = 1000  # a kernel trace has an offset (`+0x`) within this distance


def stack_trace(scanned: ScannedText) -> RuleMatch | None:
    """Match two frames with consecutive numbers, as in gdb, sanitizers and LLVM (`#1  0x... in f (x=3) at a.cpp:7`), or
    the trace of another tool."""
    for first, second in pairwise(scanned.first(frame) for frame in _NUMBERED_FRAMES):
        if min(first, second) >= 0:
            return scanned.match(STACK_TRACE, scanned.text[first : first + 2] + " ...", first)
    at = scanned.first(_KERNEL_TRACE)
    if at >= 0 and scanned.text.find("+0x", at, at + _KERNEL_TRACE_CHARS) >= 0:
        return scanned.match(STACK_TRACE, _KERNEL_TRACE.text, at)
    return scanned.match_any(STACK_TRACE, _TRACE_MARKS)


BUILD_TEXT = "build text"
_MIN_SIGNS = 2
_COMMANDS = (
    "cmake_minimum_required project add_executable add_library add_subdirectory add_compile_options "
    "add_custom_command add_custom_target target_link_libraries target_include_directories target_compile_definitions "
    "target_compile_features target_compile_options target_sources set_target_properties find_package find_library "
    "link_libraries include_directories fetchcontent_declare fetchcontent_makeavailable enable_testing add_test"
)
_CALL = r" ?\((?:[^)]*|.*\)[ \t\r`]*(?:#[^)]*)?)$"  # the parentheses close at the end of a line; in prose, text follows
_COMMANDS_BY_WORD = {name.encode(): TextMark(name, LINE_START, _CALL) for name in _COMMANDS.split()}
_BUILD_ERRORS = text_marks(
    "CMake Error at ",
    "CMake Error: ",
    "CMake Warning at ",
    "-- Configuring incomplete, errors occurred",
    "make: *** No rule to make target",
    "]: *** No rule to make target",
    ": *** missing separator",
    ": *** commands commence before first target",
    "ninja: error: ",
    "configure: error: ",
    "Could not find a package configuration file provided by ",
)
_PHONY = TextMark(".PHONY", LINE_START)
_VARIABLES = text_marks(
    "$(CXX)", "$(CC)", "$(LD)", "$(CXXFLAGS)", "$(CFLAGS)", "$(LDFLAGS)", "$(OBJS)", "$(SRCS)", "$(MAKE)"
)  # fmt: skip
_ASSIGNMENTS = text_marks(
    *("CXXFLAGS", "CFLAGS", "CPPFLAGS", "LDFLAGS", "LDLIBS", "CXX", "CC", "OBJS", "SRCS"),
    before=LINE_START,
    after=r"\s*(?!==|.*;\s*$)(?:::?|[+?])?=",
)
_ASSIGNED_WORDS = frozenset(mark.text.lower().encode() for mark in _ASSIGNMENTS)
_RECIPE = TextMark(
    "\n\t",
    # A target is a single name, but not a word that precedes a colon in other languages.
    before=r"^(?!(?:public|protected|private|default|signals|slots|else|try|finally)\s*:)[^\s:]+\s*:",
    after=r"(?![^ ]*:\s*(?: |$))",  # not YAML's `key: value`
)
_AUTOMATIC = ("$@", "$<", "$^")
_SHELL = '"$@"'


def build_text(scanned: ScannedText) -> RuleMatch | None:
    return scanned.match_any(BUILD_TEXT, _BUILD_ERRORS) or _cmake(scanned) or _make(scanned)


def _cmake(scanned: ScannedText) -> RuleMatch | None:
    """Match two different commands, each at the start of a line. A single command may be part of a question."""
    commands = [command for word, command in _COMMANDS_BY_WORD.items() if word in scanned.words]
    if len(commands) < _MIN_SIGNS:
        return None
    folded = ScannedText(scanned.text.lower())
    calls = [at for command in commands if (at := folded.first(command)) >= 0]
    return folded.match(BUILD_TEXT, folded.after(min(calls)), min(calls)) if len(calls) >= _MIN_SIGNS else None


def _make(scanned: ScannedText) -> RuleMatch | None:
    """Match two different signs of a makefile. An automatic variable such as `$@` counts only in a recipe, because
    shell scripts use similar names."""
    found = [scanned.first(_PHONY), max(scanned.find(each) for each in _VARIABLES)]
    if not scanned.words.isdisjoint(_ASSIGNED_WORDS):
        found.append(next((at for each in _ASSIGNMENTS if (at := scanned.first(each)) >= 0), -1))
    signs = [at for at in found if at >= 0]
    if len(signs) < _MIN_SIGNS and (at := scanned.first(_RECIPE)) >= 0:
        command = scanned.after(at + len(_RECIPE.text))
        is_automatic = _SHELL not in command and any(variable in command for variable in _AUTOMATIC)
        signs += [at - len(scanned.before(at)), *([at] if is_automatic else [])]
    return scanned.match(BUILD_TEXT, scanned.after(min(signs)), min(signs)) if len(signs) >= _MIN_SIGNS else None


_TEMPLATES = ("template<", "template <")
_CONSTRUCTS = (
    "enable_if enable_if_t __enable_if_t void_t __void_t declval decltype requires concept conditional conditional_t "
    "integral_constant bool_constant true_type false_type index_sequence make_index_sequence is_same is_same_v "
    "is_convertible is_convertible_v is_constructible is_constructible_v is_invocable is_invocable_v invoke_result "
    "invoke_result_t is_detected is_base_of is_base_of_v"
)
_CONSTRUCT_WORDS = frozenset(_CONSTRUCTS.encode().split())
_RESULTS = ("::type", "::value>", "::value &&", "sizeof...(")
_CORE = text_marks("enable_if", "void_t<", "declval<", " requires ", " requires(", "\nconcept ")
_MIN_TEMPLATES = 2
_MIN_CONSTRUCTS = 4
_MIN_KINDS = 2
_DENSITY = 500  # characters per construct; code with fewer constructs is not heavy
_MAX_DIAGNOSTICS = 2  # compiler diagnostics quote a library's constraints, which are not the subject


def sfinae_heavy(scanned: ScannedText) -> RuleMatch | None:
    text = scanned.text
    kinds = _CONSTRUCT_WORDS & scanned.words
    if b"template" not in scanned.words or len(kinds) < _MIN_KINDS:
        return None
    core = {at: mark for mark in _CORE if (at := scanned.find(mark)) >= 0}
    if not core or sum(text.count(mark) for mark in _TEMPLATES) < _MIN_TEMPLATES:
        return None
    if text.count(": note: ") + text.count(": error: ") > _MAX_DIAGNOSTICS:
        return None
    if _count_constructs(text, kinds) < max(_MIN_CONSTRUCTS, len(text) / _DENSITY):
        return None
    first = min(core)
    return scanned.match("SFINAE-heavy templates", core[first].text.rstrip("<("), first)


def _count_constructs(text: str, kinds: frozenset[bytes]) -> int:
    """Count the constructs. If one name contains another, only the shorter is searched for: it finds both."""
    names = sorted(kind.decode() for kind in kinds)
    stems = [name for name in names if not any(other != name and other in name for other in names)]
    # `requires` and `concept` also occur in comments and macros; as keywords they follow a space
    marks = [f" {stem}" if stem in ("requires", "concept") else stem for stem in stems]
    return sum(text.count(mark) for mark in (*marks, *_RESULTS))


def _in_context(detector: Detector) -> Detector:
    """Return a detector that ignores the output of other languages' tools, and what precedes the statement that an
    error is solved."""

    def detect(scanned: ScannedText) -> RuleMatch | None:
        match = detector(scanned)
        if match is None or other_toolchain(scanned):
            return None
        end = after_solved(scanned.text)
        if not end:
            return match
        rest = detector(ScannedText(scanned.text[end:]))
        return None if rest is None else replace(rest, line=rest.line + scanned.text.count("\n", 0, end))

    return detect


DETECTORS: Mapping[str, Detector] = {
    "sfinae-heavy": sfinae_heavy,
    "build-text": _in_context(build_text),
    "linker-output": _in_context(lambda scanned: scanned.match_any("linker output", _LINKER_MARKS)),
    "stack-trace": _in_context(stack_trace),
    "sanitizer-report": _in_context(lambda scanned: scanned.match_any("a sanitizer's report", _SANITIZER_MARKS)),
}


def rule_detector(rule: RuleConfig) -> Detector:
    """Return the detector that `rule.detect` names; without one, a detector that searches for the texts in
    `rule.contains`. Raises KeyError for an unknown name."""
    if rule.detect is not None:
        return DETECTORS[rule.detect]
    marks = text_marks(*(fold_unicode(piece) or piece for piece in rule.contains))  # texts are folded too

    def detect(scanned: ScannedText) -> RuleMatch | None:
        found = [(at, mark.text) for mark in marks if (at := scanned.find(mark)) >= 0]
        if len(found) < rule.at_least:
            return None
        at, piece = min(found)
        return scanned.match("the text", piece, at)

    return detect
