"""Detectors for source text: build files, errors of build systems, and SFINAE-heavy C++ templates."""

from router.routing.rules.text import RuleMatch, ScannedText, TextMark, text_marks

BUILD_TEXT = "build text"
_MIN_SIGNS = 2
_COMMAND_NAMES = (
    "cmake_minimum_required project add_executable add_library add_subdirectory add_compile_options "
    "add_custom_command add_custom_target target_link_libraries target_include_directories target_compile_definitions "
    "target_compile_features target_compile_options target_sources set_target_properties find_package find_library "
    "link_libraries include_directories fetchcontent_declare fetchcontent_makeavailable enable_testing add_test"
)
_COMMANDS = text_marks(*_COMMAND_NAMES.split())
_COMMAND_WORDS = frozenset(_COMMAND_NAMES.encode().split())
_ERROR_MARKS = text_marks(
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
_PHONY = TextMark(".PHONY")
_VARIABLES = text_marks(
    "$(CXX)", "$(CC)", "$(LD)", "$(CXXFLAGS)", "$(CFLAGS)", "$(LDFLAGS)", "$(OBJS)", "$(SRCS)", "$(MAKE)"
)  # fmt: skip
_AUTOMATIC = ("$@", "$<", "$^")
_SHELL = '"$@"'
_ASSIGNS = ("=", ":=", "+=", "?=", "::=")
_ASSIGNED = text_marks("CXXFLAGS", "CFLAGS", "CPPFLAGS", "LDFLAGS", "LDLIBS", "CXX", "CC", "OBJS", "SRCS")
_ASSIGNED_WORDS = frozenset(name.text.lower().encode() for name in _ASSIGNED)
_RECIPE = TextMark("\n\t")
_NOT_TARGETS = frozenset(("public", "protected", "private", "default", "signals", "slots", "else", "try", "finally"))
"""Words that precede a colon in other languages."""


def build_text(scanned: ScannedText) -> RuleMatch | None:
    return scanned.match_any(BUILD_TEXT, _ERROR_MARKS) or _cmake(scanned) or _make(scanned)


def _cmake(scanned: ScannedText) -> RuleMatch | None:
    """Match two different commands, each at the start of a line. A single command may be part of a question."""
    if len(_COMMAND_WORDS & scanned.words) < _MIN_SIGNS:
        return None
    folded = ScannedText(scanned.text.lower())
    calls = [at for at in (_call(folded, command) for command in _COMMANDS) if at >= 0]
    if len(calls) < _MIN_SIGNS:
        return None
    return folded.match(BUILD_TEXT, folded.after(min(calls)), min(calls))


def _call(folded: ScannedText, command: TextMark) -> int:
    if command.text.encode() not in folded.words:
        return -1
    starts = folded.line_starts(command)
    return next((at for at in starts if _is_call(folded.after(at + len(command.text)))), -1)


def _is_call(rest: str) -> bool:
    """Whether the parentheses close at the end of a line; in prose, text follows them."""
    _, closed, behind = rest.rpartition(")")
    return rest.startswith(("(", " (")) and (not closed or behind.strip(" \t\r`")[:1] in ("", "#"))


def _make(scanned: ScannedText) -> RuleMatch | None:
    """Match two different signs of a makefile."""
    phony = next(scanned.line_starts(_PHONY), -1)
    variable = max(scanned.find(each) for each in _VARIABLES)
    signs = [at for at in (phony, variable, _assignment(scanned)) if at >= 0]
    if len(signs) < _MIN_SIGNS:
        signs += _recipe(scanned)
    return scanned.match(BUILD_TEXT, scanned.after(min(signs)), min(signs)) if len(signs) >= _MIN_SIGNS else None


def _assignment(scanned: ScannedText) -> int:
    if scanned.words.isdisjoint(_ASSIGNED_WORDS):
        return -1
    for name in _ASSIGNED:
        for at in scanned.line_starts(name):
            rest = scanned.after(at + len(name.text)).lstrip()
            if rest.startswith(_ASSIGNS) and not rest.startswith("==") and not rest.rstrip().endswith(";"):
                return at
    return -1


def _recipe(scanned: ScannedText) -> list[int]:
    """Return the positions of the signs of a makefile: a target above a tab-indented command, and an automatic variable
    in the command. A shell script has similar arguments, but not below a target."""
    for at in scanned.occurrences(_RECIPE):
        line, command = scanned.before(at), scanned.after(at + len(_RECIPE.text))
        if _is_target(line) and not _is_mapping(command):
            start = at - len(line)
            is_automatic = _SHELL not in command and any(variable in command for variable in _AUTOMATIC)
            return [start, at] if is_automatic else [start]
    return []


def _is_target(line: str) -> bool:
    """Whether a single name precedes the colon; several names are mostly `case 1:` or `class A:`."""
    target, colon, _ = line.partition(":")
    name = target.rstrip()
    return bool(colon and name) and not any(map(str.isspace, name)) and name not in _NOT_TARGETS


def _is_mapping(command: str) -> bool:
    """Whether the line is YAML's `key: value`."""
    return command.partition(" ")[0].rstrip().endswith(":")


SFINAE_HEAVY = "SFINAE-heavy templates"
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
_MAX_DIAGNOSTICS = 2  # compiler diagnostics quote the constraints of a library that are not the subject


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
    return scanned.match(SFINAE_HEAVY, core[first].text.rstrip("<("), first)


def _count_constructs(text: str, kinds: frozenset[bytes]) -> int:
    """Count constructs by the shortest names, so that a longer name that contains one counts once."""
    names = sorted(kind.decode() for kind in kinds)
    stems = [name for name in names if not any(other != name and other in name for other in names)]
    # `requires` and `concept` also occur in comments and macros; as keywords they follow a space
    marks = [f" {stem}" if stem in ("requires", "concept") else stem for stem in stems]
    return sum(text.count(mark) for mark in (*marks, *_RESULTS))
