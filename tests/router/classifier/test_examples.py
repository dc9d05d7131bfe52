"""A specialist's description and a few examples are enough to route requests."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import thread_time
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octet.config.ensemble import REJECT, ClassifierConfig, Ensemble, SpecialistConfig
from octet.config.loader import default_ensemble
from router.routing.classifier import examples
from router.routing.classifier.base import LIMIT, Distribution
from router.routing.classifier.examples import ExamplesClassifier, Texts
from router.routing.classifier.queue import ClassifierMismatch, open_classifier

FIELDS: dict[str, Texts] = {
    "sql": (
        "SQL queries and databases: select, join, group by, indexes, transactions, schemas, PostgreSQL and SQLite.",
        (
            "Write a query that lists the customers without an order.",
            "How do I join three tables and keep the rows without a match?",
            "SELECT name, COUNT(*) FROM users GROUP BY name HAVING COUNT(*) > 1",
            "Add an index that makes this WHERE clause fast.",
            "Why is my left join returning duplicate rows?",
        ),
    ),
    "shell": (
        "Shell scripts and the command line: bash, pipes, find, grep, sed, awk, files and processes.",
        (
            "Find all files larger than 100 MB and delete them.",
            "How do I loop over the lines of a file in bash?",
            'for f in *.txt; do mv "$f" "${f%.txt}.md"; done',
            "Kill the process that listens on port 8080.",
            "Redirect stderr to a file and stdout to a pipe.",
        ),
    ),
    "regex": (
        "Regular expressions: matching, capture groups, lookahead, quantifiers, character classes, escaping.",
        (
            "Write a regular expression that matches an email address.",
            r"What does ^(?:[0-9]{1,3}\.){3}[0-9]{1,3}$ match?",
            "How do I make a quantifier lazy instead of greedy?",
            "Match a word only when it is not followed by a colon.",
        ),
    ),
}
FRESH = {
    "sql": (
        "Which index helps a query that sorts by date?",
        "Show me all orders of the customers who live in Berlin",
        "How do I group by month and sum the totals?",
        "SELECT * FROM invoices WHERE paid IS NULL",
        "left join or inner join for optional rows?",
        "Why does this transaction deadlock in PostgreSQL?",
        "Delete duplicate rows but keep the newest",
        "Normalise this schema with customers and addresses",
        "having versus where in an aggregate query",
        "Is a subquery slower than a join?",
    ),
    "shell": (
        "Write a script that renames every file in a folder",
        "How do I find files by name and copy them?",
        "grep -r TODO src | wc -l",
        "what is the difference between bash and sh",
        "Pipe the output of one command into another",
        "for host in $(cat hosts.txt); do ping -c1 $host; done",
        "Print the last line of every log file",
        "How do I stop a process by its name?",
        "sort the lines of a file and drop the repeated ones",
        "Send stdout and stderr to the same file",
    ),
    "regex": (
        "Match a date such as 31.12.1999",
        "what is a capture group",
        "Regular expression for a URL with an optional port",
        r"Explain ^\s*[a-f0-9]+$ to me",
        "greedy against lazy quantifiers",
        "How do I match a literal bracket in a character class?",
        "use a lookahead to require a digit in a password",
        "Does this expression match an empty line?",
        "regex that matches words in capitals",
        "Escaping backslashes in a regex",
    ),
}
CPP = {
    "template": (
        "variadic templates and fold expressions",
        "Is enable_if still needed with concepts?",
        "write a type trait that detects a member function",
        "constexpr if in a function template",
        "CRTP base class for counting objects",
    ),
    "stl": (
        "Which containers keep their iterators valid on insert?",
        "views::filter on a range of strings",
        "how do I use std::optional with a default",
        "print a chrono duration with format",
        "copy a directory tree with std::filesystem",
    ),
    "algo": (
        "topological sorting of graphs",
        "dynamic programming over trees",
        "what is the complexity of this sorting algorithm",
        "hashing strings for substring search",
        "searching in a sorted matrix",
    ),
    "memory": (
        "Do smart pointers replace RAII?",
        "dangling references after a move",
        "why is the copy not elided here, copy elision",
        "write an allocator with 64 byte alignment",
        "ownership of objects in a cache-friendly layout",
    ),
    "concurrency": (
        "atomics with relaxed memory order",
        "two threads lock two mutexes in another order",
        "how does a condition variable wake all threads",
        "coroutines for a task scheduler",
        "lock-free queue without data races",
    ),
    "systems": (
        "accept connections on sockets with epoll",
        "block signals in a child process",
        "mmap against read for large files",
        "bit twiddling to reverse the bits of a byte",
        "SIMD for embedded devices",
    ),
    "build": (
        "CMake option to choose the linker",
        "undefined references when linking libraries",
        "Bazel or Meson for cross-compiling",
        "Ninja rebuilds all headers every time",
        "which compiler options enable modules",
    ),
    "debug": (
        "gdb prints a stack trace without symbols",
        "AddressSanitizer against Valgrind",
        "the program crashes and leaves a core dump",
        "UBSan reports undefined behaviour",
        "an assertion failure I cannot explain",
    ),
}
OUT = (
    "Write a sonnet about the first snow.",
    "How much salt goes into bread dough?",
    "Hello! Nice to meet you.",
    "What is the tallest mountain of Africa?",
    "Good evening, how was your day?",
    "Bake the potatoes for forty minutes and serve them with sour cream and chives.",
    "Who painted the ceiling of the Sistine Chapel?",
    "Suggest a name for my kitten.",
    "I wandered lonely as a cloud that floats on high o'er vales and hills",
    "How do I get red wine out of a carpet?",
    "Roast a chicken with lemon and thyme",
    "thank you so much",
)


def share_right(classifier: ExamplesClassifier, fresh: Mapping[str, Sequence[str]]) -> float:
    right = [classifier.classify([text])[0].top == name for name, texts in fresh.items() for text in texts]
    return sum(right) / len(right)


def share_rejected(classifier: ExamplesClassifier) -> float:
    return sum(opinion.top == REJECT for opinion in classifier.classify(OUT)) / len(OUT)


@pytest.fixture(scope="module")
def fields() -> ExamplesClassifier:
    return ExamplesClassifier(FIELDS)


@pytest.mark.parametrize("name", FIELDS)
def test_fresh_prompts_find_their_specialist(fields: ExamplesClassifier, name: str) -> None:
    assert share_right(fields, {name: FRESH[name]}) >= 0.8


def test_descriptions_alone_distinguish_the_eight_specialists() -> None:
    described = ExamplesClassifier({one.name: (one.describe, ()) for one in default_ensemble().specialists})
    assert share_right(described, CPP) >= 0.8
    assert share_rejected(described) >= 0.8


def test_text_unlike_every_specialist_is_rejected(fields: ExamplesClassifier) -> None:
    assert share_rejected(fields) >= 0.8


@pytest.mark.parametrize("name", FIELDS)
def test_an_example_is_classified_with_certainty(fields: ExamplesClassifier, name: str) -> None:
    for opinion in fields.classify(FIELDS[name][1]):
        assert opinion.top == name
        assert opinion.confidence > 0.9


@settings(max_examples=50)
@given(st.lists(st.text(max_size=40) | st.sampled_from([*OUT, *FRESH["sql"]]), max_size=6))
def test_a_batch_equals_single_texts_bit_for_bit(texts: list[str]) -> None:
    again = ExamplesClassifier(FIELDS)
    alone = [opinion for text in texts for opinion in again.classify([text])]
    assert ExamplesClassifier(FIELDS).classify(texts) == alone
    assert all({label for label, _ in opinion.scores} == set(again.labels) for opinion in alone)


@given(
    st.text(max_size=200), st.dictionaries(st.text(max_size=5), st.tuples(st.text(), st.lists(st.text())), max_size=4)
)
@settings(max_examples=100)
def test_any_texts_make_a_classifier(text: str, specialists: dict[str, Texts]) -> None:
    classifier = ExamplesClassifier(specialists)
    (opinion,) = classifier.classify([text])
    for name, (describe, shown) in specialists.items():
        assert describe or shown or dict(opinion.scores).get(name, 0) == 0


def test_a_specialist_without_texts_is_never_chosen_and_changes_nothing(fields: ExamplesClassifier) -> None:
    beside = ExamplesClassifier({"quiet": ("", ()), **FIELDS})
    assert beside.labels == ("quiet", *fields.labels)
    for text in (*OUT, *FRESH["shell"], "quiet"):
        (opinion,), (other,) = beside.classify([text]), fields.classify([text])
        assert dict(opinion.scores).get("quiet", 0) == 0
        assert [share for share in opinion.scores if share[0] != "quiet"] == list(other.scores)


@pytest.mark.parametrize("specialists", [{}, {"sql": ("", ()), "shell": ("", ())}])
def test_without_any_text_everything_is_rejected(specialists: dict[str, Texts]) -> None:
    for opinion in ExamplesClassifier(specialists).classify(["select", ""]):
        assert (opinion.top, opinion.confidence) == (REJECT, 1.0)


def test_single_specialist_is_distinguished_from_reject() -> None:
    alone = ExamplesClassifier({"sql": FIELDS["sql"]})
    assert share_right(alone, {"sql": FRESH["sql"]}) >= 0.8
    assert share_rejected(alone) >= 0.8


@given(st.data())
def test_the_digest_covers_all_texts(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(list(FIELDS)))
    describe, shown = FIELDS[name]
    changed = data.draw(st.sampled_from([(describe + ".", shown), (describe, shown[1:]), (describe, (*shown, ""))]))
    other = {**FIELDS, name: changed}
    assert ExamplesClassifier(FIELDS).digest == ExamplesClassifier(json.loads(json.dumps(FIELDS))).digest
    assert ExamplesClassifier(other).digest != ExamplesClassifier(FIELDS).digest


def test_a_long_prompt_costs_no_more_than_its_sample(fields: ExamplesClassifier) -> None:
    def seconds(text: str) -> float:
        began = thread_time()
        fields.classify([text])
        return thread_time() - began

    line = "SELECT name FROM customers WHERE id = 7;\n"
    long, short = line * 25_000, (line * 100)[:LIMIT]
    assert fields.classify([long])[0].top == "sql"
    assert min(seconds(long) for _ in range(20)) < 3 * min(seconds(short) for _ in range(20))


def test_too_many_example_bytes_are_refused() -> None:
    too_much = ["x" * LIMIT] * (examples.MAX_EXAMPLE_BYTES // LIMIT + 1)
    with pytest.raises(ValueError, match=str(examples.MAX_EXAMPLE_BYTES)):
        ExamplesClassifier({"sql": ("", too_much)})


ENSEMBLE = Ensemble(tuple(SpecialistConfig(name, describe, tuple(shown)) for name, (describe, shown) in FIELDS.items()))


class RejectingClassifier:
    digest = "d" * 64

    def __init__(self, *labels: str) -> None:
        self.labels = labels

    def classify(self, texts: Sequence[str]) -> list[Distribution]:
        return [Distribution(((REJECT, 1.0),)) for _ in texts]


def test_an_ensemble_without_a_path_routes_by_its_texts(fields: ExamplesClassifier) -> None:
    opened = open_classifier(ENSEMBLE)
    assert opened.digest == fields.digest
    assert opened.classify(OUT) == fields.classify(OUT)


@pytest.mark.parametrize("path", ["default", "/models/router"])
def test_trained_classifier_must_not_know_other_specialists(
    path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ensemble = replace(ENSEMBLE, classifier=ClassifierConfig(path=path))

    def open_with(*labels: str) -> object:
        trained = RejectingClassifier(*labels)
        loaders = SimpleNamespace(DEFAULT_FILE="default", read_classifier=lambda file: str(file) == path and trained)
        monkeypatch.setitem(sys.modules, "router.routing.classifier.linear", loaders)
        return open_classifier(ensemble)

    with pytest.raises(ClassifierMismatch, match=r"trained for algo, stl, which .*sql, shell, regex"):
        open_with("sql", "algo", "stl", REJECT)
    assert isinstance(open_with("sql", "shell", "regex", REJECT), RejectingClassifier)
    assert not caplog.records
    assert isinstance(open_with("sql", REJECT), RejectingClassifier)
    assert "shell, regex" in caplog.text
