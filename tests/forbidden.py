"""Skips for operations that the kernel forbids even to root, as in a container. CI permits no other skip."""

import os

import pytest

NO_SKIP = "OCTET_NO_SKIP"
FORM = "OCTET_FAULTS_FORM"
"""Environment variable that `make faults`, which has the machine to itself, sets to `long`. Without it, the tests run
in their short form."""
_BEGIN = "the machine forbids it: "


def forbidden(why: str) -> str:
    """Return the reason in the form that `may_skip` accepts."""
    return _BEGIN + why


def may_skip(reason: str) -> bool:
    """Return whether a test may be skipped for this reason. By default, any reason is accepted. With OCTET_NO_SKIP=1,
    only a reason from `forbidden` is accepted, and in `make faults` none is."""
    if os.environ.get(NO_SKIP) != "1":
        return True
    return _BEGIN in reason and os.environ.get(FORM) != "long"


def note_missing(reason: str) -> None:
    """Print why a part of a test is left out. Fail the test if `may_skip` rejects the reason."""
    if not may_skip(reason):
        pytest.fail(f"left out where nothing may be skipped: {reason}")
    print(f"left out: {reason}")
