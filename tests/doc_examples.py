"""Reads the fenced blocks of the documentation, and runs shell commands as a reader would."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.patience import PATIENCE

ROOT = Path(__file__).parents[1]
DOCUMENTS = ("README.md", "sdk/typescript/README.md", *sorted(f"docs/{each.name}" for each in ROOT.glob("docs/*.md")))
BASH = shutil.which("bash") or "bash"
ADDRESS_VARIABLE = "OCTET_EXAMPLE_ADDRESS"  # the router that commands without --address call
_FENCE = re.compile(r"^( *)```([a-z]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_SHELL = ("", "console", "bash", "sh", "shell")
_PROGRAMS = (
    "octet",
    ".venv/bin/octet",
    "curl",
    "make",
    "pip",
    "python",
    "npm",
    "npx",
    "export",
    "source",
    "cd",
    "mkdir",
)
_SHELL_SYNTAX = re.compile(r"&&|\||<\(|>|\$|=\(|^source|^export")
_SERVERS = ("serve", "router", "specialist")


@dataclass(frozen=True)
class Example:
    """A fenced block, or a single command of one with the output that the page shows below it."""

    document: str
    line: int
    kind: str  # the language of the block; "command" for a command and "output" for a block without one
    text: str
    output: str = ""

    def __str__(self) -> str:
        return f"{self.document}:{self.line}: {self.text.splitlines()[0][:100]}"

    @property
    def words(self) -> list[str]:
        return shlex.split(self.text, comments=True)

    @property
    def is_plain_octet(self) -> bool:
        """Whether the command is one call of octet, which needs no shell."""
        return self.words[0].rpartition("/")[2] == "octet" and not _SHELL_SYNTAX.search(_unquoted(self.text))

    @property
    def starts_a_server(self) -> bool:
        return any(re.search(rf"octet {name}\b(?! tune| train)", self.text) for name in _SERVERS) or (
            self.text.startswith("make serve")
        )


def _unquoted(text: str) -> str:
    return re.sub(r"'[^']*'|\"[^\"$]*\"|#.*", "", text)


def read_examples(document: str) -> list[Example]:
    """Return the examples of a page in order: a command each of a shell block, every other block as a whole."""
    text = (ROOT / document).read_text()
    return [example for found in _FENCE.finditer(text) for example in _split(document, text, found)]


def _split(document: str, text: str, found: re.Match[str]) -> Iterator[Example]:
    indent, language, body = found.groups()
    first = text.count("\n", 0, found.start(3)) + 1
    body = re.sub(rf"^{indent}", "", body, flags=re.MULTILINE)
    if language not in _SHELL:
        yield Example(document, first, language, body)
        return
    has_prompts = re.search(r"^\$ ", body, re.MULTILINE) is not None
    if not has_prompts and not _is_command(body):
        yield Example(document, first, "output", body)
        return
    lines = body.splitlines()
    number = 0
    while number < len(lines):
        start, command = number, lines[number].removeprefix("$ ")
        while command.endswith("\\"):
            number += 1
            command = f"{command[:-1]}{lines[number]}"
        number += 1
        output = []
        while has_prompts and number < len(lines) and not lines[number].startswith("$ "):
            output.append(lines[number])
            number += 1
        if command.strip() and not command.startswith("#"):
            yield Example(document, first + start, "command", command, "\n".join(output))


def _is_command(text: str) -> bool:
    """Whether a block without prompts holds commands, not what one of them prints."""
    first, second, *_ = (*text.split(maxsplit=2), "", "")
    return (first in _PROGRAMS and second != "ready") or re.match(r"[a-z]+=\$", first) is not None


def matches(shown: str, printed: str, *, numbers: bool = False) -> bool:
    """Whether the output has the lines that the page shows, in order. `...` stands for any text, and a number before a
    unit of time or size, or any number if `numbers`, for any other number."""
    patterns = []
    for line in filter(None, map(str.strip, shown.splitlines())):
        pattern = re.sub(r"\bID\b", r"\\S+", re.sub(r"\\\.\\\.\\\.(\\ m?s)?", ".*", re.escape(line)))
        unit = "" if numbers else r"(?=\\ (?:ms|s|MiB|GiB)\b)"
        patterns.append(re.sub(rf"\d[\d,]*(?:\\\.\d+)?{unit}", r"[\\d.,]+", pattern))
    return re.search(r"[^\n]*\n(?:.*\n)*?[^\n]*".join(patterns), printed) is not None


def parse_octet(words: Sequence[str]) -> dict[str, object]:
    """Return the parsed options of a command. Raises SystemExit if the command is invalid."""
    from octet.cli import _parser  # the parser of this command alone

    return vars(_parser(words[0]).parse_args(list(words)))


def run_octet(words: Sequence[str]) -> int:
    """Run a command as printed, but call the router of the test, and serve on free ports."""
    from octet.cli import main

    options = parse_octet(words)
    more: list[str] = []
    if "address" in options and "--address" not in words and ADDRESS_VARIABLE in os.environ:
        more = ["--address", os.environ[ADDRESS_VARIABLE]]
    if words[0] == "serve":
        more = ["--port", "0", "--http-port", "0"]
    elif words[0] == "router" and "tune" not in words and "--config" in words:
        more = ["--port", "0"]
    return main([*words, *more])


def write_programs(folder: Path) -> None:
    """Write `octet` and `.venv/bin/octet` for a shell in this folder, and a curl that fails for an HTTP error."""
    source = "import sys\nfrom tests.doc_examples import run_octet\nsys.exit(run_octet(sys.argv[1:]))\n"
    programs = {
        "bin/octet": f"#!{sys.executable}\n{source}",
        ".venv/bin/octet": f"#!{sys.executable}\n{source}",
        "bin/curl": f'#!/bin/sh\nexec {shutil.which("curl")} --fail-with-body "$@"\n',
    }
    for name, text in programs.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)


def shell_environment(folder: Path, address: str) -> dict[str, str]:
    path = f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    home = str(folder / "home")
    given = {"PATH": path, "PYTHONPATH": str(ROOT), ADDRESS_VARIABLE: address, "HOME": home}
    return {**os.environ, **given}


def run_shell(text: str, folder: Path, environment: dict[str, str], seconds: float = PATIENCE) -> tuple[int, str]:
    """Return the exit status and the output of a command line."""
    command = [BASH, "-c", text]
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
    )
    return done.returncode, done.stdout
