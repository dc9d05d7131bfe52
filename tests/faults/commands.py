"""Run operating system commands, and report why a command cannot be used here."""

import os
import shutil
import subprocess

import pytest


class CommandFailed(AssertionError):
    """A command failed. The message has the command and its error output."""


def run(*words: str) -> str:
    """Run a command and return its output."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CommandFailed(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def need(*programs: str, root: bool = False) -> None:
    """Skip the test if a command is missing, or if the test needs root and does not have it."""
    reason = want_of(*programs, root=root)
    if reason:
        pytest.skip(reason)


def want_of(*programs: str, root: bool = False) -> str:
    """Return why the commands cannot be used here, or an empty string."""
    missing = [each for each in programs if shutil.which(each) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    return "only root makes networks, mounts and cgroups" if root and os.geteuid() != 0 else ""
