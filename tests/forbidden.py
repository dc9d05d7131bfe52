"""Operations that a kernel forbids even to root, as in a container. CI permits a test to be skipped for no other
reason."""

import os

import pytest

NO_SKIP = "OCTET_NO_SKIP"
FORM = "OCTET_FAULTS_FORM"
"""`long` in `make faults`, which has the machine to itself; otherwise short."""
_BEGIN = "the machine forbids it: "


def forbidden(why: str) -> str:
    """Return the text as a reason to skip."""
    return _BEGIN + why


def may_skip(reason: str) -> bool:
    """Whether a test may be skipped for this reason. `make faults` permits no skip."""
    if os.environ.get(NO_SKIP) != "1":
        return True
    return _BEGIN in reason and os.environ.get(FORM) != "long"


def note_missing(reason: str) -> None:
    """Print that a part of a test is left out, or fail if nothing may be skipped."""
    if not may_skip(reason):
        pytest.fail(f"left out where nothing may be skipped: {reason}")
    print(f"left out: {reason}")
