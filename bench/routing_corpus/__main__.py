"""Builds the corpus of many hands, from unpacked packages and the shared data:

python -m bench.routing_corpus PACKAGES WHEELS SHARED OUT.jsonl [--most N]
"""

import argparse
import json
import re
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TypeVar

from bench.routing_corpus import off_topic, programs, refused
from bench.routing_corpus.c_concepts import read_concepts
from bench.routing_corpus.c_language import (
    C_DOCUMENTS,
    C_SUITES,
    c_messages,
    checked_snippets,
    declarations,
    flawed_functions,
    label_c_log,
    tidy_test,
)
from bench.routing_corpus.documents import DOCUMENTS, read_documents
from bench.routing_corpus.libraries import LIBRARIES, header_prompts, read_library
from bench.routing_corpus.phrasing import (
    GREETINGS,
    THANKS,
    Item,
    code_alone,
    hunt,
    ordered_hunt,
    phrase,
    show_code,
    subject_alone,
    task_hunt,
    with_code,
)
from octet.config.ensemble import REJECT
from router.routing.training.records import LabelledPrompt, write_records

SOME_SPECIALIST = "stl|template|algo|memory|concurrency|systems|build|debug"
T = TypeVar("T")
Prompt = tuple[str, str]  # text and label


def balance(items: Iterable[Item], most: int, random: Random) -> list[Item]:
    """Return at most `most` items, with similar numbers of each label."""
    by_label: dict[str, list[Item]] = {}
    for item in items:
        by_label.setdefault(item.label, []).append(item)
    for group in by_label.values():
        random.shuffle(group)
    chosen: list[Item] = []
    while len(chosen) < most and any(by_label.values()):
        for group in by_label.values():
            if group:
                chosen.append(group.pop())
    return chosen[:most]


def build(packages: Path, wheels: Path, shared: Path, most: int) -> Iterator[LabelledPrompt]:
    for source in DOCUMENTS:
        random = Random(source.name)
        items = balance(read_documents(source, packages), most, random)
        prompts = [_document_prompt(item, random) for item in items]
        yield from _records(prompts, source.name, source.licence, is_prompt=source.name not in REFERENCES)
    for suite in programs.SUITES:
        random = Random(suite.name)
        items = balance(programs.read_suite(suite, packages, random, most), most, random)
        yield from _records(
            [_code_prompt(item, random) for item in items],
            suite.name,
            suite.licence,
            is_prompt=suite.name not in REFERENCES,
        )
    for name, licence, prompts in _others(packages, wheels, shared, most):
        yield from _records(prompts, name, licence, is_prompt=not name.startswith("gcc/"))
    yield from _taught_only(packages, wheels, shared)
    yield from _c_language(packages, most)
    yield from _refused(packages, wheels, most)


def _refused(packages: Path, wheels: Path, most: int) -> Iterator[LabelledPrompt]:
    for source in refused.LOGS:
        random = Random(source.name)
        items = refused.read_programs(source, packages, random)
        yield from _records(_logs(items, source.file, source.command, source.most, random), source.name, source.licence)
    random = Random("refused")
    for name, licence, prompts in (
        ("d-tests/dmd", "BSL-1.0", refused.dmd_logs(packages, random)),
        ("scalac/logs", "BSD-3-Clause", refused.scalac_logs(packages, random)),
        ("ocaml/logs", "LGPL-2.1", refused.ocaml_logs(packages, random)),
        ("tsc/messages", "Apache-2.0", refused.tsc_messages(packages.parent / "npm", random, most)),
        *refused.requests(wheels, random, most),
    ):
        yield from _records(prompts[:most], name, licence)
    for hunts in refused.HUNTS:
        random = Random(hunts.name)
        found = _sample(refused.read_hunts(hunts, packages.parent, random), hunts.most, random)
        prompts = [(task_hunt(item, random), item.label) for item in found]
        yield from _records(prompts, hunts.name, "see the package", is_prompt=hunts.is_prompt)


def _c_language(packages: Path, most: int) -> Iterator[LabelledPrompt]:
    for source in C_DOCUMENTS:
        random = Random(source.name)
        items = balance(read_documents(source, packages), most, random)
        prompts = [_document_prompt(item, random) for item in items]
        yield from _records(prompts, source.name, source.licence, is_prompt=False)
    for suite in C_SUITES:
        random = Random(suite.name)
        tests = balance(programs.read_suite(suite, packages, random, most, tidy_test), most, random)
        prompts = [_code_prompt(item, random) for item in tests]
        yield from _records(prompts, suite.name, suite.licence, is_prompt=False)
    random = Random("c messages")
    snippets = _sample(checked_snippets(packages, random), most, random)
    messages = [_message_prompt(item, message, random) for item, message in snippets]
    yield from _records(messages, "cppcheck-tests", "GPL-3.0", is_prompt=False)
    yield from _records(declarations(packages, random), "cdecl", "public domain", is_prompt=False)
    flaws = _sample(flawed_functions(packages, random), most, random)
    yield from _records(flaws, "flawfinder", "GPL-2.0", is_prompt=False)
    compiler = _sample(c_messages(packages, random), most, random)
    yield from _records(compiler, "gcc/c-messages", "GPL-3.0", is_prompt=False)
    for suite in C_SUITES[:2]:
        tests = balance(programs.read_suite(suite, packages, random, most, tidy_test), most * 4, random)
        command = ("gcc", "-std=gnu17", "-fsyntax-only", "-Wall", "-Wextra", "main.c")
        logs = [(text, label_c_log(text)) for text, _ in _logs(tests, "main.c", command, most, random)]
        chosen = [(text, label) for text, label in logs if label]
        yield from _records(chosen, suite.name.replace("tests", "logs"), suite.licence, is_prompt=False)


def _taught_only(packages: Path, wheels: Path, shared: Path) -> Iterator[LabelledPrompt]:
    for source in LIBRARIES:
        random = Random(source.package)
        prompts = [_code_prompt(item, random) for item in read_library(source, packages.parent, MOST_OF_LIBRARY)]
        yield from _records(prompts, f"library-{source.package}", "see the package", is_prompt=False)
    random = Random("off topic")
    for name, licence, prompts in (
        ("dictionary", "WordNet", off_topic.dictionary(packages, random, MOST_OFF_TOPIC)),
        ("quotations", "see the package", off_topic.quotations(packages, random, MOST_OFF_TOPIC // 6)),
        ("small-talk", "GPL", off_topic.small_talk(wheels, random, MOST_OFF_TOPIC)),
        ("desktop-help", "CC-BY-SA-3.0", off_topic.desktop_help(packages, random, MOST_OFF_TOPIC)),
        ("office-help", "MPL-2.0", off_topic.office_help(packages, random, MOST_OFF_TOPIC * 3 // 4)),
        ("school-tasks", "MIT", off_topic.school_tasks(wheels, random, MOST_OFF_TOPIC)),
    ):
        yield from _records(prompts, name, licence, is_prompt=False)
    for concept in read_concepts():
        asked = [_document_prompt(concept, random) for _ in range(PHRASINGS_OF_CONCEPT)]
        yield from _records(asked, "c-concepts", "Apache-2.0", is_prompt=False)
    yield from _ordered_hunts(packages, shared)
    linker = [item for folder in ("ld", "gold", "bfd") for item in programs.linker_messages(packages, folder)]
    chosen = [_translated_prompt(item, random) for item in _sample(linker, MOST_MESSAGES, random)]
    yield from _records(chosen, "linker-messages", "GPL-3.0", is_prompt=False)
    for name, include, is_c in _HEADERS:
        prompts = list(header_prompts(packages / include, Random(name), is_c=is_c, most=20))
        yield from _records(prompts, name, "LGPL-2.1" if is_c else "GPL-3.0 WITH GCC-exception", is_prompt=False)


def _ordered_hunts(packages: Path, shared: Path) -> Iterator[LabelledPrompt]:
    """Yield orders to mend programs, the same for all languages, so that they say nothing about the language."""
    random = Random("orders")
    library = Path(sysconfig.get_path("stdlib"))
    python = balance(programs.python_functions(library, random, MOST_ORDERS), MOST_ORDERS, random)
    java = balance(programs.java_methods(packages, random, MOST_ORDERS), MOST_ORDERS, random)
    for name, licence, items in (
        ("debugbench/cpp-orders", "Apache-2.0", _sample(programs.debugbench(shared), MOST_ORDERS, random)),
        ("python/orders", "PSF-2.0", [programs.with_fault(each, random) for each in python]),
        ("java/orders", "GPL-2.0 WITH Classpath-exception", [programs.with_fault(each, random) for each in java]),
    ):
        yield from _records(
            [(phrase(each, random, [ordered_hunt]), each.label) for each in items], name, licence, is_prompt=False
        )


MOST_ORDERS = 150
MOST_OF_LIBRARY, MOST_OFF_TOPIC, MOST_MESSAGES = 90, 400, 250
PHRASINGS_OF_CONCEPT = 3
_HEADERS = (
    ("headers-libc", "libc6-dev/usr/include", True),
    ("headers-libstdc++", "libstdc++-12-dev/usr/include/c++/12", False),
)


def _document_prompt(item: Item, random: Random) -> Prompt:
    return name_language(phrase(item, random), item, random), item.label


_NAMED = ("{t}\n({l})", "{l}: {t}", "[{l}] {t}", "{t} I use {l}.", "In {l}: {t}", "{t} This is about {l}.")


def name_language(text: str, item: Item, random: Random) -> str:
    """Return the text; if it is a refused subject without code, its language is named, because the same question about
    C++ must not be refused."""
    is_clear = item.label != REJECT or item.language.lower() in text.lower() or (item.code and item.code[:40] in text)
    return text if is_clear else random.choice(_NAMED).replace("{l}", item.language).replace("{t}", text)


def _code_prompt(item: Item, random: Random) -> Prompt:
    roll = random.random()
    if item.label == "debug":
        return phrase(item, random, [hunt]), item.label
    if roll < 0.2:
        found = programs.with_fault(item, random)
        return hunt(found, random), found.label
    form = code_alone if roll < 0.5 else with_code
    return phrase(item, random, [form]), item.label


WRITTEN_BY_USERS = frozenset({"stackoverflow", "microsoft", "debugbench"})
_MADE_WEIGHT = 0.25  # of other prompts: their phrasing is made
_WEIGHTS = {"drrepair": 0.75, "debugbench/cpp-orders": 0.5}  # programs of students


REFERENCES = frozenset(
    [
        "boost-docs",
        "clang-docs",
        "libstdc++-manual",
        "pybind11-docs",
        "fmt-docs",
        "tbb-docs",
        "valgrind-docs",
        "scons-guide",
        "manual-linux",
        "manual-liburing",
        "manual-ru",
        "manual-de",
        "manual-zh",
        "gcc/g++-tests",
    ]
)
"""Sources with coarse labels, because a page or a folder has one label: they teach words and measure nothing."""


_BOILERPLATE = re.compile(rf"(?:{'|'.join(map(re.escape, (*GREETINGS, *THANKS)))}|\s)*\Z")


def _records(
    prompts: Iterable[Prompt], source: str, licence: str, *, is_prompt: bool = True
) -> Iterator[LabelledPrompt]:
    seen = set[str]()
    for text, label in prompts:
        key = " ".join(text.split()).lower()
        if len(key) > 3 and key not in seen and not _BOILERPLATE.match(text):
            seen.add(key)
            weight = _WEIGHTS.get(source, 1.0 if source.partition("/")[0] in WRITTEN_BY_USERS else _MADE_WEIGHT)
            labels = tuple((label or SOME_SPECIALIST).split("|"))
            yield LabelledPrompt(text, labels[0], source, licence, is_prompt, weight, labels if len(labels) > 1 else ())


def _others(packages: Path, wheels: Path, shared: Path, most: int) -> Iterator[tuple[str, str, list[Prompt]]]:
    random = Random("others")
    java = balance(programs.java_methods(packages, random, most), most, random)
    yield "java/code", "GPL-2.0 WITH Classpath-exception", [_hunt_or_code(each, random) for each in java]
    library = Path(sysconfig.get_path("stdlib"))
    python = balance(programs.python_functions(library, random, most), most, random)
    yield "python/code", "PSF-2.0", [_hunt_or_code(each, random) for each in python]
    for name, licence, items in (
        ("humaneval/cpp", "Apache-2.0", list(programs.humaneval_cpp(shared))),
        ("humaneval/python", "MIT", list(programs.humaneval_python(wheels))),
    ):
        chosen = balance(items, most, random)
        tasks = [(programs.task_prompt(each, random), each.label) for each in chosen[: most * 2 // 3]]
        hunts = [programs.in_class(programs.with_fault(each, random), random) for each in items]
        yield name, licence, tasks + [(hunt(each, random), each.label) for each in hunts]
    faulty = balance(programs.debugbench(shared), most, random)
    yield (
        "debugbench/cpp",
        "Apache-2.0",
        [(phrase(each, random, [hunt]), each.label) for each in faulty],
    )
    yield (
        "drrepair",
        "MIT",
        [_message_prompt(*each, random) for each in _sample(programs.drrepair(shared), most, random)],
    )
    for language in ("ru", "de", "zh_CN", "fr", "es"):
        messages = balance(programs.translated_messages(packages, language), MOST_MESSAGES, random)
        yield f"gcc/messages-{language}", "GPL-3.0", [_translated_prompt(each, random) for each in messages]
    for name, licence, items in (
        ("chatterbot", "BSD-3-Clause", list(programs.chatter(wheels))),
        ("bfcl", "Apache-2.0", list(programs.function_requests(wheels))),
    ):
        yield name, licence, [(each.subject, each.label) for each in balance(items, most, random)]
    yield from _tool_logs(packages, most, random)
    for line in (shared / "routing/real_prompts.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if not row["source"].startswith(("codealpaca", "alpaca")):
            yield (
                _SHARED_SOURCES[row["source"].partition("-")[0]](row["source"]),
                "see shared data",
                [(row["text"], "|".join(dict.fromkeys([row["label"], *row["ok"]])))],
            )


_SHARED_SOURCES: Mapping[str, Callable[[str], str]] = {
    "so": lambda name: name.replace("so-", "stackoverflow/"),
    "ms": lambda _: "microsoft",
    "debugbench": lambda name: name.replace("-", "/"),
}


def _sample(items: Iterable[T], most: int, random: Random) -> list[T]:
    found = list(items)
    return random.sample(found, min(most, len(found)))


def _hunt_or_code(item: Item, random: Random) -> Prompt:
    if random.random() < 0.5:
        found = programs.with_fault(item, random)
        return hunt(found, random), found.label
    return phrase(item, random, [with_code, code_alone]), item.label


_ASKED = ("What does this error mean?\n{m}", "{m}", "I get this:\n\n{m}", "{m}\n\nhow do I fix this?", "error: {m}")


def _message_prompt(item: Item, message: str, random: Random) -> Prompt:
    if random.random() < 0.5:
        return phrase(item, random, [hunt]), item.label
    asked = random.choice(_ASKED).replace("{m}", message)
    return random.choice((f"{asked}\n\n{show_code(item, random)}", f"{show_code(item, random)}\n\n{asked}")), item.label


def _translated_prompt(item: Item, random: Random) -> Prompt:
    suffix = ".cpp" if item.language == "C++" else ".f90"
    return f"main{suffix}:{random.randrange(2, 90)}:{random.randrange(1, 40)}: {item.subject}", item.label


def _tool_logs(packages: Path, most: int, random: Random) -> Iterator[tuple[str, str, list[Prompt]]]:
    """Yield the output of real tools on faulty programs: of g++ by the topic of the test, and of other languages."""
    suites = {suite.name: suite for suite in programs.SUITES}
    errors = balance(programs.read_suite(suites["gcc/g++-tests"], packages, Random("logs"), most), most * 2, random)
    logs = _logs(errors, "main.cpp", ("g++", "-std=c++20", "-fsyntax-only", "-Wall", "main.cpp"), most, random)
    relabelled = [(text, programs.label_log(text)) for text, _ in logs]
    yield "gcc/g++-logs", "GPL-3.0", [prompt for prompt in relabelled if prompt[1]]
    rust = [each for each in DOCUMENTS if each.name == "rust/errors"]
    items = _sample((item for each in rust for item in read_documents(each, packages) if item.code), most, random)
    items = [
        replace(each, code=each.code if "fn main" in each.code else f"{each.code}\nfn main() {{}}") for each in items
    ]
    yield (
        "rust/logs",
        "MIT or Apache-2.0",
        _logs(items, "main.rs", ("rustc", "--emit=metadata", "main.rs"), most // 2, random),
    )
    java = _sample(programs.java_methods(packages, random, most), most // 2, random)
    yield (
        "java/logs",
        "GPL-2.0 WITH Classpath-exception",
        _logs(java, "Main.java", ("javac", "Main.java"), most // 4, random),
    )
    python = _sample(programs.python_functions(Path(sysconfig.get_path("stdlib")), random, most), most, random)
    broken = [replace(each, code=f"{each.code}\n\n{each.subject}()") for each in python]
    yield "python/logs", "PSF-2.0", _logs(broken, "main.py", ("python3", "main.py"), most // 3, random)


def _logs(items: Iterable[Item], name: str, command: tuple[str, ...], most: int, random: Random) -> list[Prompt]:
    found: list[Prompt] = []
    for item in items:
        text = programs.tool_output(item.code, name, command, random)
        if len(text) > 40:
            forms = (text, text, f"{subject_alone(item, random)}\n\n{text}", random.choice(_ASKED).replace("{m}", text))
            found.append((random.choice(forms), item.label))
        if len(found) == most:
            break
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("packages", "wheels", "shared", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--most", type=int, default=150, help="prompts of a source")
    options = parser.parse_args()
    records = list(build(options.packages, options.wheels, options.shared, options.most))
    write_records(options.out, records)
    counts = Counter((record.source, record.label) for record in records)
    for source in dict.fromkeys(record.source for record in records):
        shown = {label: number for (name, label), number in sorted(counts.items()) if name == source}
        print(f"{source:20} {sum(shown.values()):5} {shown}")
    print(f"{len(records)} prompts")


if __name__ == "__main__":
    main()
