"""The text of build files, and what build systems say when the build description itself is wrong."""

from router.rules.finding import Finding, found
from router.rules.mark import Mark, marks
from router.rules.page import Page

KIND = "build text"
_ENOUGH = 2
_COMMANDS = marks(
    "cmake_minimum_required",
    "project",
    "add_executable",
    "add_library",
    "add_subdirectory",
    "add_compile_options",
    "add_custom_command",
    "add_custom_target",
    "target_link_libraries",
    "target_include_directories",
    "target_compile_definitions",
    "target_compile_features",
    "target_compile_options",
    "target_sources",
    "set_target_properties",
    "find_package",
    "find_library",
    "link_libraries",
    "include_directories",
    "fetchcontent_declare",
    "fetchcontent_makeavailable",
    "enable_testing",
    "add_test",
)
_COMMAND_WORDS = frozenset(command.text.encode() for command in _COMMANDS)
_CERTAIN = marks(
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
_PHONY = Mark(".PHONY")
_VARIABLES = marks(
    "$(CXX)", "$(CC)", "$(LD)", "$(CXXFLAGS)", "$(CFLAGS)", "$(LDFLAGS)", "$(OBJS)", "$(SRCS)", "$(MAKE)"
)  # fmt: skip
_AUTOMATIC = ("$@", "$<", "$^")
_SHELL = '"$@"'
_ASSIGNS = ("=", ":=", "+=", "?=", "::=")
_ASSIGNED = marks("CXXFLAGS", "CFLAGS", "CPPFLAGS", "LDFLAGS", "LDLIBS", "CXX", "CC", "OBJS", "SRCS")
_ASSIGNED_WORDS = frozenset(name.text.lower().encode() for name in _ASSIGNED)
_RECIPE = Mark("\n\t")
_NO_TARGETS = frozenset(("public", "protected", "private", "default", "signals", "slots", "else", "try", "finally"))
"""Labels of other languages."""


def build_text(page: Page) -> Finding | None:
    return _complaint(page) or _cmake(page) or _make(page)


def _complaint(page: Page) -> Finding | None:
    for mark in _CERTAIN:
        at = page.find(mark)
        if at >= 0:
            return found(KIND, mark.text, page, at)
    return None


def _cmake(page: Page) -> Finding | None:
    """Two different commands, each at the beginning of a line. One, or one inside a sentence, is a question."""
    if len(_COMMAND_WORDS & page.words) < _ENOUGH:
        return None
    folded = Page(page.text.lower())
    calls = [at for at in (_call(folded, command) for command in _COMMANDS) if at >= 0]
    if len(calls) < _ENOUGH:
        return None
    return found(KIND, folded.after(min(calls)), folded, min(calls))


def _call(folded: Page, command: Mark) -> int:
    if command.text.encode() not in folded.words:
        return -1
    starts = folded.line_starts(command)
    return next((at for at in starts if _is_call(folded.after(at + len(command.text)))), -1)


def _is_call(rest: str) -> bool:
    """Arguments in parentheses, up to a later line or to the end of this one: a sentence goes on behind them."""
    _, closed, behind = rest.rpartition(")")
    return rest.startswith(("(", " (")) and (not closed or behind.strip(" \t\r`")[:1] in ("", "#"))


def _make(page: Page) -> Finding | None:
    """Two different habits of makefiles."""
    habits = [at for at in (_phony(page), _variable(page), _assignment(page)) if at >= 0]
    if len(habits) < _ENOUGH:
        habits += _recipe(page)
    return found(KIND, page.after(min(habits)), page, min(habits)) if len(habits) >= _ENOUGH else None


def _phony(page: Page) -> int:
    return next(page.line_starts(_PHONY), -1)


def _variable(page: Page) -> int:
    return max(page.find(variable) for variable in _VARIABLES)


def _assignment(page: Page) -> int:
    if page.words.isdisjoint(_ASSIGNED_WORDS):
        return -1
    for name in _ASSIGNED:
        for at in page.line_starts(name):
            rest = page.after(at + len(name.text)).lstrip()
            if rest.startswith(_ASSIGNS) and not rest.startswith("==") and not rest.rstrip().endswith(";"):
                return at
    return -1


def _recipe(page: Page) -> list[int]:
    """A target with its prerequisites and a command behind a tab: one habit. That the command speaks of the target in
    make's own way is another; a script's arguments are written alike, but stand below no target."""
    for at in page.occurrences(_RECIPE):
        line, command = page.before(at), page.after(at + len(_RECIPE.text))
        if _is_target(line) and not _is_mapping(command):
            start = at - len(line)
            is_automatic = _SHELL not in command and any(variable in command for variable in _AUTOMATIC)
            return [start, at] if is_automatic else [start]
    return []


def _is_target(line: str) -> bool:
    """One name: more of them before a colon are mostly `case 1:` or `class A:`."""
    target, colon, _ = line.partition(":")
    name = target.rstrip()
    return bool(colon and name) and not any(map(str.isspace, name)) and name not in _NO_TARGETS


def _is_mapping(command: str) -> bool:
    """YAML's `key: value`."""
    return command.partition(" ")[0].rstrip().endswith(":")
