"""The examples, links and figures in the documentation are correct."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "sdk" / "typescript" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def example_in(document: str) -> str:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)
    return str(example)


def run_example(example: str, folder: Path) -> str:
    script = folder / "example.py"
    script.write_text(example)
    return subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stdout


def test_architecture_example_prints_the_documented_events(tmp_path: Path) -> None:
    shown = run_example(example_in("docs/architecture.md"), tmp_path)
    assert "Preempted(request_id='second', cause='admission', beneficiary='urgent')" in shown
    assert (
        "Admitted(request_id='urgent', num_tokens=32, num_hit_tokens=16, times_preempted=0, miss_reason='no_session')"
        in shown
    )
    assert shown.index("Finished(request_id='urgent'") < shown.index("Finished(request_id='second'")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_has_a_target(document: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", document.read_text())
    local = [link for link in links if not link.startswith("http")]
    assert [link for link in local if not (document.parent / link).exists()] == []


def test_readme_has_the_number_of_planted_bugs() -> None:
    from tests.laws.mutants import MORE, THE_SIX

    assert len(THE_SIX) == 6
    assert len(THE_SIX) + len(MORE) == 33
    assert "thirty-three bugs" in (ROOT / "README.md").read_text()
