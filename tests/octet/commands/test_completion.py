"""`octet completion`: real shells offer what the commands have."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from octet.cli import main
from octet.completion.fish import fish_script
from octet.completion.posix import bash_script, zsh_script
from octet.completion.tree import Command
from tests.octet.chat.terminal import in_terminal
from tests.octet.commands.tree import root, tree

SCRIPTS = {"bash": bash_script, "zsh": zsh_script, "fish": fish_script}
HERE = [shell for shell in SCRIPTS if shutil.which(shell)]
"""bash is on every machine that runs these tests; the others where somebody has them."""
_BASH = """
source "$1"; shift
COMP_WORDS=(octet "$@"); COMP_CWORD=$#
_octet
printf '%s\\n' "${COMPREPLY[@]}"
"""
_ALL_BY_WALK = """
source "$1"
while IFS= read -r line; do
    words=(${=line})
    _octet_walk "${words[@]}"
    _octet_offer -; echo "$_octet_list"
    _octet_offer ""; echo "$_octet_list"
done
"""
"""For zsh, which splits nothing by itself; bash knows no ${=...}."""
_RUN_IN = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scripts")
    for shell, script in SCRIPTS.items():
        (folder / f"octet.{shell}").write_text(script(root()))
    return folder


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "ensemble.yaml").touch()
    (tmp_path / "with space.yaml").touch()
    (tmp_path / "adapters").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def bash(scripts: Path, *words: str) -> set[str]:
    """What is offered for the last word."""
    asked = ["bash", "--norc", "-c", _BASH, "bash", str(scripts / "octet.bash"), *words]
    ended = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert ended.stderr == ""
    return set(ended.stdout.split("\n")) - {""}


def fish(scripts: Path, line: str) -> set[str]:
    asked = f"source {scripts}/octet.fish; complete -C '{line}'"
    env = {**os.environ, "HOME": str(scripts), "XDG_CONFIG_HOME": str(scripts), "XDG_DATA_HOME": str(scripts)}
    ended = subprocess.run(
        [shutil.which("fish") or "", "-c", asked], capture_output=True, text=True, check=True, env=env
    )
    assert ended.stderr == ""
    return {each.partition("\t")[0] for each in ended.stdout.splitlines()}


@pytest.mark.parametrize("shell", sorted(SCRIPTS))
def test_the_command_prints_the_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert capsys.readouterr().out == SCRIPTS[shell](root())


def test_what_bash_offers(scripts: Path, files: Path) -> None:
    assert bash(scripts, "ge") == {"generate"}
    assert {"serve", "chat", "router", "completion"} <= bash(scripts, "")
    assert bash(scripts, "router", "t") == {"train", "tune"}
    assert bash(scripts, "router", "tune", "--by", "") == {"saves", "disagreements"}
    assert bash(scripts, "router", "tune", "--by", "=", "s") == {"saves"}
    assert bash(scripts, "router", "tune", "--by", "=") == {"saves", "disagreements"}
    assert bash(scripts, "completion", "") == {"bash", "zsh", "fish"}
    assert bash(scripts, "check", "") == {"ensemble.yaml", "with space.yaml", "adapters"}
    assert bash(scripts, "generate", "why?", "--body", "w") == {"with space.yaml"}
    assert bash(scripts, "bench", "kv", "--json", "") == set(), "its file may be left out, so it is a word like any"
    assert bash(scripts, "breaker", "hold", "stl", "--re") == {"--reason"}
    assert bash(scripts, "knobs", "--address", "set", "rel") == {"release"}, "set is an address there"
    assert bash(scripts, "knobs", "--address", "") == set()
    assert bash(scripts, "generate", "--nonsense", "--see") == {"--seed"}


def expected(command: Command) -> tuple[set[str], set[str]]:
    """Options; and words, where no option has been begun."""
    options = {flag for option in command.options for flag in option.flags}
    first = command.positionals[0].choices if command.positionals else ()
    return options, {below.path[-1] for below in command.commands} | set(first)


@pytest.mark.parametrize("shell", [shell for shell in HERE if shell != "fish"])
def test_every_option_and_every_word_is_offered(shell: str, scripts: Path) -> None:
    text = _ALL_BY_WALK if shell == "zsh" else _ALL_BY_WALK.replace("${=line}", "$line")
    asked = [shell, *(["-f"] if shell == "zsh" else ["--norc"]), "-c", text, shell, str(scripts / f"octet.{shell}")]
    if shell == "zsh":
        asked[3] = "compdef() { :; }\n" + text
    paths = "".join(f"{command.name}\n" for command in tree())
    ended = subprocess.run(asked, input=paths, capture_output=True, text=True, check=True)
    lines = ended.stdout.splitlines()
    assert len(lines) == 2 * len(tree())
    for number, command in enumerate(tree()):
        offered = set(lines[2 * number].split()), set(lines[2 * number + 1].split())
        assert offered == expected(command), command.name


@pytest.mark.parametrize("shell", [shell for shell in HERE if shell == "fish"])
def test_what_fish_offers(shell: str, scripts: Path, files: Path) -> None:
    assert fish(scripts, "octet gene") == {"generate"}
    assert fish(scripts, "octet router t") == {"train", "tune"}
    assert fish(scripts, "octet router tune --by ") == {"saves", "disagreements"}
    assert fish(scripts, "octet completion ") == {"bash", "zsh", "fish"}
    assert {"ensemble.yaml", "adapters/"} <= fish(scripts, "octet check ")
    assert "ensemble.yaml" in fish(scripts, "octet generate why --body ens")
    assert fish(scripts, "octet knobs --address set rel") == {"release"}


@pytest.mark.parametrize("shell", [shell for shell in HERE if shell == "zsh"])
def test_what_zsh_offers(shell: str, scripts: Path, files: Path) -> None:
    """Typed, with the key that completes."""
    env = {"ZDOTDIR": str(scripts), "PS1": "", "TERM": "dumb"}
    with in_terminal(shell, "-f", "-i", env=env, program=_RUN_IN) as terminal:
        terminal.type(f"cd {files}; autoload -U compinit; compinit -u -D; source {scripts}/octet.zsh; echo lo''aded\n")
        terminal.expect("loaded")
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
