"""C++ whose templates are constrained by what does and does not compile."""

from router.rules.finding import Finding, found
from router.rules.mark import marks
from router.rules.page import Page

KIND = "SFINAE-heavy templates"
_TEMPLATES = ("template<", "template <")
_TRICKS = (
    "enable_if enable_if_t __enable_if_t void_t __void_t declval decltype requires concept conditional conditional_t "
    "integral_constant bool_constant true_type false_type index_sequence make_index_sequence is_same is_same_v "
    "is_convertible is_convertible_v is_constructible is_constructible_v is_invocable is_invocable_v invoke_result "
    "invoke_result_t is_detected is_base_of is_base_of_v"
)
_TRICK_WORDS = frozenset(_TRICKS.encode().split())
_RESULTS = ("::type", "::value>", "::value &&", "sizeof...(")
_CORE = marks("enable_if", "void_t<", "declval<", " requires ", " requires(", "\nconcept ")
_MIN_TEMPLATES = 2
_MIN_TRICKS = 4
_MIN_KINDS = 2
_DENSITY = 500
"""Characters: heavy is at least one trick in so many."""
_MAX_DIAGNOSTICS = 2
"""A compiler's explanation of somebody's call quotes the library's constraints; it is not about them."""


def sfinae_heavy(page: Page) -> Finding | None:
    text = page.text
    kinds = _TRICK_WORDS & page.words
    if b"template" not in page.words or len(kinds) < _MIN_KINDS:
        return None
    core = {at: mark for mark in _CORE if (at := page.find(mark)) >= 0}
    if not core or sum(text.count(mark) for mark in _TEMPLATES) < _MIN_TEMPLATES:
        return None
    if text.count(": note: ") + text.count(": error: ") > _MAX_DIAGNOSTICS:
        return None
    if _num_tricks(text, kinds) < max(_MIN_TRICKS, len(text) / _DENSITY):
        return None
    first = min(core)
    return found(KIND, core[first].text.rstrip("<("), page, first)


def _num_tricks(text: str, kinds: frozenset[bytes]) -> int:
    """A longer name counts for the shorter one it begins with, not again for itself."""
    names = sorted(kind.decode() for kind in kinds)
    stems = [name for name in names if not any(other != name and other in name for other in names)]
    return sum(_count(text, stem) for stem in stems) + sum(text.count(result) for result in _RESULTS)


def _count(text: str, word: str) -> int:
    """Macros and comments speak of requirements and concepts as well; as keywords they stand behind a blank."""
    return text.count(f" {word}") if word in ("requires", "concept") else text.count(word)
