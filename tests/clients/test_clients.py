"""Every client takes every step against a real server, and does what docs/http.md says."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.clients import refusals, steps
from tests.clients.table import (
    BENCHMARK,
    CLIENTS,
    LOAD_GENERATORS,
    RECORD,
    ROOT,
    ClientRecord,
    read_records,
    with_records,
)
from tests.models.tool_model import tool_model
from tests.patience import PATIENCE
from tests.sdk.node import NODE
from tests.serve.ensemble import ServeProcess, serving
from tests.serve.test_http import url_of

pytestmark = pytest.mark.slow

ENVIRONMENTS = ROOT / ".clients"
OF_SDKS = ("openai_sdk", "anthropic_sdk", "pydantic_ai_sdk")
RECORDING = "OCTET_RECORD_CLIENTS"
"""With this variable set to 1, as in `make clients`, results are recorded. Otherwise they must be the recorded ones."""
_SECONDS = 600
_REQUESTS = 8
_ENSEMBLE = """
name: clients
specialists:
  talk:
    model: demo
    context: 4096
    describe: Conversation and questions about anything.
    examples: ["tell me a story", "what is the capital of France?"]
  tools:
    model: tools
    describe: Calls of tools such as the weather.
    examples: ["use the weather tool", "call the clock tool"]
router: {http: {port: 0}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not (ENVIRONMENTS / ".ready").exists():
        pytest.skip(f"{ENVIRONMENTS} is missing: `make proofs` installs the clients")
    return tmp_path_factory.mktemp("clients")


@pytest.fixture(scope="module")
def served(folder: Path, demo_gguf: Path) -> Iterator[ServeProcess]:
    """An ensemble of the demo model and of a tiny one that takes tools."""
    tool_model(folder / "tools")
    with serving(folder, _ENSEMBLE) as served:
        yield served


@pytest.mark.parametrize("name", [name for name in CLIENTS if name not in LOAD_GENERATORS])
def test_client_takes_every_step(name: str, served: ServeProcess, tmp_path: Path) -> None:
    results = tmp_path / "results"
    done = _run(tmp_path, *_command(name), url_of(served), str(results), *_words(name))
    assert results.exists(), done.stderr[-5000:]
    records = read_records(results.read_text())
    assert done.returncode == 0, "\n".join([*map(str, records), done.stderr[-5000:]])
    _check_nothing_is_left(served)
    _compare(CLIENTS[name], records)


def test_refusals_are_the_recorded_ones(served: ServeProcess) -> None:
    answers = refusals.ask(url_of(served))
    assert {answer.status for answer in answers} <= {400, 404}
    if os.environ.get(RECORDING) == "1":
        refusals.RECORD.write_text(refusals.write_refusals(answers))
    assert answers == refusals.read_refusals(refusals.RECORD.read_text()), "run `make clients pages`"


def test_guidellm_runs_a_benchmark(served: ServeProcess, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    done = _run(
        tmp_path,
        *(str(ENVIRONMENTS / "load" / "bin" / "guidellm"), "run", "--disable-console-interactive"),
        *("--backend", f"kind=openai_http,target={url_of(served)},model={steps.TOOLS}"),
        *("--profile", "kind=concurrent,streams=2", "--constraint", f"kind=max_requests,count={_REQUESTS}"),
        *("--tokenizer", f"kind=hf_auto,model={folder / 'tools'}"),
        *("--data", "kind=synthetic_text,prompt_tokens=32,output_tokens=16", "--output", f"kind=json,path={file}"),
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (benchmark,) = json.loads(file.read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"]) == (_REQUESTS, 0), totals
    _check_nothing_is_left(served)
    _compare_benchmark("guidellm", f"guidellm run --backend kind=openai_http,target=URL,model={steps.TOOLS} ...")


def test_aiperf_runs_a_benchmark(served: ServeProcess, folder: Path, tmp_path: Path) -> None:
    done = _run(
        tmp_path,
        *(str(ENVIRONMENTS / "load" / "bin" / "aiperf"), "profile", "--ui", "none", "--streaming"),
        *("--url", url_of(served), "-m", steps.TOOLS, "--endpoint-type", "chat"),
        *("--request-count", str(_REQUESTS), "--concurrency", "2", "--isl", "32", "--osl", "16"),
        *("--tokenizer", str(folder / "tools"), "--output-artifact-dir", str(tmp_path / "out")),
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    report = json.loads((tmp_path / "out" / "profile_export_aiperf.json").read_text())
    assert report["request_count"]["avg"] == _REQUESTS and report["error_summary"] == [], report["error_summary"]
    _check_nothing_is_left(served)
    _compare_benchmark("aiperf", f"aiperf profile --url URL -m {steps.TOOLS} --endpoint-type chat --streaming ...")


def _command(name: str) -> Sequence[str]:
    """Return the command. Node looks for packages beside the script, so the script is copied there."""
    if name != "vercel":
        environment = "sdks" if name in OF_SDKS else "frameworks"
        return str(ENVIRONMENTS / environment / "bin" / "python"), "-m", f"tests.clients.{name}"
    script = ENVIRONMENTS / "node" / "vercel.mjs"
    shutil.copy(Path(__file__).parent / "vercel.mjs", script)
    return str(NODE), str(script)


def _words(name: str) -> Sequence[str]:
    if name != "vercel":
        return ()
    given = {
        name: value for name, value in vars(steps).items() if name.isupper() and isinstance(value, str | int | tuple)
    }
    return (json.dumps(given),)


def _run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a client in a home of its own."""
    local = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # LiteLLM would fetch a list of prices
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": str(ROOT), **local}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=_SECONDS)


def _check_nothing_is_left(served: ServeProcess) -> None:
    """Check that no request and no block of the client is left, once its cancelled requests have ended."""

    def is_idle() -> bool:
        text = _get(served, "/metrics") + _get(served, "/metrics/replicas")
        pattern = r"^octet_(?:inflight_requests|replica_(?:running|waiting)_requests|replica_kv_blocks)(\{.*\}|) (\S+)$"
        held = [
            (labels, value)
            for labels, value in re.findall(pattern, text, re.M)
            if "state=" not in labels or "used" in labels
        ]
        return len(held) == 7 and all(float(value) == 0 for _, value in held)

    served.until(is_idle)


def _get(served: ServeProcess, path: str) -> str:
    with urlopen(url_of(served) + path, timeout=PATIENCE) as response:  # noqa: S310
        return str(response.read().decode())


def _compare_benchmark(client: str, uses: str) -> None:
    pins = dict(
        line.split("==") for line in (Path(__file__).parent / "load.txt").read_text().splitlines() if "==" in line
    )
    done = {BENCHMARK: f"{_REQUESTS} requests, 0 errors"}
    _compare(CLIENTS[client], [ClientRecord(client, pins[client], uses, "/v1/chat/completions", done)])


def _compare(packages: Sequence[str], records: Sequence[ClientRecord]) -> None:
    text = RECORD.read_text() if RECORD.exists() else ""
    if os.environ.get(RECORDING) == "1":
        RECORD.write_text(with_records(text, records))
    else:
        recorded = [record for record in read_records(text) if record.client in packages]
        assert sorted(records, key=str) == sorted(recorded, key=str), "run `make clients pages` and look at the changes"
