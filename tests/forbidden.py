"""What a kernel does not let even root do, as in a container: the one reason for which CI lets a test skip."""

import os

import pytest

NO_SKIP = "OCTET_NO_SKIP"
FORM = "OCTET_FAULTS_FORM"
"""`long` in `make faults`, which has the machine for itself; otherwise short."""
_BEGIN = "the machine forbids it: "


def forbidden(why: str) -> str:
    """As a reason to skip."""
    return _BEGIN + why


def may_skip(reason: str) -> bool:
    """In `make faults` nothing at all may be left out."""
    if os.environ.get(NO_SKIP) != "1":
        return True
    return _BEGIN in reason and os.environ.get(FORM) != "long"


def note_missing(reason: str) -> None:
    """Print that a part of a test is left out, or fail where nothing may be skipped."""
    if not may_skip(reason):
        pytest.fail(f"left out where nothing may be skipped: {reason}")
    print(f"left out: {reason}")
