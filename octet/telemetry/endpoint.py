"""Where traces go."""

from collections.abc import Mapping
from importlib.util import find_spec
from urllib.parse import urlsplit

_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_DISABLED = "OTEL_SDK_DISABLED"
_NEEDED = "opentelemetry.exporter.otlp.proto.grpc"
_SHAPE = "must be http://HOST:PORT or https://HOST:PORT"


def endpoint_of(given: str | None, configured: str, environment: Mapping[str, str]) -> str:
    """Where traces go: what was given, else what is configured, else what the environment says; empty for nowhere.

    Raises ValueError for what is no such place, or cannot be used here.
    """
    named = [("--otlp", given or ""), ("telemetry.otlp", configured)]
    named += [(name, environment.get(name, "")) for name in _VARIABLES]
    name, endpoint = next(((name, text) for name, text in named if text), ("", ""))
    if not endpoint or environment.get(_DISABLED, "").lower() == "true":
        return ""
    trouble = trouble_with(endpoint)
    if trouble:
        raise ValueError(f"{name} {trouble}")
    if not _is_there(_NEEDED):
        raise ValueError(f"{name} needs opentelemetry, which is not installed; get it with: pip install 'octet[otlp]'")
    return endpoint


def trouble_with(endpoint: str) -> str:
    """Why it is no place to send traces to; empty where it is one. Of what may be a password nothing is said."""
    try:
        url = urlsplit(endpoint)
        port = url.port
    except ValueError:
        return _SHAPE
    if url.scheme not in ("http", "https") or not url.hostname or port == 0:
        return _SHAPE
    if url.username is not None or url.password is not None:
        return "must not have a name or a password in it: OTEL_EXPORTER_OTLP_HEADERS is for those"
    if url.path not in ("", "/") or url.query or url.fragment:
        return "must not have a path: OTLP over gRPC knows none"
    return ""


def _is_there(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:
        return False
