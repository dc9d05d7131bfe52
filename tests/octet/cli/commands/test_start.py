"""A command imports only the packages it needs, and client commands import no server packages."""

import subprocess
import sys

from octet.cli import _COMMANDS, _SERVING_COMMANDS
from tests.octet.cli.chat.terminal import ROOT
from tests.octet.client.test_import import HEAVY

ASKING = sorted(set(" ".join(_COMMANDS.values()).split()) - _SERVING_COMMANDS)


def fresh(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)


def test_client_commands_load_no_serving_packages() -> None:
    """The parsers of all client commands are loaded in one process."""
    ended = fresh(f"""
import sys
from octet.cli import _parser
for name in {ASKING!r}:
    _parser(name)
print([name for name in sys.modules if name.partition(".")[0] in {HEAVY!r}])
""")
    assert (ended.returncode, ended.stdout) == (0, "[]\n"), ended.stderr


def test_help_loads_no_framework() -> None:
    ended = fresh("""
import sys
from octet.cli import whole_parser
whole_parser()
heavy = ("torch", "sklearn", "matplotlib", "transformers", "simulation.cluster")
print([name for name in heavy if name in sys.modules])
""")
    assert (ended.returncode, ended.stdout) == (0, "[]\n"), ended.stderr


def test_one_command_does_not_load_the_others() -> None:
    ended = fresh("import sys; from octet.cli import _parser; _parser('check'); sys.exit('grpc' in sys.modules)")
    assert ended.returncode == 0


def test_version_option_loads_no_command() -> None:
    ended = fresh("""
import sys
from octet.cli import main
try:
    main(["--version"])
finally:
    print([name for name in sys.modules if name.partition(".")[0] in ("grpc", "google", "bench", "router", "yaml")])
""")
    assert (ended.returncode, ended.stderr) == (0, "") and ended.stdout.splitlines()[1] == "[]"
