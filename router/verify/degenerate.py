"""Degenerate text: an answer that no caller can use, whatever it was about. Every check is linear in the text.

A reason never quotes the answer: it is shown to other tenants, too."""

import re
import zlib
from collections import Counter, defaultdict, deque
from collections.abc import Container

from octet.terminal import pluralize

MOST_CHARACTERS = 8192  # the checks read the end of a longer answer
SHORTEST = 40  # characters; a shorter answer is only checked for emptiness
BLANK_TOKENS = 16  # a cut answer with so many tokens has room for text
_FEWEST_TURNS = 6  # repetitions of a unit that make a loop
_LONG_UNIT, _FEWEST_LONG_TURNS = 150, 2.9  # characters; in a cut answer, fewer repetitions of such a unit make a loop
_LOOP_SHARE = 0.5  # of a cut answer that its last loop covers
_STOPPED_LOOP_SHARE = 0.8  # the same for an answer that ended by itself, which may well contain a table or a ruler
_LONG_LOOP = 1000  # characters; a cut answer that ends in such a loop is degenerate, however it began
_LONG_DATA = 4000  # the same for a loop of digits or lines without letters, such as rows of zeros, in any answer
_LONG_SIGNS = 400  # the same for other signs; a shorter ruler is no loop
_LEAST_SIGNS = 200  # characters of interrupted loops of signs
_STRAY_LETTERS = 20  # a model that has collapsed into signs may still say a word or two
_GRAM = 4  # words
_FEWEST_WORDS = 40
_REPEATED_SHARE = 0.9  # of its n-grams that occur earlier in the answer
_LEAST_COMPRESSED, _LEAST_COMPRESSED_REPEATED = 0.04, 0.15  # compressed bytes for each byte
_FEW_WORDS, _FEW_WORDS_SHARE = 3, 0.05  # distinct words: a few, or this share of all
_FEW_SIGNS = 3  # distinct characters
_SPACES = frozenset(" \t\r\n")
_DIGITS_SHARE = 0.2  # tables of numbers repeat short phrases, too
_BROKEN_SHARE = 0.05
_FEWEST_BROKEN = 5
_FEWEST_LETTERS = 40
_FOREIGN_SHARE = 0.6
_MIXED_SHARE = 0.03
_FEWEST_MIXED = 4  # scripts
_ASKED_CHARACTERS = 1000  # at both ends of a question, where it may ask for a repetition
_NEAR = 40  # characters between what is to be repeated and the word that asks for it

_WORD = re.compile(r"\w+")
_RUN = re.compile(r"(.{1,16}?)\1{5,}", re.DOTALL)
_BROKEN = re.compile(r"[\ufffd\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f]")
_SCRIPTS = {
    "Latin": r"[A-Za-z\u00c0-\u024f]",
    "Greek": r"[\u0370-\u03ff]",
    "Cyrillic": r"[\u0400-\u052f]",
    "Armenian": r"[\u0530-\u058f]",
    "Hebrew": r"[\u0590-\u05ff]",
    "Arabic": r"[\u0600-\u06ff\u0750-\u077f]",
    "Devanagari": r"[\u0900-\u097f]",
    "Bengali": r"[\u0980-\u09ff]",
    "Tamil": r"[\u0b80-\u0bff]",
    "Telugu": r"[\u0c00-\u0c7f]",
    "Thai": r"[\u0e00-\u0e7f]",
    "Georgian": r"[\u10a0-\u10ff]",
    "Hangul": r"[\u1100-\u11ff\uac00-\ud7af]",
    "Han or Kana": r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]",
}
_LETTERS = {name: re.compile(pattern) for name, pattern in _SCRIPTS.items()}
_NAMES_LANGUAGE = re.compile(
    r"translat|languag|script|alphabet|unicode|übersetz|sprache|tradu|idioma|langue|"
    r"armenian|arab|persian|farsi|urdu|bengali|bulgar|chin|mandarin|kanton|canton|georgian|gree[kc]|griech|hebr|ivrit|"
    r"hindi|marathi|nepali|japan|kanji|hiragana|katakana|korea|hangul|macedon|mongol|russ|serb|tamil|telugu|thai|ukrain",
    re.IGNORECASE,
)
_ASKS_TO_REPEAT = re.compile(
    r"\brepeat|\btimes\b|\d ?[x×]\b|again and again|over and over|\bforever\b|\bendless|\bfill\b|\bcopies\b|wiederhol|"  # noqa: RUF001
    r"immer wieder|\d ?mal\b|répèt|repet|повтор|\bраз\b|重复|次|繰り返|回"  # noqa: RUF001
)
_NUMBER = re.compile(r"\d{1,9}")


def is_checked(answer: str, *, is_cut: bool, num_tokens: int, limit: int) -> bool:
    """Whether the check of the text shows anything. A short answer, such as a label, shows nothing. A blank one does
    if it had room for text: it ended by itself and `limit` allowed some, or it is long enough."""
    if len(answer.strip()) >= SHORTEST:
        return True
    if answer.strip():
        return False
    return _is_blank(answer, num_tokens) or (not is_cut and (not limit or limit >= BLANK_TOKENS))


def describe_degeneration(
    question: str, answer: str, *, is_cut: bool, num_tokens: int = 0, usual: Container[str] | None = None
) -> str:
    """Return what is wrong with the answer's text, whatever the question; empty if nothing is. `is_cut` means that the
    answer, of `num_tokens`, did not end by itself. `usual` are the scripts of earlier answers; None if too few are
    known."""
    if not answer.strip():
        return "it is empty" if not is_cut or _is_blank(answer, num_tokens) else ""
    text = answer[-MOST_CHARACTERS:].rstrip()
    if len(text) < SHORTEST:
        return ""
    return (
        _describe_broken(question, text)
        or _describe_loop(text, len(answer), is_cut=is_cut)
        or _describe_repetition(text)
        or _describe_scripts(question, text, usual)
    )


def is_asked_to_repeat(question: str, answer: str) -> bool:
    """Whether the question asks for the loop in which the answer ends, so that the answer shows nothing. A word that
    asks for a repetition must be near the words of the loop. If a number is near, too, it must be large enough."""
    text = answer[-MOST_CHARACTERS:].rstrip()
    unit, covered = find_loop(text, is_cut=True)
    if not unit:
        return False
    turn = text[-unit:].casefold().strip()
    words = set(_WORD.findall(text[-3 * unit :].casefold())[1:-1]) or {turn}  # without words that the ends cut
    ends = (question[:_ASKED_CHARACTERS], question[max(_ASKED_CHARACTERS, len(question) - _ASKED_CHARACTERS) :])
    asked, near = "\n".join(ends).casefold(), _NEAR + unit
    for found in _ASKS_TO_REPEAT.finditer(asked):
        place = asked[max(0, found.start() - near) : found.end() + near]
        numbers = [int(number) for number in _NUMBER.findall(place) if number not in words]
        if words.issubset(_WORD.findall(place)) and (not numbers or max(numbers) >= covered / unit / 2):
            return True
    return False


def find_loop(text: str, *, is_cut: bool = False) -> tuple[int, int]:
    """Return the length of the unit whose repetition covers most of the end of the text, and how many characters it
    covers; zeros if the end does not repeat. Linear, by the Z-function of the reversed text."""
    backward = text[::-1]
    size, best = len(backward), (0, 0)
    matches = [0] * size
    left = right = 0
    for start in range(1, size):
        length = min(right - start, matches[start - left]) if start < right else 0
        while start + length < size and backward[length] == backward[start + length]:
            length += 1
        matches[start] = length
        if start + length > right:
            left, right = start, start + length
        turns = _FEWEST_LONG_TURNS if is_cut and start >= _LONG_UNIT else _FEWEST_TURNS
        if length >= (turns - 1) * start and start + length > best[1]:
            best = (start, start + length)
    return best


def _is_blank(answer: str, num_tokens: int) -> bool:
    return not answer.strip() and (num_tokens >= BLANK_TOKENS or len(answer) >= SHORTEST)


def _describe_loop(text: str, whole: int, *, is_cut: bool) -> str:
    unit, covered = find_loop(text, is_cut=is_cut)
    share = covered / len(text) if whole > len(text) else covered / whole
    least = _LOOP_SHARE if is_cut else _STOPPED_LOOP_SHARE
    long = _longest_data(text[len(text) - unit :], text[: len(text) - covered], is_cut=is_cut)
    if covered >= max(SHORTEST, long) and (share >= least or (is_cut and covered >= max(_LONG_LOOP, long))):
        return f"a unit of {pluralize(unit, 'character')} repeats {covered // unit} times"
    rest, sizes = _RUN.sub("", text), Counter[int]()  # characters of runs by how many of their kind are needed
    for run in (found[0] for found in _RUN.finditer(text) if len(found[0]) >= SHORTEST):
        needed = _longest_data(run, rest, is_cut=is_cut)
        sizes[_LEAST_SIGNS if is_cut and needed == _LONG_SIGNS else needed] += len(run)
    counted = sum(size for needed, size in sizes.items() if size >= needed)
    return "short units repeat" if counted and counted >= least * len(text) else ""


def _longest_data(unit: str, rest: str, *, is_cut: bool) -> int:
    """Return how many characters a loop of the unit may have because it may be data: a table without content, an array
    of zeros, a ruler. 0 if it is none: it has letters, or the answer has nearly nothing else up to its cut."""
    if any(map(str.isalpha, unit)):
        return 0
    is_data, letters = "\n" in unit or any(map(str.isdigit, unit)), sum(map(str.isalpha, rest))
    if is_cut and letters <= (0 if is_data else _STRAY_LETTERS):
        return 0
    return _LONG_DATA if is_data else _LONG_SIGNS


def _describe_repetition(text: str) -> str:
    """Find loops that vary a little, as sampling makes them."""
    signs = set(text) - _SPACES
    if len(signs) <= _FEW_SIGNS and any(map(str.isalpha, signs)):
        return f"it consists of {len(signs)} different characters"
    words = _WORD.findall(text)
    if len(words) < _FEWEST_WORDS:
        return ""
    raw = text.encode("utf-8", "replace")
    compressed = len(zlib.compress(raw)) / len(raw)
    has_numbers = sum(map(str.isdigit, text)) >= _DIGITS_SHARE * len(text)
    if compressed < _LEAST_COMPRESSED and not has_numbers:
        return "the text has almost no information"
    grams = list(zip(*(words[shift:] for shift in range(_GRAM)), strict=False))
    is_repeated = 1 - len(set(grams)) / len(grams) >= _REPEATED_SHARE and compressed < _LEAST_COMPRESSED_REPEATED
    is_poor = len(set(words)) <= max(_FEW_WORDS, _FEW_WORDS_SHARE * len(words))
    return "a few phrases repeat" if (is_repeated or is_poor) and not has_numbers else ""


def _describe_broken(question: str, text: str) -> str:
    num_broken = len(_BROKEN.findall(text))
    if num_broken < max(_FEWEST_BROKEN, _BROKEN_SHARE * len(text)) or _BROKEN.search(question):
        return ""
    return "its bytes are no text"


def count_scripts(text: str) -> Counter[str]:
    """Count the letters of each script at the end of the text."""
    return Counter({name: len(letters.findall(text[-MOST_CHARACTERS:])) for name, letters in _LETTERS.items()})


def _describe_scripts(question: str, text: str, usual: Container[str] | None) -> str:
    if text.isascii():
        return ""
    counts = count_scripts(text)
    num_letters = counts.total()
    asked = count_scripts(question)
    foreign = [name for name in counts if name != "Latin" and not asked[name] and counts[name]]
    if num_letters < _FEWEST_LETTERS or not foreign or _NAMES_LANGUAGE.search(question[:MOST_CHARACTERS]):
        return ""
    mixed = [name for name in foreign if counts[name] >= _MIXED_SHARE * num_letters]
    if len(mixed) >= _FEWEST_MIXED:
        return f"letters of {len(mixed)} scripts are mixed"
    if usual is None:
        return ""
    strange = [name for name in foreign if name not in usual]
    if sum(counts[name] for name in strange) < _FOREIGN_SHARE * num_letters:
        return ""
    return f"it is in the wrong script: {max(strange, key=lambda name: counts[name])}"


class AnswerHistory:
    """The main scripts of the newest answers of each specialist's trusted lanes."""

    def __init__(self, most: int = 200, known: int = 20, share: float = 0.05) -> None:
        self._known = known
        self._share = share
        self._scripts = defaultdict[str, deque[str]](lambda: deque(maxlen=most))

    def usual(self, specialist: str) -> frozenset[str] | None:
        """Return the scripts of a share of its answers at least; None if too few answers are known."""
        known = self._scripts[specialist]
        if len(known) < self._known:
            return None
        return frozenset(name for name, times in Counter(known).items() if times >= self._share * len(known))

    def add(self, specialist: str, answer: str) -> None:
        """Add a healthy answer of a trusted lane. Others must not make their scripts usual."""
        (name, letters), *_ = [*count_scripts(answer).most_common(1)] if not answer.isascii() else [("Latin", 1)]
        if letters:
            self._scripts[specialist].append(name)
