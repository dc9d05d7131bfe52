"""Where traces go, and what is no such place."""

import pytest

from octet.telemetry.endpoint import endpoint_of, trouble_with

VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"


def test_what_was_given_comes_before_what_is_configured_and_both_before_the_environment() -> None:
    environment = {VARIABLE: "http://e:3", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://t:4"}
    assert endpoint_of("http://g:1", "http://c:2", environment) == "http://g:1"
    assert endpoint_of(None, "http://c:2", environment) == "http://c:2"
    assert endpoint_of(None, "", environment) == "http://t:4"
    assert endpoint_of(None, "", {VARIABLE: "https://e:3"}) == "https://e:3"
    assert endpoint_of(None, "", {}) == ""
    assert endpoint_of("http://g:1", "", {"OTEL_SDK_DISABLED": "true"}) == ""


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
def test_a_mistake_is_told_by_the_name_of_whoever_made_it(endpoint: str, complaint: str) -> None:
    assert complaint in trouble_with(endpoint)
    with pytest.raises(ValueError, match=r"^--otlp must") as refused:
        endpoint_of(endpoint, "", {})
    assert "hunter2" not in str(refused.value), "what may be a password is repeated to nobody"
    with pytest.raises(ValueError, match=rf"^{VARIABLE} must"):
        endpoint_of(None, "", {VARIABLE: endpoint})
