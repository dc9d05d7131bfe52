"""Product code follows the rules, and every rule detects its offences."""

import inspect
import re
from pathlib import Path

import pytest

from tests.security.exceptions import EXCEPTIONS, Allowed
from tests.security.rules import BY_MEANING, ROOMS, RULES, Offence, Rule, offences_below, offences_in

ROOT = Path(__file__).parents[2]

OFFENDERS = {
    "data_that_is_code": (
        "import pickle",
        "from pickle import loads as read",
        "def f():\n    import dill",
        "import cloudpickle as c",
        "from marshal import load",
        "import shelve",
        "import joblib.externals",
        "from torch import package",
        "import importlib\nimportlib.import_module('pickle')",
        "__import__('pickle')",
        "import sys\nsys.modules['pickle'].loads(x)",
        "from sys import modules\nmodules.get('_pickle')",
        "import torch\nload = torch.package.PackageImporter",
    ),
    "code_from_files": (
        "import torch\ntorch.load('x')",
        "import torch as t\nt.load('x')",
        "from torch import load as l\nl(1)",
        "from torch.serialization import load\nload(x)",
        "import torch.serialization as s\ns.load(x)",
        "import torch\nload = torch.load",
        "import torch\nread(how=torch.jit.load)",
    ),
    "text_that_runs": (
        "eval(x)",
        "f = exec",
        "compile(x, '', 'eval')",
        "import builtins\nbuiltins.eval(x)",
        "import runpy\nrunpy.run_path(p)",
    ),
    "unsafe_yaml": (
        "import yaml\nyaml.load(x)",
        "import yaml\nyaml.load(x, Loader=yaml.Loader)",
        "import yaml\nyaml.load_all(x, yaml.FullLoader)",
        "from yaml import unsafe_load\nunsafe_load(x)",
        "import yaml\nyaml.load(x, Loader=chosen)",
        "import yaml\ny = yaml.load",
        "import yaml\nyaml.Loader(x).get_single_data()",
        "from yaml.loader import UnsafeLoader as L\nL(x)",
    ),
    "shell": (
        "import os\nos.system('ls')",
        "from os import popen\npopen('ls')",
        "import subprocess\nsubprocess.run('ls', shell=True)",
        "from subprocess import run as go\ngo('ls', shell=wanted)",
        "import asyncio\nasyncio.create_subprocess_shell('ls')",
        "import os\nf = os.system",
        "import asyncio.subprocess\nasyncio.subprocess.create_subprocess_shell('ls')",
    ),
    "process": (
        "import subprocess\nsubprocess.Popen(['ls'])",
        "from os import execvp\nexecvp('ls', [])",
        "import subprocess\nrun = subprocess.run",
        "import asyncio\nasyncio.subprocess.create_subprocess_exec('ls')",
        "import os\nos.fork()",
        "from os import posix_spawn as f\nstart(f)",
    ),
    "import_by_name": (
        "__import__(name)",
        "from importlib import import_module as i\ni(name)",
        "find = __import__",
        "import importlib\nlist(map(importlib.import_module, names))",
    ),
    "native_library": (
        "import ctypes\nctypes.CDLL(path)",
        "import ctypes\nopen_it = ctypes.CDLL",
        "import torch.utils.cpp_extension\ntorch.utils.cpp_extension.load('x', files)",
        "from torch.utils import cpp_extension",
    ),
    "assertion": ("assert allowed", "def f():\n    assert x, 'why'"),
    "debug_only": ("if __debug__:\n    check()",),
    "named_temporary": ("import tempfile\ntempfile.mktemp()", "import tempfile\nname = tempfile.mktemp"),
    "fetch": (
        "import requests",
        "from urllib.request import urlopen",
        "from urllib import request",
        "import http.client",
        "import asyncio\nasyncio.open_connection('a', 1)",
        "import huggingface_hub",
        "from importlib import import_module\nimport_module('urllib.request')",
        "import asyncio\nconnect = asyncio.open_connection",
    ),
    "secret_compared": (
        "x = given == secret",
        "x = self.api_key != shown",
        "import hashlib\nx = hashlib.sha256(a).hexdigest() == b",
        "x = b == signature",
    ),
    "free_template": (
        "import jinja2\njinja2.Environment()",
        "from jinja2 import Template as T\nT(text)",
        "from jinja2.nativetypes import NativeEnvironment\nNativeEnvironment()",
        "import jinja2\nmake = jinja2.Environment",
    ),
    "archive": (
        "import zipfile\nzipfile.ZipFile(p).extractall(q)",
        "import shutil\nshutil.unpack_archive(p)",
        "take = z.extract",
    ),
    "unverified": (
        "import ssl\nssl._create_unverified_context()",
        "get(url, verify=False)",
        "from ssl import CERT_NONE\nmode = CERT_NONE",
    ),
    "everywhere": ("host = '0.0.0.0'", "bind('[::]')"),
}
INNOCENTS = (
    "model.eval()",
    "import re\nre.compile(x)",
    "import yaml\nyaml.load(x, Loader=yaml.SafeLoader)",
    "import yaml\nyaml.safe_load(x)",
    "from urllib.parse import urlsplit",
    "from importlib import import_module\nimport_module('octet.client')",
    "import ctypes\nctypes.CDLL(None)",
    "import ctypes\ndef f(libc: ctypes.CDLL) -> 'ctypes.CDLL': ...",
    "from jinja2 import Environment\ndef f() -> Environment: ...",
    "import sys\nsys.modules['octet.cli']",
    "from hmac import compare_digest\ncompare_digest(secret, given)",
    "x = secret is None",
    "x = api_key == ''",
    "from starlette.requests import Request",
    "import tempfile\ntempfile.mkdtemp()",
    "from jinja2.sandbox import ImmutableSandboxedEnvironment\nImmutableSandboxedEnvironment()",
)


def test_product_code_follows_the_rules_and_every_exception_is_needed() -> None:
    """All code is checked in a single test, because reading the code takes long."""
    found = offences_below(ROOT)
    allowed = {_place(each) for each in EXCEPTIONS}
    assert [str(offence) for offence in found if _place(offence) not in allowed] == []
    needed = {_place(offence) for offence in found}
    assert [each for each in EXCEPTIONS if _place(each) not in needed] == []
    assert len(allowed) == len(EXCEPTIONS)
    assert all(len(each.reason.split()) >= 3 for each in EXCEPTIONS)


def test_every_rule_has_offenders() -> None:
    assert sorted(OFFENDERS) == sorted(RULES)


@pytest.mark.parametrize("rule", RULES)
def test_rule_detects_its_offenders(rule: str) -> None:
    for source in OFFENDERS[rule]:
        assert rule in {offence.rule for offence in offences_in(source, "router/planted.py")}, source


@pytest.mark.parametrize("rule", BY_MEANING)
def test_rules_by_meaning_ignore_names_without_meaning(rule: Rule) -> None:
    assert re.search(r"\.(id|attr)\b", inspect.getsource(rule)) is None


@pytest.mark.parametrize("source", INNOCENTS)
def test_similar_but_harmless_code_is_accepted(source: str) -> None:
    assert offences_in(source, "router/planted.py") == []


def test_offender_is_found_in_every_package(tmp_path: Path) -> None:
    for room in ROOMS:
        folder = tmp_path / room / "deep" / "er"
        folder.mkdir(parents=True)
        (folder / "planted.py").write_text("class Kept:\n    def read(self):\n        import pickle\n")
    offences = offences_below(tmp_path)
    assert {(each.rule, each.function) for each in offences} == {("data_that_is_code", "Kept.read")}
    assert {each.file for each in offences} == {f"{room}/deep/er/planted.py" for room in ROOMS}


def test_bench_may_fetch_but_not_unpickle() -> None:
    assert offences_in("import http.client, subprocess\nsubprocess.run(['ls'])", "bench/planted.py") == []
    assert offences_in("import pickle", "bench/planted.py") != []


def _place(each: Offence | Allowed) -> tuple[str, str, str]:
    return each.rule, each.file, each.function
