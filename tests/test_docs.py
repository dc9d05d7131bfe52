"""What the documents say is true."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_readme_example_shows_what_the_readme_says(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    script = tmp_path / "decide.py"
    script.write_text(example)
    shown = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stdout
    assert "Preempted(request_id='second', cause='admission', beneficiary='urgent')" in shown
    assert "Admitted(request_id='urgent', num_tokens=32, num_hit_tokens=16, times_preempted=0)" in shown
    assert shown.index("Finished(request_id='urgent'") < shown.index("Finished(request_id='second'")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", document.read_text())
    local = [link for link in links if not link.startswith("http")]
    assert [link for link in local if not (document.parent / link).exists()] == []


def test_the_readme_counts_the_planted_bugs_right() -> None:
    from tests.laws.mutants import MORE, THE_SIX

    assert len(THE_SIX) == 6
    assert len(THE_SIX) + len(MORE) == 21
    assert "twenty-one bugs" in (ROOT / "README.md").read_text()
