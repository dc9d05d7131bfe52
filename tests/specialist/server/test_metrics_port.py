"""A replica's own metrics port."""

import re
import urllib.request

import pytest

from tests.monitoring.exported import families
from tests.patience import PATIENCE
from tests.specialist.server.test_process import Process, start_generate


def test_command_serves_metrics_at_the_reported_address() -> None:
    process = Process(
        *("specialist", "--engine", "sim", "--port", "0", "--name", "writer", "--kv-blocks", "256"),
        *("--metrics-port", "0"),
    )
    try:
        line = process.stdout.readline()
        (url,) = re.findall(r"metrics at (http://127\.0\.0\.1:\d+/metrics)", line)
        assert start_generate(line, 8).rest()[0] == 0
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:  # noqa: S310  # on loopback
            found = {family.name: family for family in families(answer.read().decode())}
        ended = {sample.labels["reason"]: sample.value for sample in found["octet_replica_finished_requests"].samples}
        assert sum(ended.values()) == 1
        assert found["octet_replica_completion_tokens"].samples[0].value == 8
        for family in found.values():
            assert all(sample.labels["specialist"] == "writer" for sample in family.samples), family.name
    finally:
        process.popen.kill()
        process.popen.communicate()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--metrics-host", "127.0.0.1"), "add --metrics-port"),
        (("--metrics-port", "0", "--metrics-host", "0.0.0.0"), "--tls-client-ca"),  # noqa: S104
        (("--metrics-port", "70000"), "--metrics-port"),
    ],
)
def test_invalid_metrics_address_is_reported_before_start(options: tuple[str, ...], words: str) -> None:
    status, _, reported = Process("specialist", "--engine", "sim", "--port", "0", *options).rest()
    assert status == 2 and words in reported
