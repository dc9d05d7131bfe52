"""What the words of a module stand for: `import torch as t` makes `t.load` mean `torch.load`."""

import ast
import builtins
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True, slots=True)
class Place:
    """A piece of a module, and the function or class it stands in; `<module>` for what stands in none."""

    node: ast.AST
    function: str


@dataclass(frozen=True, slots=True)
class Module:
    places: tuple[Place, ...]
    meanings: dict[str, str]
    """Of each imported name, wherever in the module it is imported."""

    @classmethod
    def read(cls, source: str) -> Self:
        places = tuple(_walk(ast.parse(source)))
        meanings: dict[str, str] = {}
        for place in places:
            meanings |= _imported(place.node)
        return cls(places, meanings)

    def meaning(self, node: ast.AST) -> str:
        """Dotted, from the module it was imported from; empty for what no import and no builtin explains."""
        if isinstance(node, ast.Attribute):
            whole = self.meaning(node.value)
            return f"{whole}.{node.attr}" if whole else ""
        if isinstance(node, ast.Name):
            return self.meanings.get(node.id) or (f"builtins.{node.id}" if hasattr(builtins, node.id) else "")
        return ""


def _walk(whole: ast.AST) -> Iterator[Place]:
    open_places = [Place(whole, "<module>")]
    while open_places:
        place = open_places.pop()
        yield place
        for child in ast.iter_child_nodes(place.node):
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
    """The modules, and what is taken out of them, that a statement asks for."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return []
