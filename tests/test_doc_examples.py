"""Every example of the README and of the documentation runs on a real ensemble, with the output that the page shows.
`OTHERWISE` lists the examples that cannot run as they stand, with the reason and with the check made instead."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.request import Request, urlopen

import pytest
import yaml

from octet import Client
from octet.config.loader import default_text
from tests.doc_examples import (
    ADDRESS_VARIABLE,
    DOCUMENTS,
    ROOT,
    Example,
    matches,
    parse_octet,
    read_examples,
)
from tests.doc_reader import DEFAULT_URL, Ensemble, Scene, simulated, write_certificates
from tests.models.tiny import tiny_model
from tests.models.tool_model import tool_model
from tests.octet.cli.commands.tree import tree
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.router.store.postgres_server import MISSING, binaries, postgres_server
from tests.sdk.node import NODE, PACKAGE, check_modules, tool
from tests.serve.ensemble import serving as serving_config
from tests.simulation.__main__ import main as simulate_seeds
from tests.simulation.script import draw


@pytest.fixture(scope="module", params=["sim", pytest.param("demo", marks=pytest.mark.slow)])
def ensemble(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    """The demo ensemble of `make serve`, as the pages assume it: a second replica of template, and an intent for batch
    work. Its engines are simulated, or, in the slow form, run the demo model."""
    folder = tmp_path_factory.mktemp("ensemble")
    config: dict[str, Any] = yaml.safe_load(default_text())
    config["specialists"]["template"]["replicas"] = 2
    config["intents"]["batch"] = {}
    config["classifier"]["timeout"] = 60
    if request.param == "sim":
        config["specialists"]["build"]["embeddings"] = False
        config |= simulated(folder)
    with serving_config(folder, yaml.safe_dump(config, sort_keys=False), seconds=600) as served:
        yield Ensemble(served, request.param, folder)


@pytest.fixture
def scene(
    ensemble: Ensemble,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Scene]:
    """The folder is below that of the ensemble's configuration, so that adapters in it may be loaded."""
    folder = ensemble.folder / re.sub(r"\W+", "-", request.node.name)
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv(ADDRESS_VARIABLE, ensemble.address)
    monkeypatch.setattr("sys.stdin", io.StringIO("why does std::ranges::sort reject my iterator?\n"))
    scene = Scene(ensemble, folder, capsys, monkeypatch)
    try:
        yield scene
        scene.tidy()
    finally:
        scene.close()


# How each kind of example runs.


def run_command(scene: Scene, example: Example) -> None:
    if example.starts_a_server:
        scene.start(example.text)
        return
    printed = scene.octet(example.text) if example.is_plain_octet else scene.shell(example.text)
    printed = printed.replace(f"{sys.executable} -m octet.cli ", "octet ")
    assert matches(example.output, printed), f"the page shows\n{example.output}\nbut the command prints\n{printed}"


def run_python(scene: Scene, example: Example) -> None:
    with redirect_stdout(io.StringIO()) as printed:
        exec(compile(scene.place(example.text), str(example), "exec"), {"__name__": "__main__"})  # noqa: S102
    scene.outputs.append(printed.getvalue())


def check_yaml(scene: Scene, example: Example) -> None:
    """A whole ensemble is checked as it stands; a part of one, as part of the ensemble of the page."""
    text = scene.place(example.text)
    file = scene.folder / "block.yaml"
    block = yaml.safe_load(text)
    if "name" not in block:
        text = yaml.safe_dump({"specialists": {"sql": {"engine": "sim", "describe": "SQL"}}} | block)
    file.write_text(text)
    scene.octet("octet check block.yaml")


def run_typescript(scene: Scene, example: Example) -> None:
    done = subprocess.run(
        [NODE, compiled_examples(scene.url)[str(example)]], capture_output=True, text=True, timeout=120
    )
    scene.outputs.append(done.stdout)
    assert done.returncode == 0, done.stderr


@cache
def compiled_examples(url: str) -> dict[str, Path]:
    """Compile all TypeScript examples at once, next to the SDK's sources, where Node finds its modules."""
    check_modules()
    folder = PACKAGE / "build" / f"{os.environ.get('PYTEST_XDIST_WORKER', 'alone')}-examples"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    files = {}
    for number, example in enumerate(each for page in DOCUMENTS for each in read_examples(page) if each.kind == "ts"):
        source = example.text.replace('"octet-serve"', '"../../src/index.js"').replace(DEFAULT_URL, url)
        source = source.replace("new Octet()", f'new Octet({{ baseUrl: "{url}" }})')
        (folder / f"{number}.mts").write_text(source)
        files[str(example)] = folder / "out" / "build" / folder.name / f"{number}.mjs"
    options = {"declaration": False, "rootDir": str(PACKAGE), "outDir": str(folder / "out")}
    settings = {"extends": "../../tsconfig.json", "compilerOptions": options, "include": ["*.mts"]}
    (folder / "tsconfig.json").write_text(json.dumps(settings))
    (folder / "out").mkdir()
    (folder / "out" / "package.json").write_text('{"type": "module"}')
    done = tool("typescript/bin/tsc", "-p", str(folder))
    assert done.returncode == 0, done.stdout + done.stderr
    return files


def check_json(scene: Scene, example: Example) -> None:
    json.loads(example.text)


RUNNERS: dict[str, Callable[[Scene, Example], None]] = {
    "command": run_command,
    "python": run_python,
    "yaml": check_yaml,
    "ts": run_typescript,
    "json": check_json,
}


# Checks of the examples that cannot run as they stand.


def check_options(scene: Scene, example: Example) -> None:
    """The options are valid."""
    parse_octet(example.words[1:])


def check_options_in_shell(scene: Scene, example: Example) -> None:
    """The options of the call of octet are valid."""
    parse_octet(re.findall(r"octet ([a-z ]+)", example.text)[0].split())


def check_target(scene: Scene, example: Example) -> None:
    """The target exists, and make knows what it would run."""
    subprocess.run(["/usr/bin/env", "make", "-n", *example.words[1:]], cwd=ROOT, check=True, capture_output=True)


def check_ready_line(scene: Scene, example: Example) -> None:
    printed = scene.ensemble.served.out.replace(f" --address {scene.ensemble.address}", "")
    printed = printed.replace(f"{sys.executable} -m octet.cli ", ".venv/bin/octet ")
    printed = printed.replace(scene.ensemble.address, "127.0.0.1:50051")
    assert matches(example.text, printed.replace(scene.ensemble.url, DEFAULT_URL), numbers=True), printed


def check_last_output(scene: Scene, example: Example) -> None:
    assert matches(example.text, scene.printed), scene.printed


def check_following(scene: Scene, example: Example) -> None:
    """The command prints a receipt that arrives while it runs."""
    seen = Event()

    def ask() -> None:
        with Client(scene.address) as client:
            while not seen.wait(0.1):  # the command may begin after any of the answers
                client.infer("hello", force="stl", max_tokens=1)

    command = [str(scene.folder / "bin" / "octet"), *example.words[1:]]
    asking = Thread(target=ask)
    with subprocess.Popen(command, env=scene.environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            asking.start()
            assert process.stdout is not None
            assert any("stl" in line for line in process.stdout)
        finally:
            seen.set()
            asking.join()
            process.terminate()


def check_top(scene: Scene, example: Example) -> None:
    """The frame of the real ensemble has the same columns."""
    header = next(line for line in example.text.splitlines() if line.split()[:1] == ["specialist"])
    printed = next(line for line in scene.octet("octet top").splitlines() if line.split()[:1] == ["specialist"])
    assert printed.split() == header.split()


def check_slo_header(scene: Scene, example: Example) -> None:
    """The header of a real answer has the same measures, as far as they have samples."""
    asked = {"model": "octet/stl", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    body, headers = json.dumps(asked).encode(), {"content-type": "application/json"}
    with urlopen(Request(f"{scene.url}/v1/chat/completions", body, headers), timeout=PATIENCE) as response:  # noqa: S310
        printed = response.headers["octet-slo"]
    names = re.findall(r"(?:: |, |,\s+)([a-z-]+);", example.text)
    found = re.findall(r"(?:^|, )([a-z-]+);", printed)
    assert found and set(found) <= set(names), printed


def run_sql(scene: Scene, example: Example) -> None:
    """A server takes the statements, and the new role may create tables in the new database."""
    programs = binaries()
    if programs is None:
        pytest.skip(MISSING)
    with postgres_server(programs) as server:
        for statement in filter(str.strip, example.text.replace("...", "not-a-secret").split(";")):
            server.execute(statement)
        url = server.url("octet").replace("postgres:", "octet:", 1)
        server.execute("CREATE SCHEMA octet", url)


def run_with_model(scene: Scene, example: Example) -> None:
    """The example runs in the slow form; tests/router/http tests what simulated engines cannot do."""
    compile(example.text, str(example), "exec")
    if scene.ensemble.engine == "demo":
        run_python(scene, example)


def run_with_tools(scene: Scene, example: Example) -> None:
    """The example runs on an ensemble of one tiny model with a tool template, in the slow form. That model rambles, so
    that its answers are limited."""
    if scene.ensemble.engine == "sim":
        compile(example.text, str(example), "exec")
        return
    one = {"describe": "The weather.", "examples": ["Is it raining in Oslo?"], "max_tokens": 200}
    tool_model(scene.folder / "tools")
    config = {"name": "tools", "model": str(scene.folder / "tools"), "specialists": {"weather": one}}
    (scene.folder / "tools.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    scene.start("octet serve tools.yaml")
    run_python(scene, example)


def check_simulation(scene: Scene, example: Example) -> None:
    """The command works with two seeds and one process."""
    words = example.text.replace(" 1000 ", " 2 ").replace("--workers 2", "--workers 1").partition("#")[0].split()
    with redirect_stdout(io.StringIO()) as printed:
        assert simulate_seeds(words[3:]) == 0
    assert printed.getvalue().startswith("2 seeds, 0 with a broken law")


def check_replay(scene: Scene, example: Example) -> None:
    """The command replays a script that a reader has saved."""
    (scene.folder / "script.json").write_text(draw(0).to_json())
    with redirect_stdout(io.StringIO()) as printed:
        assert simulate_seeds(example.words[3:]) == 0
    assert printed.getvalue().endswith("no law is broken\n")


def check_why(scene: Scene, example: Example) -> None:
    """A request with this id is explained in the same form; the page's request was spilled over."""
    scene.octet('octet generate "hello" --force stl --request-id 7f3c')
    printed = scene.octet(example.text)
    assert matches("request 7f3c: stl on stl-0 answered it in ... ms\n\ndecision\n", printed), printed


def run_on_one_machine(scene: Scene, example: Example) -> None:
    """Replica and router run on this machine, with a tiny model and certificates of its own, in the slow form."""
    check_options(scene, example)
    if scene.ensemble.engine == "sim":
        return
    if not (scene.folder / "ca.pem").exists():
        write_certificates(scene.folder)
        tiny_model(scene.folder / "DIR", "llama")
        config = {"name": "one", "specialists": {"sql": {"describe": "SQL", "examples": ["hello"]}}}
        (scene.folder / "ensemble.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
        scene.names |= {"10.0.0.5": "127.0.0.1", "50151": str(free_port())}
    text = re.sub(r"-certificate FILE", "-certificate own.pem", example.text)
    text = re.sub(r"-key FILE", "-key own.key", text)
    scene.start(re.sub(r"-ca FILE", "-ca ca.pem", text))
    if "router" in text:
        scene.octet("octet generate hello --force sql --max-tokens 4")


def check_pack(scene: Scene, example: Example) -> None:
    """The package has the documented file name. test_package_exports_its_build builds it."""
    package = json.loads((PACKAGE / "package.json").read_text())
    assert f"{package['name']}-{package['version']}.tgz" in example.text


def set_key(scene: Scene, example: Example) -> None:
    """The reader fills in the key that the first command of the page printed."""
    scene.environ.setenv("OCTET_API_KEY", scene.outputs[0].split()[0])


def nothing(scene: Scene, example: Example) -> None:
    """There is nothing to run."""


@dataclass(frozen=True)
class Otherwise:
    """An example that cannot run as it stands, and what checks it instead."""

    documents: str  # a regular expression
    begins: str
    reason: str
    check: Callable[[Scene, Example], None]

    def fits(self, example: Example) -> bool:
        return re.fullmatch(self.documents, example.document) is not None and example.text.startswith(self.begins)


ANY = ".*"
EMBEDDINGS = """from openai import OpenAI

client = OpenAI(base_url="http://127.0.0.1:8051/v1", api_key="none")
found = client.embeddings"""
OTHERWISE = (
    Otherwise("docs/architecture.md", "sequenceDiagram", "a diagram", nothing),
    Otherwise(ANY, "make serve", "it installs packages; the fixture starts the ensemble that it would", check_target),
    Otherwise(ANY, "octet ready on", "the output of `make serve`", check_ready_line),
    Otherwise("docs/quickstart.md", "answered by", "the output of the command above it", check_last_output),
    Otherwise("docs/cli.md", "default  octet", "the figures are those of an incident", check_top),
    Otherwise("docs/cli.md", "octet why 7f3c", "one request of the past", check_why),
    Otherwise("docs/cli.md", "octet receipts --follow", "it does not end", check_following),
    Otherwise("docs/cli.md", "source <(octet completion zsh)", "it needs zsh", check_options_in_shell),
    Otherwise("docs/slo.md", "octet-slo:", "a header, with the figures of a busy specialist", check_slo_header),
    Otherwise("docs/models.md", "octet specialist", "it needs a GPU", check_options),
    Otherwise("docs/operating.md", "octet refresh", "test_refresh_weights.py refreshes real weights", check_options),
    Otherwise("docs/operating.md", "octet adapters promote template", "as above", check_options),
    Otherwise("docs/operating.md", "octet adapters rollback template", "as above", check_options),
    Otherwise("docs/serving.md", "octet specialist", "it needs a second machine", run_on_one_machine),
    Otherwise("docs/serving.md", "octet router", "it needs a second machine", run_on_one_machine),
    Otherwise("docs/configuration.md", "octet serve", "test_documented_ensemble.py serves the file", check_options),
    Otherwise("docs/capacity.md", "octet simulate docs/examples/h200.yaml", "it takes minutes", check_options),
    Otherwise("docs/simulation.md", "python -m tests.simulation 0 1000", "it takes minutes", check_simulation),
    Otherwise("docs/simulation.md", "python -m tests.simulation --replay", "it needs a script", check_replay),
    Otherwise("docs/http.md", EMBEDDINGS, "simulated engines embed nothing", run_with_model),
    Otherwise("docs/tools.md", "import octet", "it needs a model that takes tools", run_with_tools),
    Otherwise("docs/store.md", "CREATE ROLE", "it needs a PostgreSQL of its own", run_sql),
    Otherwise("docs/security.md", "export OCTET_API_KEY", "the reader fills in the key", set_key),
    Otherwise("sdk/typescript/README.md", "npm pack", "another test builds the package", check_pack),
)


def promote(scene: Scene) -> None:
    """An adapter was promoted, and the lane before it can come back."""
    scene.octet("octet adapters load template ./my-lora --reason test")
    scene.octet("octet adapters promote template --reason test")


def simulate_own_models(scene: Scene) -> None:
    """In the quick form, the file that `octet init` wrote is served by simulated engines."""
    if scene.ensemble.engine == "sim":
        file = scene.folder / "octet.yaml"
        file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | simulated(scene.folder)))


def drain(scene: Scene) -> None:
    """The replica is drained, by the page itself or before it."""
    with suppress(AssertionError):
        scene.octet("octet drain template-1 --reason test")


def start_keyed_router(scene: Scene) -> None:
    """The router that the page calls has keys, and the reader has one of them."""
    scene.environ.setenv("OCTET_API_KEY", scene.octet("octet keys new ops --role operate --file keys.json").split()[0])
    scene.start("octet router --config my.yaml --keys keys.json --http-port 0")


BEFORE: dict[tuple[str, str], Callable[[Scene], object]] = {
    ("README.md", "octet top"): lambda scene: scene.return_to_ensemble(),
    ("docs/http.md", 'curl -H "Authorization'): start_keyed_router,
    ("docs/jobs.md", "curl -sN"): lambda scene: scene.names.update(JOB=json.loads(scene.printed)["id"]),
    ("docs/models.md", "octet serve"): simulate_own_models,
    ("docs/runbook.md", "octet undrain"): drain,
    ("docs/runbook.md", "octet adapters rollback"): promote,
    ("docs/runbook.md", "octet why"): lambda scene: scene.octet(
        "octet generate hello --force template --request-id 0f9c2d0e5b7a4c1e8f3a6b5d4c3b2a19"
    ),
    ("docs/security.md", "octet router"): lambda scene: write_certificates(scene.folder),
}
"""What happened before an example of a page, by page and beginning of the example."""


def otherwise(example: Example) -> Otherwise | None:
    return next((row for row in OTHERWISE if row.fits(example)), None)


def test_shown_output_is_compared_with_the_printed_one() -> None:
    shown = "build  -  rule\ntook 5.2 s, request ID\n... tokens"
    assert matches(shown, "first\nbuild  -  rule\nmore\ntook 17.25 s, request 4f\n9 tokens\nlast")
    assert not matches(shown, "stl  -  rule\ntook 17.25 s, request 4f\n9 tokens")
    assert not matches(shown, "took 17.25 s, request 4f\nbuild  -  rule\n9 tokens"), "the order counts"
    assert not matches("at most 512 tokens", "at most 400 tokens"), "a number without a unit of time or size counts"
    assert matches("at most 512 tokens", "at most 400 tokens", numbers=True)


def test_every_example_runs_or_is_listed() -> None:
    examples = [example for document in DOCUMENTS for example in read_examples(document)]
    assert len(examples) > 100
    assert [str(each) for each in examples if each.kind not in RUNNERS and otherwise(each) is None] == []
    assert [row.begins for row in OTHERWISE if not any(map(row.fits, examples))] == [], "listed, but on no page"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_commands_in_the_text_exist(document: str) -> None:
    """Commands outside of blocks leave out arguments. Their verbs exist, and so do the targets of make."""
    text = re.sub(r"^ *```.*?^ *```$", "", (ROOT / document).read_text(), flags=re.MULTILINE | re.DOTALL)
    known = {command.name for command in tree()}
    for command in re.findall(r"`(?:\$ )?octet ([a-z][^`]*)`", text):
        verbs = list(takewhile(lambda word: re.fullmatch("[a-z-]+", word), command.split()))
        assert " ".join(verbs[:2]) in known or verbs[0] in known, f"{document}: octet {command}"
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"`make ([a-z-]+)", text):
        assert f"\n{target}:" in makefile, f"{document}: make {target}"


@pytest.mark.parametrize("document", [name for name in DOCUMENTS if read_examples(name)])
def test_examples_of_the_page_work(document: str, scene: Scene) -> None:
    for example in read_examples(document):
        for (page, begins), act in BEFORE.items():
            if document == page and example.text.startswith(begins):
                act(scene)
        row = otherwise(example)
        try:
            (RUNNERS[example.kind] if row is None else row.check)(scene, example)
        except (Exception, SystemExit) as error:
            raise AssertionError(f"{example}\n{error}") from error
