"""Where a process takes calls: the handlers that gRPC would call."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class _Details:
    method: str
    invocation_metadata: tuple[tuple[str, str], ...] = ()


class Port:
    """Stands where a grpc.aio.Server would."""

    def __init__(self) -> None:
        self._generic: list[Any] = []
        self._known: dict[str, Any] = {}

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        self._generic.extend(handlers)

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """They are among the others already."""

    def find(self, method: str) -> Any:
        """A grpc.RpcMethodHandler; None where nobody serves it."""
        if method not in self._known:
            found = (handler.service(_Details(method)) for handler in self._generic)
            self._known[method] = next((each for each in found if each is not None), None)
        return self._known[method]
