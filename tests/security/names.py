"""Resolve the names in a module: after `import torch as t`, `t.load` means `torch.load`."""

import ast
import builtins
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Self

IMPORTERS = frozenset(
    [
        "builtins.__import__",
        "importlib.import_module",
        "importlib.__import__",
        "importlib.reload",
        "importlib.util.spec_from_file_location",
        "importlib.machinery.SourceFileLoader",
        "pkgutil.resolve_name",
    ]
)
_LOADED = "sys.modules"
_LOOK_UPS = frozenset([f"{_LOADED}.get", f"{_LOADED}.__getitem__", f"{_LOADED}.pop"])
_SAYS_NOTHING = (ast.expr_context, ast.operator, ast.boolop, ast.unaryop, ast.cmpop)
"""Node types that contain no name. They are nearly half of all nodes."""
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True, slots=True)
class Place:
    """A node and the name of its enclosing function or class, `<module>` at the top level."""

    node: ast.AST
    function: str


@dataclass(frozen=True, slots=True)
class Module:
    places: tuple[Place, ...]
    meanings: dict[str, str]
    """The full name of each imported name, wherever in the module the import is."""
    called: frozenset[int]
    """Ids of nodes that are called directly instead of being passed on."""
    annotations: frozenset[int]
    """Ids of nodes within annotations, which are never called."""
    _known: dict[int, str] = field(default_factory=dict)
    """Cache of resolved names. All rules share it."""

    @classmethod
    def read(cls, source: str) -> Self:
        places = tuple(_walk(ast.parse(source)))
        meanings: dict[str, str] = {}
        for place in places:
            meanings |= _imported(place.node)
        called = frozenset(id(place.node.func) for place in places if isinstance(place.node, ast.Call))
        annotations = frozenset(id(each) for place in places for each in _annotations(place.node))
        return cls(places, meanings, called, annotations)

    def mentioned(self, node: ast.AST) -> str:
        """Return the full name that a node refers to, or an empty string if the node is not a name or is part of an
        annotation."""
        is_name = isinstance(node, ast.Name | ast.Attribute) and id(node) not in self.annotations
        return self.meaning(node) if is_name else ""

    def handed_on(self, node: ast.AST) -> str:
        """Return the full name that a node refers to, or an empty string if the node is called directly."""
        return "" if id(node) in self.called else self.mentioned(node)

    def asked_for(self, node: ast.AST) -> list[str]:
        """Return the modules that a node imports, passes to an importer as a literal, or looks up in `sys.modules`
        under a literal key."""
        if isinstance(node, ast.Call) and self.meaning(node.func) in IMPORTERS | _LOOK_UPS:
            return _texts(node.args[:1])
        if isinstance(node, ast.Subscript) and self.meaning(node.value) == _LOADED:
            return _texts([node.slice])
        return imports(node)

    def meaning(self, node: ast.AST) -> str:
        """Return the full dotted name of a node, or an empty string if the name is neither imported nor a builtin."""
        if not isinstance(node, ast.Attribute | ast.Name):
            return ""
        found = self._known.get(id(node))
        if found is None:
            found = self._known[id(node)] = self._looked_up(node)
        return found

    def _looked_up(self, node: ast.Attribute | ast.Name) -> str:
        if isinstance(node, ast.Attribute):
            whole = self.meaning(node.value)
            return f"{whole}.{node.attr}" if whole else ""
        return self.meanings.get(node.id) or (f"builtins.{node.id}" if hasattr(builtins, node.id) else "")


def _annotations(node: ast.AST) -> Iterator[ast.AST]:
    output = (getattr(node, "annotation", None), getattr(node, "returns", None))
    return (each for whole in output if isinstance(whole, ast.AST) for each in ast.walk(whole))


def _texts(nodes: Sequence[ast.AST]) -> list[str]:
    """Return the values of string literals."""
    return [each.value for each in nodes if isinstance(each, ast.Constant) and isinstance(each.value, str)]


def _walk(whole: ast.AST) -> Iterator[Place]:
    open_places = [Place(whole, "<module>")]
    while open_places:
        place = open_places.pop()
        yield place
        for child in ast.iter_child_nodes(place.node):
            if not isinstance(child, _SAYS_NOTHING):
                open_places.append(Place(child, _within(place.function, child)))


def _within(function: str, child: ast.AST) -> str:
    if not isinstance(child, _Function):
        return function
    return child.name if function == "<module>" else f"{function}.{child.name}"


def _imported(node: ast.AST) -> dict[str, str]:
    if isinstance(node, ast.Import):
        return {
            alias.asname or alias.name.partition(".")[0]: alias.name if alias.asname else alias.name.partition(".")[0]
            for alias in node.names
        }
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return {}


def imports(node: ast.AST) -> list[str]:
    """Return the modules and names that an import statement imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return []
