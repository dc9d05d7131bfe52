"""The recorded results are complete, and about the pinned versions."""

import json
from itertools import chain
from pathlib import Path

from tests.clients import refusals
from tests.clients.steps import STEPS
from tests.clients.table import BENCHMARK, CLIENTS, LOAD_GENERATORS, RECORD, ClientRecord, read_records, with_records

_HERE = Path(__file__).parent
RECORDS = read_records(RECORD.read_text())


def test_every_client_took_every_step() -> None:
    assert {record.client for record in RECORDS} == set(chain(*CLIENTS.values()))
    for record in RECORDS:
        assert set(record.steps) == ({BENCHMARK} if record.client in LOAD_GENERATORS else set(STEPS)), record
        assert not [step for step, outcome in record.steps.items() if outcome.startswith("FAILED")], record


def test_every_refusal_is_recorded() -> None:
    recorded = refusals.read_refusals(refusals.RECORD.read_text())
    assert [(each.route, each.asked) for each in recorded] == [(route, asked) for route, asked, _ in refusals.CASES]


def test_records_are_about_the_pinned_versions() -> None:
    pins = dict(
        line.split("==") for file in _HERE.glob("*.txt") for line in file.read_text().splitlines() if "==" in line
    )
    pins |= json.loads((_HERE / "package.json").read_text())["dependencies"]
    assert {record.client: record.version for record in RECORDS} == {
        each: pins[each] for each in chain(*CLIENTS.values())
    }


def test_a_new_record_replaces_those_of_its_package() -> None:
    old = [ClientRecord("litellm", "1", use, "/", {"chat": "no"}) for use in ("a", "b")]
    other = ClientRecord("openai", "1", "a", "/", {"chat": "yes"})
    new = ClientRecord("litellm", "2", "a", "/", {"chat": "yes"})
    text = with_records(with_records("", [*old, other]), [new])
    assert read_records(text) == [other, new]
