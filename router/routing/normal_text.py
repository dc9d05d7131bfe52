"""Standardises texts of callers once, at reception, before they are routed and counted."""

import re

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
