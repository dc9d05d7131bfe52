"""A large module that few tests need: every worker collects all tests, and not every one of them runs those."""

from importlib import import_module
from typing import Any


class Later:
    """Imported when something of it is first asked for. For a type checker it is the module itself:

    if TYPE_CHECKING:
        import openai
    else:
        openai = Later("openai")
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith(("_", "pytest")):  # whoever looks for tests asks every object for such
            raise AttributeError(attribute)
        return getattr(import_module(self._name), attribute)
