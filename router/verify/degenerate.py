"""Degenerate text: an answer that no caller can use, whatever it was about. Every check is linear in the text."""

import re
import zlib
from collections import Counter, defaultdict, deque
from collections.abc import Container

MOST_CHARACTERS = 8192  # the checks read the end of a longer answer
_SHORTEST = 40  # characters; a shorter answer is only checked for emptiness
_FEWEST_TURNS = 6  # repetitions of a unit that make a loop
_LOOP_SHARE = 0.5  # of a cut answer that its last loop covers
_STOPPED_LOOP_SHARE = 0.8  # the same for an answer that ended by itself, which may well contain a table or a ruler
_LONG_LOOP = 1000  # characters; a cut answer that ends in such a loop is degenerate, however it began
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
_QUOTED = 24  # characters of a unit that a reason quotes

_WORD = re.compile(r"\w+")
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
    r"\d{1,9}|repeat|times|again|over and over|forever|endless|fill|copies|rows?\b|wiederhol|immer wieder|mal\b|répèt|"
    r"repet|повтор|раз\b|重复|次|繰り返|回",
    re.IGNORECASE,
)


def describe_degeneration(question: str, answer: str, *, is_cut: bool, usual: Container[str] | None = None) -> str:
    """Return what is wrong with the answer's text, whatever the question; empty if nothing is. `is_cut` means that the
    answer did not end by itself. `usual` are the scripts of earlier answers; None if too few are known."""
    if not answer.strip():
        return "" if is_cut else "it is empty"
    text = answer[-MOST_CHARACTERS:].rstrip()
    if len(text) < _SHORTEST:
        return ""
    return (
        _describe_broken(question, text)
        or _describe_loop(text, len(answer), is_cut=is_cut)
        or _describe_repetition(text)
        or _describe_scripts(question, text, usual)
    )


def is_asked_to_repeat(question: str, answer: str) -> bool:
    """Whether the question asks for a repetition of what the answer repeats, so that the answer shows nothing."""
    unit = answer[-MOST_CHARACTERS:].rstrip()[-find_loop(answer[-MOST_CHARACTERS:].rstrip())[0] :].strip(" \t\n.,;:|-*")
    words = _WORD.findall(unit)[:_GRAM] or [unit]
    found = set(_WORD.findall(question[:MOST_CHARACTERS].casefold()))
    return bool(_ASKS_TO_REPEAT.search(question[:MOST_CHARACTERS])) and all(each.casefold() in found for each in words)


def find_loop(text: str) -> tuple[int, int]:
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
        if length >= (_FEWEST_TURNS - 1) * start and start + length > best[1]:
            best = (start, start + length)
    return best


def _describe_loop(text: str, whole: int, *, is_cut: bool) -> str:
    unit, covered = find_loop(text)
    share = covered / len(text) if whole > len(text) else covered / whole
    least = _LOOP_SHARE if is_cut else _STOPPED_LOOP_SHARE
    if covered < _SHORTEST or not (share >= least or (is_cut and covered >= _LONG_LOOP)):
        return ""
    shown = " ".join(text[-unit:].split())[:_QUOTED]
    return f"a short unit repeats: {shown!r}" if shown else "white space repeats"


def _describe_repetition(text: str) -> str:
    """Find loops that vary a little, as sampling makes them."""
    signs = set(text) - _SPACES
    if len(signs) <= _FEW_SIGNS and any(map(str.isalpha, signs)):
        return f"it consists of {len(signs)} characters: {' '.join(sorted(signs))}"
    words = _WORD.findall(text)
    if len(words) < _FEWEST_WORDS:
        return ""
    raw = text.encode("utf-8", "replace")
    compressed = len(zlib.compress(raw)) / len(raw)
    if compressed < _LEAST_COMPRESSED:
        return "the text has almost no information"
    grams = list(zip(*(words[shift:] for shift in range(_GRAM)), strict=False))
    is_repeated = 1 - len(set(grams)) / len(grams) >= _REPEATED_SHARE and compressed < _LEAST_COMPRESSED_REPEATED
    is_poor = len(set(words)) <= max(_FEW_WORDS, _FEW_WORDS_SHARE * len(words))
    has_numbers = sum(map(str.isdigit, text)) >= _DIGITS_SHARE * len(text)
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


class ScriptHistory:
    """The main scripts of each specialist's newest answers."""

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
        (name, letters), *_ = [*count_scripts(answer).most_common(1)] if not answer.isascii() else [("Latin", 1)]
        if letters:
            self._scripts[specialist].append(name)
