"""Standardises texts of callers once, at reception, before they are routed and counted."""

import re
import unicodedata

_NUL, _REPLACEMENT, _BYTE_ORDER_MARK = "\0", "\ufffd", "\ufeff"
_BLANK_START = re.compile(rf"(?:[\s{_BYTE_ORDER_MARK}]*\n)?{_BYTE_ORDER_MARK}*")


def standardize(text: str) -> str:
    """Return the text with LF line ends and without a byte order mark at its start. NUL becomes U+FFFD. Every other
    character stays: Unicode normal forms and invisible characters can be what a question about code is about."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text.replace(_NUL, _REPLACEMENT).lstrip(_BYTE_ORDER_MARK)


def trim(text: str) -> str:
    """Standardise the text and remove blank lines at its start and whitespace at its end. The indentation of the first
    line stays, because it matters in code."""
    text = standardize(text)
    blank = _BLANK_START.match(text)
    return text[blank.end() if blank else 0 :].rstrip()


def is_unicode(text: str) -> bool:
    """Whether the text can be encoded: it has no half of a surrogate pair."""
    return not _SURROGATE.search(text)


_SURROGATE = re.compile("[\ud800-\udfff]")
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\ufdfa\ufdfb]"  # the last two are ligatures of whole sentences, which NFKC would write out
)
_MARK = r"[^\w\s\x00-\x7f]"  # all combining marks are among these characters
_LONG_RUN = re.compile(rf"({_MARK}{_MARK}(?<!{_MARK}{_MARK}{_MARK}){_MARK}{{28}}){_MARK}+")
_MAX_GROWTH = 2


def fold_unicode(text: str) -> str:
    """Return the text as routing reads it: in the Unicode form NFKC and without invisible characters, so that a
    non-breaking space or a full-width letter does not change a decision. ASCII stays as it is. Runs of combining marks
    are cut, because the time to sort a run is quadratic. A text that NFKC would more than double keeps its form."""
    if text.isascii():
        return text
    plain = _INVISIBLE.sub("", text)
    if unicodedata.is_normalized("NFKC", plain):  # takes linear time, because a run that is out of order is not normal
        return plain
    plain = _LONG_RUN.sub(r"\1", plain.replace("\uff9e", "\u3099").replace("\uff9f", "\u309a"))
    folded = unicodedata.normalize("NFKC", plain)
    return _LONG_RUN.sub(r"\1", folded) if len(folded) <= _MAX_GROWTH * len(plain) else plain
