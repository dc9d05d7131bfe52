"""How a decision stands up to what people write around a question: code, greetings, quotes, other scripts, conversations.

python -m bench.routing_rows [--prompts REAL_PROMPTS.jsonl]
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from statistics import median, quantiles
from time import thread_time

from octet.cli.router import HELD_OUT_FILE, corpus_files
from octet.clock import SystemClock
from octet.config.ensemble import REJECT
from octet.config.loader import default_ensemble
from octet.terminal import format_table
from octet.v1 import inference_pb2 as wire
from router.request import Request, Tracer
from router.routing.classifier.linear import DEFAULT_FILE, read_classifier
from router.routing.policy import RoutingPolicy
from router.routing.training.records import LabelledPrompt, read_records
from router.routing.validation import RequestValidator

MEASURED_ONLY = ("codealpaca", "alpaca")  # sources of real prompts that no model here is trained on
OTHER_LOGS = (
    "   Compiling app v0.1.0 (/home/me/app)\nerror: linking with `cc` failed: exit status: 1\n  = note: /usr/bin/ld: cannot "
    "find -lssl\n          collect2: error: ld returned 1 exit status\n\nerror: could not compile `app` due to previous error",
    "error: linking with `cc` failed: exit status: 1\n  = note: undefined reference to `sqlite3_open'\n          collect2: "
    "error: ld returned 1 exit status\n",
    "thread 'main' panicked at 'index out of bounds', src/main.rs:4:5\nstack backtrace:\n   0: rust_begin_unwind\n   1: "
    "core::panicking::panic_fmt\n",
    "# command-line-arguments\n/usr/bin/ld: /tmp/go-link-1/000001.o: undefined reference to `foo'\ncollect2: error: ld "
    "returned 1 exit status",
    "/usr/local/go/pkg/tool/linux_amd64/link: running gcc failed: exit status 1\n/usr/bin/ld: cannot find -lpcap\ncollect2: "
    "error: ld returned 1 exit status",
    "npm ERR! code 1\nnpm ERR! path /app/node_modules/bcrypt\nnpm ERR! make: *** No rule to make target 'Release/bcrypt.node'."
    "  Stop.\nnpm ERR! gyp ERR! build error",
    "gyp info spawn make\nmake: *** No rule to make target '../deps/a.c', needed by 'a.o'.  Stop.\ngyp ERR! build error \ngyp "
    "ERR! stack Error: `make` failed with exit code: 2",
    "! LaTeX Error: File `tikz.sty' not found.\n\nType X to quit.\nmake: *** No rule to make target 'figures/a.pdf', needed by "
    "'thesis.pdf'.  Stop.",
    "latexmk -pdf thesis.tex\nThis is pdfTeX, Version 3.14\nLatexmk: Errors, so I did not complete making targets\nninja: error: "
    "'figures/b.pdf', needed by 'thesis.pdf', missing and no known rule to make it",
)
ERRORS = (
    "main.cpp:(.text+0x1f): undefined reference to `Shape::area() const'\ncollect2: error: ld returned 1 exit status",
    "/usr/bin/ld: main.o: undefined reference to `pthread_create'",
    "ld: symbol(s) not found for architecture arm64\nclang: error: linker command failed with exit code 1",
    'main.obj : error LNK2019: unresolved external symbol "void __cdecl f(void)" referenced in function main',
)
SOLVED = (
    "Earlier I had this error:\n\n> {e}\n\nThat is solved now, I forgot a file. My question is another one.\n\n{q}",
    "Yesterday the linker said:\n```\n{e}\n```\nI fixed it by adding the library. Now to something else:\n{q}",
    "{e}\n\nThis error is already resolved.\n\n{q}",
    "(The error `{e}` from my last mail has been fixed, thanks.) {q}",
)
_GREETED = (
    "Hi everyone,\n\n{q}\n\nThanks in advance!", "Hello! I hope you are doing well. {q} Thank you very much.",
    "Good morning,\n{q}\nAny help is appreciated.\nBest regards, Sam", "Hey, quick question: {q} Cheers",
    "Dear all, sorry for my bad English. {q} Many thanks for your help and have a nice day!",
)  # fmt: skip
_FOREIGN = {
    "Russian": "template:Как написать шаблонную функцию с переменным числом аргументов?|template:Почему не работает вывод аргументов шаблона для "
    "конструктора?|stl:Как отсортировать std::vector по убыванию?|stl:Как проверить, есть ли ключ в unordered_map?|algo:Реализуйте обход дерева в "
    "глубину и оцените сложность|memory:Почему при копировании shared_ptr растёт счётчик ссылок?|memory:Чем конструктор копирования отличается "
    "от конструктора перемещения?|concurrency:Как синхронизировать два потока без блокировок?|concurrency:Что делает std::lock_guard с мьютексом?|"
    "systems:Как читать данные из сокета с таймаутом в Linux?|build:Как указать CMake путь к библиотеке Boost?|debug:Почему моя программа на C++ "
    "завершается с ошибкой сегментации?",
    "Chinese": "template:怎么写可变参数的模板函数?|template:为什么模板参数推导对构造函数不起作用?|stl:std::vector 怎么按降序排序?|stl:怎么判断 unordered_map 里有没有某个键?|"
    "algo:实现树的深度优先遍历并分析复杂度|memory:复制 shared_ptr 时引用计数为什么会增加?|memory:拷贝构造函数和移动构造函数有什么不同?|concurrency:怎么让两个线程无锁同步?|"
    "concurrency:std::lock_guard 对互斥量做了什么?|systems:Linux 下怎么带超时地从套接字读数据?|build:CMake 里怎么指定 Boost 库的路径?|debug:我的 C++ 程序为什么会段错误退出?",
    "German": "template:Wie schreibe ich eine Template-Funktion mit beliebig vielen Argumenten?|template:Warum klappt die Ableitung der "
    "Template-Argumente beim Konstruktor nicht?|stl:Wie sortiere ich einen std::vector absteigend?|stl:Wie prüfe ich, ob ein Schlüssel in der "
    "unordered_map ist?|algo:Implementiere eine Tiefensuche im Baum und bestimme die Laufzeit|memory:Warum steigt der Referenzzähler beim Kopieren "
    "eines shared_ptr?|memory:Was unterscheidet Kopierkonstruktor und Move-Konstruktor?|concurrency:Wie synchronisiere ich zwei Threads ohne "
    "Sperren?|concurrency:Was macht std::lock_guard mit dem Mutex?|systems:Wie lese ich unter Linux mit Zeitlimit aus einem Socket?|build:Wie gebe "
    "ich CMake den Pfad zur Boost-Bibliothek an?|debug:Warum bricht mein C++-Programm mit einem Speicherzugriffsfehler ab?",
}
_FOLLOW_UPS = ("yes, please do that", "Why is that?", "Could you show an example of it?", "and what if I do it the other way round?",
               "Is there a shorter version of that?", "I do not understand the second part, please explain it again")  # fmt: skip
_CODE_BYTES = (1000, 3000)
_TIMED_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Row:
    measured: str
    share: float
    num: int


class Decider:
    def __init__(self) -> None:
        self.policy = RoutingPolicy(default_ensemble())
        self.classifier = read_classifier(DEFAULT_FILE)
        self._validator = RequestValidator(SystemClock(), lambda: "bench", Tracer(bytes), default_timeout=60.0)

    def decide(self, *said: str) -> tuple[str, str]:
        """Return the specialist (or `reject`) and the source of the decision, after these turns of the user."""
        return self.decide_request(self.read(*said))

    def read(self, *said: str) -> Request:
        messages = [wire.Message(role="user", content=text) for text in said]
        return self._validator.validate(wire.InferRequest(messages=messages), None, None)

    def decide_request(self, request: Request) -> tuple[str, str]:
        [scores] = self.classifier.classify([request.text])
        decision = self.policy.decide(request, scores, self.classifier.digest)
        return decision.primary or REJECT, decision.source


def _is_plain(record: LabelledPrompt) -> bool:
    return "\n" not in record.text and record.label != REJECT and len(record.text) < 400


def measure(decider: Decider, prompts: Sequence[LabelledPrompt]) -> list[Row]:
    random = Random(0)
    right = [each for each in prompts if decider.decide(each.text)[0] == each.label]
    plain = [each for each in right if _is_plain(each)]
    programs = [each for each in read_records(corpus_files()) if each.source in ("code", "programs")]
    codes = [each for each in programs if each.label not in (REJECT, "build", "debug")]
    codes = [each for each in codes if _code_of(each.text) and decider.decide(_code_of(each.text))[1] != "rule"]
    rows: list[Row] = []

    def add(measured: str, good: Sequence[bool]) -> None:
        rows.append(Row(measured, sum(good) / len(good) if good else 0.0, len(good)))

    def stays(change: Callable[[str], str], chosen: Sequence[LabelledPrompt]) -> list[bool]:
        return [decider.decide(change(each.text))[0] == each.label for each in chosen]

    for size in _CODE_BYTES:
        good = []
        for each in plain:
            code = "\n".join(
                _code_of(other.text) for other in random.sample(codes, len(codes)) if other.label != each.label
            )[:size]
            good.append(decider.decide(f"{each.text}\n\n{code}")[0] == each.label)
        add(f"the question's label wins beside {size} bytes of other code", good)
    firsts = random.sample(plain, min(12, len(plain)))
    short = [each for each in plain if len(each.text) < 100]
    news = [(a, b) for a in firsts for b in random.sample(short, min(12, len(short))) if a.label != b.label]
    add(
        "a short new topic goes to its own specialist",
        [decider.decide(a.text, _FOLLOW_UPS[2], b.text)[0] == b.label for a, b in news],
    )
    add(
        "a short new topic goes to the old specialist",
        [decider.decide(a.text, _FOLLOW_UPS[2], b.text)[0] == a.label for a, b in news],
    )
    add("a vague follow-up stays", [decider.decide(a.text, text)[0] == a.label for a in firsts for text in _FOLLOW_UPS])
    add(
        "greeting and thanks keep a right decision",
        [good for form in _GREETED for good in stays(partial(_fill, form), plain)],
    )
    others = [each for each in plain if each.label not in ("build",)]
    add(
        "a quoted, solved linker error keeps the decision",
        [
            decider.decide(random.choice(SOLVED).replace("{e}", random.choice(ERRORS)).replace("{q}", each.text))[0]
            == each.label
            for each in others
        ],
    )
    add(
        "a quoted, solved linker error moves it to build",
        [
            decider.decide(random.choice(SOLVED).replace("{e}", random.choice(ERRORS)).replace("{q}", each.text))[0]
            == "build"
            for each in others
        ],
    )
    add(
        "an unsolved linker error goes to build",
        [decider.decide(f"What does this mean?\n{each}")[0] == "build" for each in ERRORS],
    )
    add(
        "logs of Rust, Go, Node.js and LaTeX that a rule takes",
        [decider.decide(each)[1] == "rule" for each in OTHER_LOGS],
    )
    add("the same decision after no-break spaces", stays(lambda text: text.replace(" ", "\u00a0"), right))
    add("the same decision after zero-width spaces", stays("\u200b".join, right))
    add("the same decision in full-width letters", stays(_widen, plain))
    for language, listed in _FOREIGN.items():
        pairs = [each.split(":", 1) for each in listed.split("|")]
        add(f"C++ questions in {language}", [decider.decide(text)[0] == label for label, text in pairs])
    return rows


def decision_times(decider: Decider, prompts: Sequence[LabelledPrompt]) -> list[float]:
    """Return the milliseconds of processor time that each prompt's decision takes by rules and the classifier: the
    least of several, because the machine has other work."""
    times = []
    for each in prompts:
        request = decider.read(each.text)
        times.append(min(_milliseconds(partial(decider.decide_request, request)) for _ in range(_TIMED_ROUNDS)))
    return times


def _milliseconds(call: Callable[[], object]) -> float:
    began = thread_time()
    call()
    return 1000 * (thread_time() - began)


def _code_of(text: str) -> str:
    return "\n".join(
        line for line in text.splitlines() if line.endswith((";", "{", "}")) or line.startswith(("#", "  "))
    )


def _fill(form: str, question: str) -> str:
    return form.replace("{q}", question)


def _widen(text: str) -> str:
    return "".join(chr(ord(each) + 0xFEE0) if "!" <= each <= "~" else each for each in text)


def read_real(path: Path) -> list[LabelledPrompt]:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [LabelledPrompt(each["text"], each["label"], each["source"]) for each in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--prompts", type=Path, help="also measure on these real prompts: the sources that were not trained on"
    )
    options = parser.parse_args()
    decider = Decider()
    prompts = read_records([HELD_OUT_FILE])
    print(
        format_table(
            ("measured", "share", "of"),
            [(row.measured, f"{row.share:.1%}", str(row.num)) for row in measure(decider, prompts)],
        )
    )
    times = decision_times(decider, prompts)
    print(f"a decision by the classifier, ms: p50 {median(times):.2f}, p95 {quantiles(times, n=20)[-1]:.2f}")
    if options.prompts is not None:
        real = [each for each in read_real(options.prompts) if each.source.startswith(MEASURED_ONLY)]
        good = [decider.decide(each.text)[0] == each.label for each in real]
        hunts = [decider.decide(each.text)[0] == "debug" for each in real if each.label == "debug"]
        times = decision_times(decider, read_real(options.prompts))
        print(f"of all real prompts, ms: p50 {median(times):.2f}, p95 {quantiles(times, n=20)[-1]:.2f}")
        print(f"real prompts: {sum(good)} of {len(good)} right; bug hunts to debug: {sum(hunts)} of {len(hunts)}")


if __name__ == "__main__":
    main()
