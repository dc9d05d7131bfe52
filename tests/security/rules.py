"""Rules for product code. Each rule checks one node of a module."""

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.security.names import IMPORTERS, Module

ROOMS = ("octet", "kvpool", "specialist", "admission", "router", "bench")
GENERATED = re.compile(r"_pb2\.py$")
Rule = Callable[[Module, ast.AST], bool]

_CODE_IN_DATA = frozenset(
    [
        "pickle",
        "_pickle",
        "cPickle",
        "dill",
        "cloudpickle",
        "marshal",
        "shelve",
        "joblib",
        "jsonpickle",
        "pandas",
        "torch.package",
    ]
)
_LOADS_CODE = frozenset(
    ["torch.load", "torch.serialization", "torch.jit.load", "torch.hub.load", "numpy.load", "numpy.fromregex"]
)
_RUNS_TEXT = frozenset(
    [
        "builtins.eval",
        "builtins.exec",
        "builtins.compile",
        "runpy.run_path",
        "runpy.run_module",
        "code.interact",
        "types.FunctionType",
        "types.CodeType",
    ]
)
_YAML = frozenset(["load", "load_all", "parse", "scan", "compose", "compose_all"])
_UNSAFE_YAML = frozenset(
    [
        "unsafe_load",
        "unsafe_load_all",
        "full_load",
        "full_load_all",
        "add_constructor",
        "add_multi_constructor",
        "Loader",
        "FullLoader",
        "UnsafeLoader",
        "CLoader",
        "CFullLoader",
        "CUnsafeLoader",
        "Constructor",
        "FullConstructor",
        "UnsafeConstructor",
    ]
)
_SAFE_LOADERS = frozenset(["yaml.SafeLoader", "yaml.CSafeLoader", "yaml.BaseLoader", "yaml.CBaseLoader"])
_SHELLS = frozenset(
    [
        "os.system",
        "os.popen",
        "subprocess.getoutput",
        "subprocess.getstatusoutput",
        "asyncio.create_subprocess_shell",
        "asyncio.subprocess.create_subprocess_shell",
        "pty.spawn",
    ]
)
_PROCESSES = re.compile(
    r"(subprocess\.(run|call|check_call|check_output|Popen)|asyncio\.(subprocess\.)?create_subprocess_exec|"
    r"os\.(exec|spawn|posix_spawn|fork)\w*|pty\.fork|multiprocessing\.[\w.]+)"
)
_LIBRARIES = frozenset(["ctypes.CDLL", "ctypes.PyDLL", "ctypes.cdll.LoadLibrary", "torch.ops.load_library"])
_BUILDS = frozenset(["torch.utils.cpp_extension"])
_NAMED_TEMPORARY = frozenset(["tempfile.mktemp", "os.tempnam", "os.tmpnam"])
_FETCHES = frozenset(
    [
        "requests",
        "urllib.request",
        "urllib3",
        "http.client",
        "httpx",
        "httpx2",
        "aiohttp",
        "websockets",
        "ftplib",
        "smtplib",
        "telnetlib",
        "xmlrpc",
        "huggingface_hub",
        "torch.hub",
        "torch.utils.model_zoo",
    ]
)
_FREE_TEMPLATES = frozenset(
    [
        "jinja2.Environment",
        "jinja2.Template",
        "jinja2.environment.Environment",
        "jinja2.environment.Template",
    ]
)
_NATIVE_TEMPLATES = frozenset(["jinja2.nativetypes"])
_CONNECTS = frozenset(["socket.create_connection", "asyncio.open_connection", "asyncio.open_unix_connection"])
_ARCHIVES = frozenset(["extract", "extractall", "unpack_archive"])
_UNVERIFIED = frozenset(["ssl._create_unverified_context", "ssl._create_stdlib_context", "ssl.CERT_NONE"])
_EVERYWHERE = frozenset({"0.0.0.0", "::", "[::]"})  # noqa: S104  # what is looked for
_SECRET = re.compile(
    r"(^|_)(secret|passwords?|passwd|api_key|bearer|authorization|credentials?|signature|hmac|mac)($|_)"
)
_DIGESTS = frozenset({"digest", "hexdigest"})


# Mentioning a forbidden name is an offence: a function that is passed on by name is called elsewhere.


def data_that_is_code(module: Module, node: ast.AST) -> bool:
    return _is_of(module, node, _CODE_IN_DATA)


def code_from_files(module: Module, node: ast.AST) -> bool:
    return _is_of(module, node, _LOADS_CODE)


def text_that_runs(module: Module, node: ast.AST) -> bool:
    return module.mentioned(node) in _RUNS_TEXT


def unsafe_yaml(module: Module, node: ast.AST) -> bool:
    """Return whether YAML is loaded without a safe loader. A function that takes a loader must be called directly, with
    a safe one."""
    if not isinstance(node, ast.Call):
        return _of_yaml(module.mentioned(node)) in _UNSAFE_YAML or _of_yaml(module.handed_on(node)) in _YAML
    if _of_yaml(module.meaning(node.func)) not in _YAML:
        return False
    loaders = [keyword.value for keyword in node.keywords if keyword.arg == "Loader"] or node.args[1:2]
    return not loaders or module.meaning(loaders[0]) not in _SAFE_LOADERS


def shell(module: Module, node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return module.mentioned(node) in _SHELLS
    requested = [keyword.value for keyword in node.keywords if keyword.arg == "shell"]
    return bool(requested) and not (isinstance(requested[0], ast.Constant) and requested[0].value is False)


def process(module: Module, node: ast.AST) -> bool:
    return _PROCESSES.fullmatch(module.mentioned(node)) is not None


def import_by_name(module: Module, node: ast.AST) -> bool:
    """Return whether a module is imported by a computed name. Literal names are treated like import statements."""
    if not isinstance(node, ast.Call):
        return module.handed_on(node) in IMPORTERS
    is_named = bool(node.args) and isinstance(node.args[0], ast.Constant)
    return module.meaning(node.func) in IMPORTERS and not is_named


def native_library(module: Module, node: ast.AST) -> bool:
    """Return whether a native library is loaded. `CDLL(None)`, the C library of the process itself, is permitted."""
    if _is_of(module, node, _BUILDS) or module.handed_on(node) in _LIBRARIES:
        return True
    if not isinstance(node, ast.Call) or module.meaning(node.func) not in _LIBRARIES:
        return False
    return not (node.args and isinstance(node.args[0], ast.Constant) and node.args[0].value is None)


def assertion(_module: Module, node: ast.AST) -> bool:
    """Return whether the node is an assertion. `python -O` removes assertions, so product code must not rely on
    them."""
    return isinstance(node, ast.Assert)


def debug_only(_module: Module, node: ast.AST) -> bool:
    """Return whether the node is `__debug__`. `python -O` removes the code under `if __debug__`."""
    return isinstance(node, ast.Name) and node.id == "__debug__"


def named_temporary(module: Module, node: ast.AST) -> bool:
    return module.mentioned(node) in _NAMED_TEMPORARY


def fetch(module: Module, node: ast.AST) -> bool:
    return _is_of(module, node, _FETCHES) or module.mentioned(node) in _CONNECTS


def secret_compared(module: Module, node: ast.AST) -> bool:
    """Return whether a secret is compared byte by byte. The duration of such a comparison reveals how many bytes are
    correct."""
    if not isinstance(node, ast.Compare):
        return False
    sides = [node.left, *node.comparators]
    if not all(isinstance(how, ast.Eq | ast.NotEq) for how in node.ops) or any(_is_plain(side) for side in sides):
        return False
    return any(_is_secret(side) for side in sides)


def free_template(module: Module, node: ast.AST) -> bool:
    return module.mentioned(node) in _FREE_TEMPLATES or _is_of(module, node, _NATIVE_TEMPLATES)


def archive(_module: Module, node: ast.AST) -> bool:
    """Return whether an archive is unpacked. The members of an archive can be written to any path."""
    return isinstance(node, ast.Attribute) and node.attr in _ARCHIVES


def unverified(module: Module, node: ast.AST) -> bool:
    if isinstance(node, ast.keyword):
        return (
            node.arg in ("verify", "check_hostname") and isinstance(node.value, ast.Constant) and not node.value.value
        )
    return module.mentioned(node) in _UNVERIFIED


def everywhere(_module: Module, node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in _EVERYWHERE


class _Meaning(ast.AST):
    """A placeholder in `_LOOKS_AT` for every name that resolves to an import or a builtin. A rule that depends on the
    spelling of a name must list `ast.Name` or `ast.Attribute` instead."""


_MODULES = (ast.Import, ast.ImportFrom, ast.Call, ast.Subscript, _Meaning)
"""Node types that can mention a module, in any position."""
_LOOKS_AT: Mapping[Rule, tuple[type[ast.AST], ...]] = {
    data_that_is_code: _MODULES,
    code_from_files: _MODULES,
    text_that_runs: (_Meaning,),
    unsafe_yaml: (ast.Call, _Meaning),
    shell: (ast.Call, _Meaning),
    process: (_Meaning,),
    import_by_name: (ast.Call, _Meaning),
    native_library: _MODULES,
    assertion: (ast.Assert,),
    debug_only: (ast.Name,),
    named_temporary: (_Meaning,),
    fetch: _MODULES,
    secret_compared: (ast.Compare,),
    free_template: _MODULES,
    archive: (ast.Attribute,),
    unverified: (ast.keyword, _Meaning),
    everywhere: (ast.Constant,),
}
RULES = tuple(rule.__name__ for rule in _LOOKS_AT)
_OF_SERVING = frozenset({process, fetch})
"""Rules that do not apply to the bench, which may start and call other servers."""
_BY_KIND: dict[type[ast.AST], list[Rule]] = {}
for _rule, _kinds in _LOOKS_AT.items():
    for _kind in _kinds:
        _BY_KIND.setdefault(_kind, []).append(_rule)
BY_MEANING = tuple(_BY_KIND[_Meaning])


@dataclass(frozen=True, slots=True, order=True)
class Offence:
    rule: str
    file: str
    function: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.rule} in {self.function}"


def offences_in(source: str, file: str) -> list[Offence]:
    module = Module.read(source)
    is_bench = file.startswith("bench/")
    return [
        Offence(rule.__name__, file, place.function, getattr(place.node, "lineno", 0))
        for place in module.places
        for rule in _rules_for(module, place.node)
        if not (is_bench and rule in _OF_SERVING) and rule(module, place.node)
    ]


def _rules_for(module: Module, node: ast.AST) -> Sequence[Rule]:
    rules = _BY_KIND.get(type(node), [])
    return [*rules, *BY_MEANING] if module.meaning(node) else rules


def offences_below(root: Path) -> list[Offence]:
    """Return the offences in all packages."""
    return [
        offence
        for room in ROOMS
        for path in sorted((root / room).rglob("*.py"))
        if not GENERATED.search(path.name)
        for offence in offences_in(path.read_text(), str(path.relative_to(root)))
    ]


def _is_of(module: Module, node: ast.AST, names: frozenset[str]) -> bool:
    """Return whether the node imports or mentions one of the names, or something inside one of them."""
    found = (module.mentioned(node), *module.asked_for(node))
    return any(_is_below(name, names) for name in found)


def _of_yaml(name: str) -> str:
    """Return the last part of a name from any module of PyYAML, or an empty string for other names."""
    package, _, rest = name.partition(".")
    return rest.rpartition(".")[2] if package == "yaml" else ""


def _is_below(name: str, modules: frozenset[str]) -> bool:
    parts = name.split(".")
    return any(".".join(parts[:count]) in modules for count in range(1, len(parts) + 1))


def _is_plain(node: ast.AST) -> bool:
    """Return whether the node is a constant other than a non-empty string. Comparisons with it are permitted."""
    return isinstance(node, ast.Constant) and (node.value is None or not isinstance(node.value, str) or not node.value)


def _is_secret(node: ast.AST) -> bool:
    """Return whether the node's name sounds like a secret, or the node is a call that returns a digest."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr in _DIGESTS
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return _SECRET.search(name.lower()) is not None
