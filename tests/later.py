"""A large module that few tests need is imported when it is first used."""

from importlib import import_module
from typing import Any


class Later:
    """Imported when an attribute is first used. For a type checker it is the module itself:

    if TYPE_CHECKING:
        import openai
    else:
        openai = Later("openai")
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith(("_", "pytest")):  # pytest looks these up on every object
            raise AttributeError(attribute)
        return getattr(import_module(self._name), attribute)
