"""Valid and invalid endpoints for traces."""

import pytest

from octet.telemetry.trace_export import otlp_endpoint_error, resolve_otlp_endpoint

VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"


def test_option_precedes_configuration_and_configuration_precedes_environment() -> None:
    environment = {VARIABLE: "http://e:3", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://t:4"}
    assert resolve_otlp_endpoint("http://g:1", "http://c:2", environment) == "http://g:1"
    assert resolve_otlp_endpoint(None, "http://c:2", environment) == "http://c:2"
    assert resolve_otlp_endpoint(None, "", environment) == "http://t:4"
    assert resolve_otlp_endpoint(None, "", {VARIABLE: "https://e:3"}) == "https://e:3"
    assert resolve_otlp_endpoint(None, "", {}) == ""
    assert resolve_otlp_endpoint("http://g:1", "", {"OTEL_SDK_DISABLED": "true"}) == ""


@pytest.mark.parametrize(
    ("endpoint", "complaint"),
    [
        ("collector:4317", "must be http://HOST:PORT"),
        ("grpc://collector:4317", "must be http://HOST:PORT"),
        ("http://", "must be http://HOST:PORT"),
        ("http://collector:99999", "must be http://HOST:PORT"),
        ("http://collector:0", "must be http://HOST:PORT"),
        ("http://[::1", "must be http://HOST:PORT"),
        ("http://me:hunter2@collector:4317", "OTEL_EXPORTER_OTLP_HEADERS"),
        ("http://collector:4318/v1/traces", "must not have a path"),
    ],
)
def test_an_invalid_endpoint_names_its_source(endpoint: str, complaint: str) -> None:
    assert complaint in otlp_endpoint_error(endpoint)
    with pytest.raises(ValueError, match=r"^--otlp must") as refused:
        resolve_otlp_endpoint(endpoint, "", {})
    assert "hunter2" not in str(refused.value), "the message must not repeat a possible password"
    with pytest.raises(ValueError, match=rf"^{VARIABLE} must"):
        resolve_otlp_endpoint(None, "", {VARIABLE: endpoint})
