"""`octet completion` in real shells."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from octet.cli import main, whole_parser
from octet.cli.completion import completion_script
from tests.octet.cli.chat.terminal import in_terminal
from tests.octet.cli.commands.tree import CommandNode, tree

SHELLS = ("bash", "zsh", "fish")
HERE = [shell for shell in SHELLS if shutil.which(shell)]
"""The shells that are installed. bash always is; the others may be missing."""
_BASH = """
source "$1"; shift
COMP_WORDS=(octet "$@"); COMP_CWORD=$#
_octet
printf '%s\\n' "${COMPREPLY[@]}"
"""
_BASH_ALL = """
source "$1"
while IFS= read -r path; do
    for last in - ""; do
        COMP_WORDS=(octet $path "$last"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMPREPLY=()
        _octet
        echo "${COMPREPLY[@]}"
    done
done
"""
_FISH_ALL = """
source $argv[1]
while read -l line
    echo (complete -C "octet $line --" | string replace -r '\\t.*' '')
    echo (complete -C "octet $line " | string replace -r '\\t.*' '')
end
"""
_ZSH_ALL = """
compdef() { :; }
_describe() { print -r -- ${${(P)2}%%:*}; }
source "$1"
while IFS= read -r path; do
    print -r -- ${(pj:\\t:)${(P)${:-${path}_options}}}
    (( $+functions[${path}_commands] )) && ${path}_commands || print
done
"""
"""Prints the argument specifications and the subcommands of each command."""
_ZSH_OPTION = re.compile(r"(?:\(.*?\))?\*?(-[\w-]+)")
_ZSH_CHOICES = re.compile(r":.*:\((.*)\)")
_RUN_IN = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scripts")
    for shell in SHELLS:
        (folder / f"octet.{shell}").write_text(completion_script(whole_parser(), shell))
    return folder


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "ensemble.yaml").touch()
    (tmp_path / "with space.yaml").touch()
    (tmp_path / "adapters").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def bash(scripts: Path, *words: str) -> set[str]:
    """Return the completions of the last word in bash."""
    asked = ["bash", "--norc", "-c", _BASH, "bash", str(scripts / "octet.bash"), *words]
    ended = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert ended.stderr == ""
    return set(ended.stdout.split("\n")) - {""}


def fish(scripts: Path, script: str, *arguments: str, given: str = "") -> list[str]:
    env = {**os.environ, "HOME": str(scripts), "XDG_CONFIG_HOME": str(scripts), "XDG_DATA_HOME": str(scripts)}
    asked = [shutil.which("fish") or "", "-c", script, *arguments]
    ended = subprocess.run(asked, input=given, capture_output=True, text=True, check=True, env=env)
    assert ended.stderr == ""
    return ended.stdout.splitlines()


@pytest.mark.parametrize("shell", SHELLS)
def test_the_command_prints_the_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert capsys.readouterr().out == completion_script(whole_parser(), shell)


def test_bash_completes_words(scripts: Path, files: Path) -> None:
    assert bash(scripts, "ge") == {"generate"}
    assert {"serve", "chat", "router", "completion"} <= bash(scripts, "")
    assert bash(scripts, "router", "t") == {"train", "tune"}
    assert bash(scripts, "router", "tune", "--by", "") == {"saves", "disagreements"}
    assert bash(scripts, "router", "tune", "--by", "=", "s") == {"saves"}
    assert bash(scripts, "router", "tune", "--by", "=") == {"saves", "disagreements"}
    assert bash(scripts, "completion", "") == {"bash", "zsh", "fish"}
    assert bash(scripts, "check", "") == {"ensemble.yaml", "with space.yaml", "adapters"}
    assert bash(scripts, "generate", "why?", "--body", "w") == {"with space.yaml"}
    assert bash(scripts, "bench", "kv", "--json", "") == set(), (
        "the value of --json is optional, so no value is completed"
    )
    assert bash(scripts, "breaker", "hold", "stl", "--re") == {"--reason"}
    assert bash(scripts, "knobs", "--address", "set", "rel") == {"release"}, "`set` is the value of --address"
    assert bash(scripts, "knobs", "--address", "=", "set", "rel") == {"release"}
    assert bash(scripts, "knobs", "--address", "") == set()
    assert bash(scripts, "generate", "--nonsense", "--see") == {"--seed"}


def expected(command: CommandNode) -> tuple[set[str], set[str]]:
    """Return two sets: the command's options, and its subcommands together with the choices of its first positional
    argument."""
    options = {flag for flags in command.options for flag in flags}
    first = command.positionals[0] if command.positionals else ()
    return options, {below.path[-1] for below in command.commands} | set(first)


def paths() -> str:
    return "".join(f"{command.name}\n" for command in tree())


def test_bash_offers_every_option_and_every_word(scripts: Path, tmp_path: Path) -> None:
    asked = ["bash", "--norc", "-c", _BASH_ALL, "bash", str(scripts / "octet.bash")]
    ended = subprocess.run(asked, input=paths(), capture_output=True, text=True, check=True, cwd=tmp_path)
    lines = ended.stdout.splitlines()
    assert len(lines) == 2 * len(tree())
    for number, command in enumerate(tree()):
        offered = set(lines[2 * number].split()), set(lines[2 * number + 1].split())
        assert offered == expected(command), command.name


@pytest.mark.parametrize("shell", [shell for shell in HERE if shell == "zsh"])
def test_zsh_offers_every_option_and_every_word(shell: str, scripts: Path) -> None:
    given = "".join(f"_shtab_{'_'.join(('octet', *command.path))}\n" for command in tree())
    asked = ["zsh", "-f", "-c", _ZSH_ALL, "zsh", str(scripts / "octet.zsh")]
    ended = subprocess.run(asked, input=given, capture_output=True, text=True, check=True)
    lines = ended.stdout.splitlines()
    assert len(lines) == 2 * len(tree()) and ended.stderr == ""
    for number, command in enumerate(tree()):
        arguments, words = lines[2 * number].split("\t"), set(lines[2 * number + 1].split())
        options = {found[1] for each in arguments if (found := _ZSH_OPTION.match(each))}
        choices = [found[1].split() for each in arguments if (found := _ZSH_CHOICES.fullmatch(each))]
        assert (options, words.union(*choices)) == expected(command), command.name


@pytest.mark.parametrize("shell", [shell for shell in HERE if shell == "fish"])
def test_fish_offers_every_option_and_every_word(shell: str, scripts: Path, files: Path) -> None:
    lines = fish(scripts, _FISH_ALL, str(scripts / "octet.fish"), given=paths())
    assert len(lines) == 2 * len(tree())
    for number, command in enumerate(tree()):
        options, words = expected(command)
        long = {flag for flag in options if flag.startswith("--")}
        assert (set(lines[2 * number].split()), words) == (long, words & set(lines[2 * number + 1].split())), (
            command.name
        )


@pytest.mark.parametrize("shell", [shell for shell in HERE if shell == "fish"])
def test_fish_completes_words(shell: str, scripts: Path, files: Path) -> None:
    def offered(line: str) -> set[str]:
        found = fish(scripts, f"source {scripts}/octet.fish; complete -C '{line}'")
        return {each.partition("\t")[0] for each in found}

    assert offered("octet gene") == {"generate"}
    assert offered("octet router t") == {"train", "tune"}
    assert offered("octet router tune --by ") == {"saves", "disagreements"}
    assert offered("octet completion ") == {"bash", "zsh", "fish"}
    assert {"ensemble.yaml", "adapters/"} <= offered("octet check ")
    assert "ensemble.yaml" in offered("octet generate why --body ens")
    assert offered("octet knobs --address set rel") == {"release"}, "`set` is the value of --address"


@pytest.mark.parametrize("shell", [shell for shell in HERE if shell == "zsh"])
def test_zsh_completes_words(shell: str, scripts: Path, files: Path) -> None:
    """The test types the words and the completion key into zsh."""
    env = {"ZDOTDIR": str(scripts), "PS1": "", "TERM": "dumb"}
    with in_terminal(shell, "-f", "-i", env=env, program=_RUN_IN) as terminal:
        terminal.type(f"cd {files}; autoload -U compinit; compinit -u -D; source {scripts}/octet.zsh; echo o''k\n")
        terminal.expect("ok")
        for typed, completed in (
            ("octet gene", "octet generate "),
            ("octet router tun", "octet router tune "),
            ("octet router tune --by sa", "--by saves "),
            ("octet router tune --by=dis", "--by=disagreements "),
            ("octet check ens", "octet check ensemble.yaml "),
        ):
            terminal.type(f"{typed}\t")
            terminal.expect(completed)
            terminal.type("\x15")
