"""`octet completion`: a script for the shell."""

import argparse
from collections.abc import Callable

from octet.completion.fish import fish_script
from octet.completion.posix import bash_script, zsh_script
from octet.completion.tree import tree_of

_SCRIPTS = {"bash": bash_script, "zsh": zsh_script, "fish": fish_script}
_DESCRIPTION = """\
Print a script that completes commands, options, their choices and file names.

  bash   source <(octet completion bash)       in ~/.bashrc
  zsh    source <(octet completion zsh)        in ~/.zshrc, behind compinit
  fish   octet completion fish > ~/.config/fish/completions/octet.fish

It knows the commands of the version that printed it: print it again after an
update.
"""


def add_completion_command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    whole: Callable[[], argparse.ArgumentParser],
) -> None:
    """`whole` has every command in it."""
    parser = commands.add_parser(
        "completion",
        description=_DESCRIPTION,
        help="a script that completes commands in bash, zsh or fish",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=sorted(_SCRIPTS), metavar="bash|zsh|fish")

    def run(arguments: argparse.Namespace) -> int:
        print(_SCRIPTS[arguments.shell](tree_of(whole())), end="")
        return 0

    parser.set_defaults(run=run)
