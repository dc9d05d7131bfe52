"""The key that a caller shows with every call, and where it must not be shown."""

import ipaddress
from collections.abc import Callable, Mapping
from typing import Any

VARIABLE = "OCTET_API_KEY"
_LOCAL = ("unix:", "unix-abstract:")


class ApiKey:
    """Shows itself to nobody but the server."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        """Raises ValueError for what no header can carry."""
        if not text or not text.isascii() or not text.isprintable() or " " in text:
            raise ValueError("an API key is one word of printable ASCII characters")
        self._text = text

    def __repr__(self) -> str:
        return "ApiKey(...)"

    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self._text}"),)


def api_key_for(
    given: str | None, environment: Mapping[str, str], address: str, *, encrypted: bool, insecure: bool
) -> ApiKey | None:
    """What is given before what the environment says; None for none. Raises ValueError where it would be sent to
    another machine in the clear."""
    text = environment.get(VARIABLE, "").strip() if given is None else given.strip()
    if not text and given is None:
        return None
    if not (encrypted or insecure or is_local(address)):
        raise ValueError(
            f"the API key would be sent to {address} in the clear: name the server's CA for TLS, or say that the way "
            "is safe without (insecure=True, --insecure)"
        )
    return ApiKey(text)


def is_local(address: str) -> bool:
    """On this machine."""
    if address.startswith(_LOCAL):
        return True
    host = address.removeprefix("dns:///").removeprefix("ipv4:").removeprefix("ipv6:").rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class KeyedChannel:
    """A channel whose every call shows the key."""

    def __init__(self, channel: Any, key: ApiKey) -> None:
        self._channel = channel
        self._metadata = key.metadata()

    def unary_unary(self, *arguments: Any) -> Callable[..., Any]:
        return self._keyed(self._channel.unary_unary(*arguments))

    def unary_stream(self, *arguments: Any) -> Callable[..., Any]:
        return self._keyed(self._channel.unary_stream(*arguments))

    def close(self) -> Any:
        """To be awaited where the channel is of asyncio's."""
        return self._channel.close()

    def _keyed(self, method: Any) -> Callable[..., Any]:
        def call(message: Any, *, timeout: float | None = None, metadata: tuple[tuple[str, str], ...] = ()) -> Any:
            return method(message, timeout=timeout, metadata=(*metadata, *self._metadata))

        return call
