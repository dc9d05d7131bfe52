"""Deferred imports of large modules that few tests need."""

from importlib import import_module
from typing import Any


class Later:
    """A module that is imported when an attribute is first used. A type checker sees the module itself:

    if TYPE_CHECKING:
        import openai
    else:
        openai = Later("openai")
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith(("_", "pytest")):  # pytest looks these names up on every object it collects
            raise AttributeError(attribute)
        return getattr(import_module(self._name), attribute)
