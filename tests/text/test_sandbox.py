"""A hostile chat template is refused and does no harm."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from specialist.text.codec import ChatTemplate, TemplateLimits
from specialist.text.prompt import ChatTurn, TemplateRefused
from tests.patience import PATIENCE
from tests.text.vocabularies import words

QUICK = TemplateLimits(seconds=0.3, max_memory=256 << 20)
LOOP = (
    "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}{% endfor %}{% endfor %}"
)
ASKED = "{% if messages[0].content == 'harm' %}" + LOOP + "{% endif %}fine"


def template(source: str, limits: TemplateLimits | None = None) -> ChatTemplate:
    return ChatTemplate(words("gpt-2", source).vocabulary, limits=limits)


HARMFUL = {
    "a loop": LOOP,
    "a number": "{{ 9 ** (9 ** 9) }}",
    "a number of the conversation": "{{ (9 + messages|length) ** (9 ** 9) }}",
    "a string": "{{ 'a' * 10 ** 9 }}",
    "a string of the conversation": "{{ messages[0].content * 10 ** 9 }}",
    "an output": "{% for a in range(9999) %}{{ 'a' * 1000 }}{% endfor %}",
    "a block": "{% set x %}{% for a in range(99999) %}{{ 'a' * 99999 }}{% endfor %}{% endset %}",
    "a list": "{{ [0] * 10 ** 9 }}",
    "a range": "{% for i in range(10 ** 9) %}{% endfor %}",
    "a recursion": "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
    "a lookup of classes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "a module": "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "another module": "{{ lipsum.__globals__['os'].getcwd() }}",
    "a format": "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
    "an import": "{% import 'os' as os %}",
    "an include": "{% include '/etc/passwd' %}",
    "a change of the messages": "{{ messages.append(1) }}",
    "half a character": "{{ '\\ud800' }}",
    "nonsense": "{% endfor %}",
    "nesting": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
}


@pytest.mark.parametrize("source", HARMFUL.values(), ids=HARMFUL.keys())
def test_a_hostile_template_is_refused_in_time(source: str) -> None:
    harmful = template(source, QUICK)
    started = time.monotonic()
    with pytest.raises(TemplateRefused):
        harmful.render([ChatTurn("user", "a")])
    assert time.monotonic() - started < PATIENCE  # without limits most of these templates would run for hours
    harmful.close()


def test_after_a_conversation_that_hung_the_next_is_served() -> None:
    asked = template(ASKED)
    fine = asked.render([ChatTurn("user", "a")])
    for _ in range(2):
        with pytest.raises(TemplateRefused, match="took too long"):
            asked.render([ChatTurn("user", "harm")])
        assert asked.render([ChatTurn("user", "a")]) == fine
    asked.close()
    assert asked.render([ChatTurn("user", "a")]) == fine
    asked.close()


def test_nothing_is_left_of_a_process_that_was_killed() -> None:
    def num_open() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    def children() -> set[str]:
        return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())

    before, family = num_open(), children()
    asked = template(ASKED)
    for _ in range(3):
        with pytest.raises(TemplateRefused):
            asked.render([ChatTurn("user", "harm")])
    assert num_open() == before
    assert children() == family
    asked.render([ChatTurn("user", "a")])
    del asked
    assert num_open() == before
    assert children() == family


def test_many_threads_share_one_template() -> None:
    shared = template("{{ messages[0].content }}")
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda word: shared.render([ChatTurn("user", word)]), [str(n) for n in range(200)]))
    assert got == [shared.render([ChatTurn("user", str(n))]) for n in range(200)]
    shared.close()


def test_a_template_sees_nothing_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTET_SECRET", "swordfish")
    asked = template("the")
    asked.render([])
    child = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()[-1]
    assert b"swordfish" not in Path(f"/proc/{child}/environ").read_bytes()
    assert b"torch" not in Path(f"/proc/{child}/maps").read_bytes()
    asked.close()
