"""Commands of the operating system, and what says that they cannot be used here."""

import os
import shutil
import subprocess

import pytest


class CommandFailed(AssertionError):
    """With what it said."""


def run(*words: str) -> str:
    """What it says."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CommandFailed(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def need(*programs: str, root: bool = False) -> None:
    """Skips the test where one of them is missing."""
    reason = want_of(*programs, root=root)
    if reason:
        pytest.skip(reason)


def want_of(*programs: str, root: bool = False) -> str:
    """Why something cannot be done here; empty if it can."""
    missing = [each for each in programs if shutil.which(each) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    return "only root makes networks, mounts and cgroups" if root and os.geteuid() != 0 else ""
