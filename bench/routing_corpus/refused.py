"""Sources about other languages and other subjects, as near misses of C and C++: what their compilers print, bug hunts
with the description of a task, and short requests of many fields. Bug hunts in C and C++ belong to `debug`."""

import html
import json
import re
import tarfile
import textwrap
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from bench.routing_corpus.phrasing import Item
from bench.routing_corpus.programs import MAX_PROGRAM_CHARS, implant_fault, tidy_code

Prompt = tuple[str, str]  # text and label


@dataclass(frozen=True, slots=True)
class LogSource:
    name: str
    licence: str
    language: str
    root: str  # a path below the folder of unpacked packages
    globs: tuple[str, ...]
    file: str
    command: tuple[str, ...]  # must be on the PATH
    most: int
    is_broken: bool = True  # half of the programs get a fault of syntax; the others are faulty


SOURCES = ("commons-math3", "glib2.0", "ocaml")
"""Debian source packages that only these sources read."""

_GDC_TESTS = "../g/gcc-12.2.0/gcc/testsuite"
_JAVAC_EXAMPLES = "../sources/openjdk-17/*/test/langtools/tools/javac/diags/examples"
_JAVA_LICENCE = "GPL-2.0 WITH Classpath-exception"
LOGS = (
    LogSource("d-tests/gdc", "BSL-1.0", "D", _GDC_TESTS, ("gdc.test/fail_compilation/*.d",), "main.d", ("gdc", "-fsyntax-only", "main.d"), 120, False),
    LogSource("ecj/logs", _JAVA_LICENCE, "Java", ".", (f"{_JAVAC_EXAMPLES}/[A-I]*.java",), "Main.java", ("ecj", "-17", "-proc:none", "-d", "none", "Main.java"), 70),
    LogSource("java/javac-examples", _JAVA_LICENCE, "Java", ".", (f"{_JAVAC_EXAMPLES}/[J-Z]*.java",), "Main.java", ("javac", "-d", ".", "-Xlint:all", "Main.java"), 70),
    LogSource("go/logs", "BSD-3-Clause", "Go", _GDC_TESTS, ("go.test/test/fixedbugs/*.go", "go.test/test/*.go"), "main.go", ("go", "vet", "main.go"), 60),
    LogSource("mcs/logs", "GPL-2.0", "C#", "../sources/keepass2", ("**/*.cs",), "Program.cs", ("mcs", "Program.cs"), 60),
    LogSource("node/logs", "MIT", "JavaScript", "../sources/node-express", ("**/*.js",), "app.js", ("node", "--check", "app.js"), 50),
)  # fmt: skip


def read_programs(source: LogSource, packages: Path, random: Random) -> Iterator[Item]:
    """Yield programs of the source, many of them faulty."""
    root = packages / source.root
    paths = sorted(path for pattern in source.globs for path in root.glob(pattern) if path.is_file())
    random.shuffle(paths)
    for path in paths:
        code = tidy_code(path.read_text(encoding="utf-8", errors="replace"))
        if _MIN_PROGRAM_CHARS < len(code) < MAX_PROGRAM_CHARS * 2:
            code = break_syntax(code, random) if source.is_broken and random.random() < 0.5 else code
            yield Item(path.stem, "", code, "reject", source.language)


_MIN_PROGRAM_CHARS = 60


def break_syntax(code: str, random: Random) -> str:
    """Leave out one mark of the syntax, or change the name of something that is used."""
    places = [match.start() for match in re.finditer(r"[;(){},=]|(?<=\w\w)\w(?=\w*\()", code)]
    at = random.choice(places) if places else 0
    return f"{code[:at]}{code[at + 1 :]}"


_OUTPUT = re.compile(r"TEST_OUTPUT:?(?:\([^)]*\))?\s*---+\n(.*?)\n---", re.DOTALL)


def dmd_logs(packages: Path, random: Random) -> list[Prompt]:
    """Return what the compiler prints according to the tests of D, without the code, which is a source itself."""
    paths = sorted((packages / _GDC_TESTS / "gdc.test/fail_compilation").glob("*.d"))
    found: list[Prompt] = []
    for path in random.sample(paths, len(paths)):
        text = path.read_text(encoding="utf-8", errors="replace")
        output = _OUTPUT.search(text)
        if output is not None and "Error:" in output[1]:
            name = random.choice(("app", "main", "source/app", path.stem))
            log = output[1].replace(f"fail_compilation/{path.stem}.d", f"{name}.d").replace("$n$", "2")
            found.append((_show_log(log, "", "d", random), "reject"))
    return found


def scalac_logs(packages: Path, random: Random) -> list[Prompt]:
    paths = sorted(packages.glob("../sources/scala/*/test/files/neg/*.check"))
    found: list[Prompt] = []
    for path in random.sample(paths, len(paths)):
        program = path.with_suffix(".scala")
        log = path.read_text(encoding="utf-8", errors="replace").strip()
        if program.is_file() and "error" in log:
            code = tidy_code(program.read_text(encoding="utf-8", errors="replace"))
            found.append((_show_log(log.replace(program.name, "Main.scala"), code, "scala", random), "reject"))
    return found


_EXPECTED = re.compile(r"(?:;;|\A)\s*\n((?:(?!;;)[\s\S])+?;;)\s*\[%%expect\{\|\n([\s\S]*?)\|\}\]")


def ocaml_logs(packages: Path, random: Random) -> list[Prompt]:
    found: list[Prompt] = []
    for path in sorted(packages.glob("../sources/ocaml/*/testsuite/tests/typing-*/*.ml")):
        matches = _EXPECTED.findall(path.read_text(encoding="utf-8", errors="replace"))
        for code, log in [each for each in matches if "Error:" in each[1]][:_MOST_OF_FILE]:
            shown = f'File "main.ml", {log[0].lower()}{log[1:]}' if log.startswith("Line") else log
            program = re.sub(r"\(\*[\s\S]*?\*\)", "", code.rsplit("|}]", 1)[-1]).strip()
            found.append((_show_log(shown.strip(), program, "ocaml", random), "reject"))
    return random.sample(found, len(found))


_MOST_OF_FILE, _MAX_LOG_CHARS = 4, 1200
_LOG_FORMS = (
    "{m}", "{m}", "What does this error mean?\n{m}", "I get this:\n\n{m}", "{m}\n\nhow do I fix this?", "{m}\n\n{c}",
    "{c}\n\n{m}", "{c}\n\nthe compiler says\n{m}", "Why does this not compile?\n\n{c}\n\n{m}", "build fails:\n{m}",
    "```{l}\n{c}\n```\n\n```\n{m}\n```", "error when I compile\n\n{m}\n\nThanks!", "{m}\nwhat am I doing wrong?",
)  # fmt: skip


def _show_log(log: str, code: str, language: str, random: Random) -> str:
    form = random.choice([form for form in _LOG_FORMS if code or "{c}" not in form]).replace("{l}", language)
    return form.replace("{m}", log[:_MAX_LOG_CHARS]).replace("{c}", code[:_MAX_LOG_CHARS]).strip()


_DIAGNOSTIC = re.compile(r'diag\((\d+), 1 /\* Error \*/, "\w+", "((?:[^"\\]|\\.)*)"')
_TSC_FORMS = (
    "src/{f}.ts({n},{k}): error TS{i}: {m}", "{f}.ts:{n}:{k} - error TS{i}: {m}", "error TS{i}: {m}", "TS{i}: {m}",
    "ERROR in ./src/{f}.tsx:{n}:{k}\nTS{i}: {m}", "[tsl] ERROR in /app/src/{f}.ts({n},{k})\n      TS{i}: {m}",
    "{f}.ts:{n}:{k} - error TS{i}: {m}\n\n{n}     return this.{f}.get(id);\n{s}~~~\n\nFound 1 error in {f}.ts:{n}",
)  # fmt: skip
_PLACEHOLDERS = ("string", "number | undefined", "User", "id", "Promise<void>", "onClick", "Props", "'./app'", "T")
_FILES = ("index", "main", "user", "api", "store", "router", "service", "utils")


def tsc_messages(npm: Path, random: Random, most: int) -> list[Prompt]:
    """Return messages of TypeScript's compiler; a third of them translated."""
    with tarfile.open(next(npm.glob("typescript-*.tgz"))) as file:
        program = _read_member(file, "package/lib/typescript.js")
        english = {number: json.loads(f'"{text}"') for number, text in _DIAGNOSTIC.findall(program)}
        names = [name for name in file.getnames() if name.endswith("diagnosticMessages.generated.json")]
        translated = [
            (key, text) for name in sorted(names) for key, text in json.loads(_read_member(file, name)).items()
        ]
    others = [(key.rsplit("_", 1)[-1], text) for key, text in translated]
    others = [(number, text) for number, text in others if number in english]
    chosen = [*random.sample(sorted(english.items()), most * 2 // 3), *random.sample(others, most // 3)]
    return [(_show_diagnostic(number, text, random), "reject") for number, text in chosen]


def _read_member(file: tarfile.TarFile, name: str) -> str:
    member = file.extractfile(name)
    if member is None:
        raise ValueError(f"{name} is not a file of the archive")
    return member.read().decode("utf-8")


def _show_diagnostic(number: str, text: str, random: Random) -> str:
    message = re.sub(r"\{\d\}", lambda _: random.choice(_PLACEHOLDERS), text)
    form = random.choice(_TSC_FORMS).replace("{i}", number).replace("{f}", random.choice(_FILES))
    form = form.replace("{n}", str(random.randrange(2, 300))).replace("{k}", str(random.randrange(1, 60)))
    lead = random.choice(
        ("", "", "", "What does this mean?\n", "npm run build fails\n\n", "How do I get rid of this?\n")
    )
    return f"{lead}{form.replace('{s}', ' ' * random.randrange(6, 30)).replace('{m}', message)}"


@dataclass(frozen=True, slots=True)
class HuntSource:
    name: str
    language: str
    globs: tuple[str, ...]  # below the folder of everything that was fetched
    most: int = 60
    is_prompt: bool = False


HUNTS = (
    HuntSource("java-hunts", "Java", ("sources/commons-math3/*/src/main/**/*.java",), 150, True),
    HuntSource("c-hunts", "C", ("sources/glib2.0/*/glib/*.c", "sources/sdcc/*/device/lib/*.c"), 100, True),
    HuntSource("d-hunts", "D", ("packages/libgphobos-12-dev/**/std/**/*.d",), 100),
    HuntSource("java-library-hunts", "Java", ("sources/libcommons-lang3-java/**/main/**/*.java", "sources/guava-libraries/**/*.java")),
    HuntSource("cpp-hunts", "C++", ("sources/abseil/**/*.cc", "sources/poco/*/*/src/*.cpp", "sources/re2/**/*.cc"), 100),
    HuntSource("redis-hunts", "C", ("sources/redis/*/src/*.c", "sources/curl/*/lib/*.c")),
    HuntSource("csharp-hunts", "C#", ("sources/keepass2/**/*.cs",)),
    HuntSource("kotlin-hunts", "Kotlin", ("sources/kotlin/*/libraries/stdlib/**/*.kt",)),
    HuntSource("go-hunts", "Go", ("sources/golang-golang-x-net/**/*.go",)),
    HuntSource("rust-hunts", "Rust", ("sources/rust-ripgrep/**/*.rs", "packages/librust-regex-dev/**/*.rs")),
    HuntSource("javascript-hunts", "JavaScript", ("packages/node-lodash/**/*.js", "packages/node-yargs/**/*.js")),
    HuntSource("php-hunts", "PHP", ("packages/php-symfony-console/**/*.php", "sources/php-monolog/**/src/**/*.php")),
    HuntSource("scala-hunts", "Scala", ("sources/scala/*/src/library/**/*.scala",)),
)  # fmt: skip

_HEAD_ENDS = re.compile(r"\{\s*(?://.*)?$")
_NO_FUNCTION = re.compile(r"^\s*(?:(?:public|private|protected|internal|static|abstract|final|export|pub|sealed|unsafe) )*"
                          r"(?:class|struct|interface|enum|namespace|if|for|while|switch|impl|trait|mod|template|unittest|"
                          r"object|foreach|return|case|default|extern|version|union|do|else|try|type|import|#)\b")  # fmt: skip
_SIGNATURE = re.compile(r"[^=()\[\]{};]*\b[\w~+*/%!-]+(?:[<\[][^()=]*[>\]])?\s*\(|\s*(?:def|fun|func) ")
_TAGS = re.compile(r"<[^<>]+>|\{@(?:code|link|linkplain|literal)\s+([^{}]*)\}|\$\(\w+ ([^()]*)\)|\[\[([^\]]*)\]\]")
_DETAILS = re.compile(
    r"(?:@|\\)\w+|\b(?:Params|Returns|Throws|Example|Examples|See_Also|Note|Since|Arguments|Return value):?\s"
)
_MIN_LINES, _MAX_LINES, _MAX_HEAD_LINES = 5, 45, 5
_MIN_DESCRIPTION, _MAX_DESCRIPTION = 30, 320


def read_hunts(source: HuntSource, folder: Path, random: Random) -> Iterator[Item]:
    """Yield functions with the description of what they should do, and with a fault."""
    paths = sorted(path for pattern in source.globs for path in folder.glob(pattern) if path.is_file())
    label = "debug" if source.language in ("C", "C++") else "reject"
    random.shuffle(paths)
    seen = set[str]()
    for path in paths:
        found = list(_documented(path.read_text(encoding="utf-8", errors="replace").splitlines()))
        for description, code in random.sample(found, min(len(found), _MOST_OF_FILE)):
            faulty = implant_fault(code, random)
            if faulty != code and not re.search(r"!!=|__asm|__naked", faulty) and code not in seen:
                seen.add(code)
                body = _in_class(faulty, source.language, path.stem, random)
                yield Item(path.stem, description, body, label, source.language)


def _documented(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the description and the code of each function that a comment describes."""
    for at, line in enumerate(lines):
        if line.strip().endswith("*/") or (line.strip().startswith("//") and lines[at + 1 : at + 2] != []):
            start = _comment_start(lines, at)
            code = _function(lines, at + 1) if lines[start].strip().startswith(("/*", "//")) else ""
            description = _describe(lines[start : at + 1])
            if code and len(description) > _MIN_DESCRIPTION:
                yield description, code


def _comment_start(lines: Sequence[str], end: int) -> int:
    is_block = lines[end].strip().endswith("*/")
    start = end
    while start > 0 and end - start < 40:
        if is_block and "/*" in lines[start]:
            break
        if not is_block and not lines[start - 1].strip().startswith("//"):
            break
        start -= 1
    return start


def _function(lines: Sequence[str], at: int) -> str:
    """Return the function that begins at the line; empty if none does."""
    if at + 1 < len(lines) and not lines[at].strip():
        at += 1
    while at < len(lines) and re.match(r"\s*(?:@\w+|#\[|\[\w)", lines[at]):
        at += 1
    head = next((n for n in range(at, min(at + _MAX_HEAD_LINES, len(lines))) if _HEAD_ENDS.search(lines[n])), None)
    if (
        head is None
        or not lines[at].strip()
        or _NO_FUNCTION.match(lines[at])
        or not _SIGNATURE.match(signature := " ".join(lines[at : head + 1]))
        or signature.count("(") != signature.count(")")
    ):
        return ""
    if any(lines[n].rstrip().endswith((";", "}", "*/")) or lines[n].strip().startswith("//") for n in range(at, head)):
        return ""
    indent = len(lines[at]) - len(lines[at].lstrip())
    for end in range(head + 1, min(head + _MAX_LINES, len(lines))):
        if lines[end].strip().startswith("}") and len(lines[end]) - len(lines[end].lstrip()) <= indent:
            return textwrap.dedent("\n".join(lines[at : end + 1])) if end - at >= _MIN_LINES else ""
    return ""


def _describe(comment: Sequence[str]) -> str:
    text = " ".join(re.sub(r"^\s*(?:/\*+|\*+/|\*|//[/!]?|/\+\+?)\s?|\*/\s*$", "", line) for line in comment)
    text = html.unescape(_TAGS.sub(lambda match: match[1] or match[2] or match[3] or "", text))
    text = re.sub(r"^\w+:\s+(?:@\w+:.*)?", "", " ".join(text.split()))
    text = _DETAILS.split(text)[0].strip()
    if len(text) > _MAX_DESCRIPTION:
        cut = text[:_MAX_DESCRIPTION].rfind(". ")
        text = text[: cut + 1] if cut > 0 else ""
    return (
        ""
        if re.search(r"(?i)copyright|licen[cs]e|TODO|FIXME|^[-=*#/ ]+$|^https?:|^\W*\S+\W*$|\* \*|;$|^#", text)
        else text
    )


def _in_class(code: str, language: str, stem: str, random: Random) -> str:
    if language not in ("Java", "C#", "C++") or random.random() < 0.3:
        return code
    body = textwrap.indent(code, "    ")
    name = "Solution" if random.random() < 0.6 or not stem.isidentifier() else stem
    return f"class {name} {{\npublic:\n{body}\n}};" if language == "C++" else f"class {name} {{\n{body}\n}}"


_SUITES = ("banking", "slack", "travel", "workspace")


def requests(wheels: Path, random: Random, most: int) -> list[tuple[str, str, list[Prompt]]]:
    """Return short requests to an assistant, of benchmarks about the web, about an office and about writing."""
    with zipfile.ZipFile(next(wheels.glob("inspect_evals-*.whl"))) as file:
        web = json.loads(file.read("inspect_evals/mind2web_sc/data/seeact/sample_labeled_all.json"))
        office = [file.read(f"inspect_evals/agentdojo/task_suites/{name}/user_tasks.py").decode() for name in _SUITES]
        writing = file.read("inspect_evals/writingbench/benchmark_all.jsonl").decode().splitlines()
    errands = [" ".join(row["confirmed_task"].split()) for row in web]
    tasks = [_join_literals(match) for text in office for match in _TASK.findall(text)]
    tasks = [text for text in tasks if "{" not in text and len(text) < _MAX_REQUEST_CHARS]
    texts = [row["query"].strip() for row in map(json.loads, writing) if not re.search(_TECHNICAL, row["query"])]
    texts = [text for text in texts if len(text) < _MAX_REQUEST_CHARS]
    return [
        ("requests-web", "MIT", _sample(errands, random, most)),
        ("requests-office", "MIT", _sample(tasks, random, most)),
        ("requests-writing", "MIT", _sample(texts, random, most)),
    ]


_TASK = re.compile(r"PROMPT(?:: str)? = \(?\s*((?:f?\"(?:[^\"\\]|\\.)*\"\s*)+)")
_QUOTED = re.compile(r"f?\"((?:[^\"\\]|\\.)*)\"")
_TECHNICAL = r"(?i)\bC\+\+|\bcode|program|software|algorithm|compil|computer"
_MAX_REQUEST_CHARS = 600


def _join_literals(text: str) -> str:
    return "".join(_QUOTED.findall(text)).replace('\\"', '"').replace("\\n", "\n")


def _sample(texts: Sequence[str], random: Random, most: int) -> list[Prompt]:
    unique = sorted(set(texts))
    return [(text, "reject") for text in random.sample(unique, min(most, len(unique)))]
