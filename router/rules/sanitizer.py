"""Reports of the sanitizers and of Valgrind's tools."""

from router.rules.finding import Finding, found
from router.rules.mark import Mark
from router.rules.page import Page

KIND = "a sanitizer's report"
_SANITIZER = Mark("Sanitizer: ")
_SEVERITIES = ("ERROR: ", "WARNING: ", "SUMMARY: ")
_RUNTIME_ERROR = Mark(": runtime error: ")
_DEADLY = Mark("Sanitizer:DEADLYSIGNAL")
_PROCESS = Mark("== ")
_PREFIX = "=="
_ENOUGH = 2


def sanitizer_report(page: Page) -> Finding | None:
    return _headed(page) or _deadly(page) or _undefined_behaviour(page) or _valgrind(page)


def _headed(page: Page) -> Finding | None:
    """`==1==ERROR: AddressSanitizer: heap-use-after-free ...`, and its kind."""
    for at in page.occurrences(_SANITIZER):
        before = page.before(at)
        for severity in _SEVERITIES:
            _, level, name = before.rpartition(severity)
            if level and name.isalpha() and page.after(at + len(_SANITIZER.text)).strip():
                return found(KIND, f"{severity}{name}Sanitizer", page, at)
    return None


def _deadly(page: Page) -> Finding | None:
    at = page.find(_DEADLY)
    return found(KIND, _DEADLY.text, page, at) if at >= 0 else None


def _undefined_behaviour(page: Page) -> Finding | None:
    """`file.cpp:3:9: runtime error: signed integer overflow`. Other languages' have no place in front."""
    for at in page.occurrences(_RUNTIME_ERROR):
        _, line, column = ("", "", *page.before(at).split(":"))[-3:]
        if line.isdecimal() and column.isdecimal():
            return found(KIND, "runtime error", page, at)
    return None


def _valgrind(page: Page) -> Finding | None:
    """Lines that begin with the process between double equals signs: `==4711== Invalid read of size 4`."""
    lines = [at for at in page.occurrences(_PROCESS) if _process(page, at)]
    if len(lines) < _ENOUGH:
        return None
    return found(KIND, f"=={_process(page, lines[0])}==", page, lines[0])


def _process(page: Page, at: int) -> str:
    """Its number, where nothing else stands before the second pair of signs."""
    head, prefix, number = page.before(at).rpartition(_PREFIX)
    return number if prefix and not head.strip(" >|") and number.isdecimal() else ""
