"""The ensemble of three specialists in the documentation, with the demo model."""

import re
from pathlib import Path

import pytest

from octet import Client, NoSpecialist
from octet.cli import main
from tests.serve.ensemble import ROOT, serving

QUESTIONS = {
    "sql": "Write a query that joins orders and customers and groups by country.",
    "shell": "How do I list the five largest files below a folder?",
    "regex": "Write a pattern that matches a date such as 2024-05-17.",
}


def the_documented_ensemble() -> str:
    (example,) = re.findall(r"```yaml\n(name: shop\n.*?)```", (ROOT / "docs/configuration.md").read_text(), re.DOTALL)
    return str(example)


def test_an_ensemble_of_thirty_lines_works_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = the_documented_ensemble()
    assert len(config.splitlines()) <= 30
    file = tmp_path / "checked.yaml"
    file.write_text(config)
    assert main(["check", str(file)]) == 0
    assert "regex" in capsys.readouterr().out
    with serving(tmp_path, config) as served, Client(served.address) as client:
        for specialist, question in QUESTIONS.items():
            with client.stream(question, max_tokens=8, timeout=300) as answer:
                text = "".join(chunk.text for chunk in answer)
            assert text.strip()
            assert answer.receipt.specialist == specialist, answer.receipt.why
            assert answer.receipt.replica == f"{specialist}-0"
        assert client.infer("SELECT a FROM b; what is wrong?", max_tokens=4).receipt.decision.decided_by == (
            "select-statement"
        )
        assert client.infer("please", intent="query", max_tokens=4).receipt.specialist == "sql"
        with pytest.raises(NoSpecialist) as refused:
            client.infer("My grandmother's poem about the autumn wind made everybody cry at the wedding.")
        assert refused.value.receipt is not None and refused.value.receipt.distribution
