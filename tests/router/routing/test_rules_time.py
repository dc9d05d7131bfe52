"""No text makes a detector slow: its work is linear in the length of the text."""

import re
from time import thread_time

import pytest

from router.routing.rules.detectors import DETECTORS
from router.routing.rules.text import ScannedText
from tests.router.routing import texts

MEGABYTE = 1_000_000
SECONDS = 0.2
"""Limit in seconds: far more than one scan takes, and far less than backtracking or repeated scans would take."""
PIECES = [
    "template<template<",
    "template <enable_if<",
    "#0 0x",
    "\n#1 ",
    "\n#1 (x) ",
    "==1== ",
    "\n==1==",
    "\n\t",
    "a:\n\t",
    "$(",
    "\nCXX ",
    "\nadd_library",
    "undefined reference to ",
    "Sanitizer: ",
    "ERROR: Sanitizer: ",
    ":1:1: runtime error",
    "(+0x1)[0x",
    "\n@ 0x",
    "\n1# ",
    "frame #1: ",
    "e",
    "\n",
    "\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}",
    "\N{SNOWMAN}\n",
    "\nld: ",
    "duplicate symbol ",
    "\n1# f() in ",
    "a:\n\tb $@",
    "\nproject (a) b",
]


ALL_WORDS = " ".join(
    word
    for cases in (texts.LINKER, texts.STACK_TRACE, texts.SANITIZER, texts.BUILD, texts.SFINAE)
    for text in cases.values()
    for word in re.findall(r"\w+", text)
)
"""Text with all words that occur in reports, but without a report."""


@pytest.mark.parametrize("piece", [*PIECES, ALL_WORDS], ids=[*(ascii(piece) for piece in PIECES), "words"])
def test_a_hostile_megabyte_is_scanned_quickly(piece: str) -> None:
    text = (piece * (MEGABYTE // len(piece) + 1))[:MEGABYTE]
    assert min(scan_seconds(text) for _ in range(3)) < SECONDS


def scan_seconds(text: str) -> float:
    began = thread_time()
    page = ScannedText(text)
    for detect in DETECTORS.values():
        detect(page)
    return thread_time() - began


@pytest.mark.parametrize("report", [texts.STACK_TRACE["gdb"], texts.SANITIZER["valgrind"], texts.BUILD["make"]])
def test_a_report_behind_a_megabyte_of_text_is_found(report: str) -> None:
    page = ScannedText("so it goes, on and on\n" * (MEGABYTE // 22) + report)
    assert any(detect(page) for detect in DETECTORS.values())
