"""Rules ignore what other languages' tools print, and solved errors. Follow-ups are told from new topics."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.routing_rows import ERRORS, OTHER_LOGS, SOLVED
from router.routing.follow_ups import is_follow_up
from router.routing.rules.detectors import DETECTORS
from router.routing.rules.text import ScannedText
from router.routing.solved import after_solved
from tests.router.routing.sample_conversations import FIRST, FOLLOW_UPS, NEW_QUESTIONS

QUESTION = "How do I sort a std::vector by two members?"


def detected(text: str) -> list[str]:
    return [name for name, detect in DETECTORS.items() if detect(ScannedText(text)) is not None]


@pytest.mark.parametrize("log", OTHER_LOGS)
def test_logs_of_other_languages_match_no_rule(log: str) -> None:
    assert detected(log) == []


@given(st.sampled_from(SOLVED), st.sampled_from(ERRORS))
def test_a_solved_error_matches_no_rule(form: str, error: str) -> None:
    text = form.replace("{e}", error).replace("{q}", QUESTION)
    assert detected(text) == []
    assert text[after_solved(text) :].endswith(QUESTION)


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize(
    "text",
    [
        "How can this be fixed?\n{e}",
        "{e}\nI have not solved this yet.",
        "I fixed the path, but now I get:\n{e}",
        "{e}",
        "Here we go: {e}",
        "algo: {e}",
    ],
)
def test_an_unsolved_error_matches(text: str, error: str) -> None:
    assert "linker-output" in detected(text.replace("{e}", error))


@pytest.mark.parametrize(
    "text",
    [
        *FOLLOW_UPS,
        "Thanks!\n\nCould you show me an example of that?",
        "why?",
        "And with three of them?",
        "Is that safe?",
        "what about exceptions?",
    ],
)
def test_a_vague_turn_is_a_follow_up(text: str) -> None:
    assert is_follow_up(text)


@pytest.mark.parametrize(
    "text",
    [
        *FIRST.values(),
        *NEW_QUESTIONS.values(),
        "What is a mutex?",
        "How does epoll work?",
        "write a haiku about rain",
        "why?\nfor (it; it; ++it)\n  it();",
        "And does that mutex protect the vector or the map?",
        "Чем конструктор копирования отличается от конструктора перемещения?",
    ],
)
def test_a_turn_with_its_own_subject_is_none(text: str) -> None:
    assert not is_follow_up(text)


OTHER_FOLLOW_UPS = (
    "Почему?", "Покажи, пожалуйста, ещё один пример.", "Объясните подробнее вторую часть", "А если сделать по-другому?",
    "为什么?", "请再详细解释一下", "能不能给我一个更简单的例子?", "第二种方法是什么意思?",
    "なぜですか?", "もっと詳しく説明してください", "他の方法はありますか?",
    "Kannst du das bitte noch einmal genauer erklären?", "Und warum ist das so?",
    "Peux-tu me donner un autre exemple, s'il te plaît ?", "Pourquoi est-ce que ça ne marche pas ?",
    "¿Puedes mostrarme un ejemplo más corto?", "¿Por qué no funciona?", "Você pode explicar isso mais uma vez?",
)  # fmt: skip
OTHER_SUBJECTS = {
    "Что такое {x}?": "таблица виртуальных функций|взаимная блокировка|утечка памяти|шаблон класса",
    "Как работает {x}": "сборка проекта|умный указатель|планировщик потоков",
    "什么是{x}?": "虚函数表|内存泄漏|移动构造函数|条件变量",
    "请再解释一下{x}": "虚函数表|内存泄漏|模板参数推导",
    "{x}とは何ですか": "仮想関数|デッドロック|スマートポインタ",
    "Was ist eine {x}?": "Klassenvorlage|Ausnahme|Speicherverwaltung|Bedingungsvariable",
    "Comment fonctionne {x} ?": "un pointeur intelligent|la liaison dynamique",
    "¿Cómo funciona {x}?": "un puntero inteligente|la herencia múltiple",
    "O que é {x}?": "um vazamento de memória|herança múltipla",
}


@pytest.mark.parametrize("text", OTHER_FOLLOW_UPS)
def test_a_vague_turn_in_another_language_is_a_follow_up(text: str) -> None:
    assert is_follow_up(text)


@given(st.sampled_from([form.replace("{x}", each) for form, xs in OTHER_SUBJECTS.items() for each in xs.split("|")]))
def test_a_subject_in_another_language_is_none(text: str) -> None:
    assert not is_follow_up(text)
    assert is_follow_up(f"{text} " * 9) is False


@given(
    st.sampled_from([text for text in OTHER_FOLLOW_UPS if not text.isascii() and text[0] > "\u024f"]),
    st.sampled_from(["std::move", "RAII", "CMake", "unique_ptr", "C++"]),
)
def test_a_latin_word_beside_another_script_is_a_subject(text: str, word: str) -> None:
    assert not is_follow_up(f"{word} {text}")


@given(st.text("абвгд", min_size=13), st.text("虚函数表锁", min_size=7))
def test_unknown_words_of_another_script_are_a_subject(letters: str, ideographs: str) -> None:
    assert not is_follow_up(letters) and not is_follow_up(ideographs)
    assert is_follow_up(letters[:12]) and is_follow_up(ideographs[:6])


@pytest.mark.parametrize("text", ["could you explain that?", "why?", "What is a mutex?", "How does epoll work?"])
def test_invisible_and_wide_characters_do_not_change_what_is_a_follow_up(text: str) -> None:
    wide = "".join(chr(ord(each) + 0xFEE0) if "!" <= each <= "~" else each for each in text)
    for form in (text.replace(" ", "\u00a0"), "\u200b".join(text), wide):
        assert is_follow_up(form) == is_follow_up(text)


@pytest.mark.parametrize("gap", [0, 5000])
@pytest.mark.parametrize("form", SOLVED)
def test_a_solved_error_is_ignored_at_both_ends_of_a_long_text(form: str, gap: int) -> None:
    solved = form.replace("{e}", ERRORS[0]).replace("{q}", "")
    for text in (f"{solved} {'a b ' * gap}", f"{'a b ' * gap}\n{solved}"):
        assert "linker-output" not in detected(text)


@pytest.mark.parametrize("gap", [1, 7])
def test_the_line_of_a_match_behind_a_solved_error_is_that_of_the_whole_text(gap: int) -> None:
    text = f"{ERRORS[1]}\nThis is solved now.{chr(10) * gap}{ERRORS[1]}"
    match = DETECTORS["linker-output"](ScannedText(text))
    assert match is not None and match.line == text[: text.rindex(ERRORS[1])].count("\n") + 1


FIXED_KINDS = st.sampled_from(["size", "sized", "width", "length", "point", "number", "-size", "-width", "-point"])
THINGS = st.sampled_from(["data", "file", "value", "second element", "window", "cursor", "connection"])
MOMENTS = st.sampled_from(
    ["after a restart", "when I reload", "once the thread ends", "if I copy it", "as soon as I look"]
)
REMAINS = st.sampled_from(["crashes", "fails", "does not link", "happens", "gives the same output", "prints nothing"])
BELIEFS = st.sampled_from(["I thought", "I assumed that", "They said", "We believed"])
OPEN = st.one_of(
    st.builds("{} fixed {} arrays, why does it crash?".format, st.sampled_from(["I have", "It has"]), FIXED_KINDS),
    st.builds("The {} is gone {}: what is wrong?".format, THINGS, MOMENTS),
    st.builds("{} this was {} in 12 but it still {}.".format, BELIEFS, st.sampled_from(["fixed", "solved"]), REMAINS),
    st.builds("The error was {} last week, but now it is back.".format, st.sampled_from(["fixed", "gone"])),
    st.just("It works now only in debug builds."),
)


@given(OPEN, st.sampled_from(ERRORS))
def test_what_is_not_solved_counts(text: str, error: str) -> None:
    said = text.replace(" -", "-")
    assert after_solved(f"{said} {QUESTION}") == 0
    assert "linker-output" in detected(f"{error}\n\n{said} {QUESTION}")


@given(
    st.sampled_from(["error", "problem", "warning", "crash"]),
    st.sampled_from(["after I added the library", "since the update", "now"]),
)
def test_a_trouble_that_is_gone_is_solved(trouble: str, when: str) -> None:
    said = f"The {trouble} is gone {when}. "
    assert after_solved(said + QUESTION) == len(said)


RUST_TRACE = """#0  0x00005555 in std::rt::lang_start_internal () at /rustc/90c5418/library/std/src/rt.rs:148
#1  0x00005556 in app::main () at src/main.rs:4
"""
PYTHON_BUILD = """  error: subprocess-exited-with-error
  building 'fast' extension
  x86_64-linux-gnu-g++ -shared build/fast.o -o build/fast.so
  /usr/bin/ld: build/fast.o: undefined reference to `deflateInit_'
  collect2: error: ld returned 1 exit status
  ERROR: Failed building wheel for fast
"""


@given(st.sampled_from(["", "stack backtrace:\n   0: std::panicking::begin_panic\n", "Why?\n"]))
def test_the_library_of_rust_is_not_that_of_cpp(before: str) -> None:
    assert detected(before + RUST_TRACE) == []
    assert detected(
        RUST_TRACE.replace("/rustc/90c5418/library/std/src/rt.rs", "a.cc").replace("src/main.rs", "main.cc")
    )


def test_a_linker_error_in_an_extension_of_python_is_a_linker_error() -> None:
    assert detected(PYTHON_BUILD) == ["linker-output"]
    assert detected(PYTHON_BUILD.replace("g++", "gfortran")) == []


@pytest.mark.parametrize("text", ["How can I get it fixed?", "I want this fixed.", "It works only if it is fixed."])
def test_a_wish_is_no_solution(text: str) -> None:
    assert after_solved(f"It fails. {text} More text.") == 0
    assert after_solved("It fails. It is fixed. More text.") > 0
