"""Sources about C: documentation, checks of tools, test suites of compilers and the messages about them. The place in
the source gives the label; a text that two specialists can answer has both."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random

from bench.routing_corpus.documents import DocumentSource, Rules
from bench.routing_corpus.phrasing import Item
from bench.routing_corpus.programs import SuiteSource, fill_message, label_log, tidy_code

_LINUX: Rules = (
    (r"^/(translations|arch|gpu|sound|admin-guide/(LSM|laptops))/", ""),
    (
        r"^/(locking|RCU)/|^/kernel-hacking/locking|^/core-api/(local_ops|refcount-vs-atomic|workqueue|padata|this_cpu|irq)|"
        r"^/process/volatile",
        "concurrency",
    ),
    (r"^/core-api/(kref|memory-allocation|unaligned|mm-api|genalloc|pin_user|dma-api|gfp_mask|boot-time-mm)", "memory"),
    (r"^/mm/", "memory|systems"),
    (r"^/core-api/(rbtree|xarray|idr|maple_tree|assoc_array|circular-buffers|generic-radix-tree)", "algo|stl"),
    (r"^/core-api/(printk-formats|printk-basics)", "stl|systems"),
    (r"^/core-api/symbol-namespaces|^/kbuild/", "build"),
    (
        r"^/dev-tools/(kasan|ubsan|kcsan|kmsan|kmemleak|gdb|kgdb|sparse|kfence|checkpatch)|^/admin-guide/(bug|tainted)",
        "debug",
    ),
    (r"^/trace/(ftrace|kprobe|uprobe|events)|^/fault-injection", "debug|systems"),
    (
        r"^/(filesystems|networking|userspace-api|PCI|block|timers|scheduler|driver-api|usb|spi|i2c|core-api)/",
        "systems",
    ),
)
_GLIB: Rules = (
    (r"#(Returns|Functions|Description|Since|Flags|Types and Values|Deprecated|.* macro)", ""),
    (r"/glib-(Threads|Thread-Pools|Asynchronous-Queues|Atomic-Operations|Deprecated-Thread)", "concurrency"),
    (r"/glib-(Memory-|Reference-|Atomically-reference|Trash)", "memory"),
    (
        r"/glib-(The-Main|Spawning|IO-Channels|File-|UNIX|Windows|Shell|Hostname|Timers|Commandline|Miscellaneous-Utility)",
        "systems",
    ),
    (r"/glib-(Balanced|N-ary|Random)", "algo|stl"),
    (
        r"/glib-(Arrays|Byte-Arrays|Pointer-Arrays|Hash|Singly|Doubly|Double-ended|Sequences|String|Date|GDateTime|GTimeZone|"
        r"Unicode|Character|Caches|Datasets|Keyed|Quarks|Perl|Glob|Relations|Base64|Automatic)",
        "stl",
    ),
    (r"/glib-(Warnings|Testing|Message-Logging|Error)", "debug"),
    (r"/glib-(building|compiling|cross|Version|Dynamic-Loading)", "build"),
    (r"/glib-(Bounds|Basic-Types|Byte-Order|Numerical|Type-Conversion)", "memory"),
)
_SPLINT: Rules = (
    (
        r"#.*(Macro|Header|Librar|Iterator|Preprocessing|Unnecessarily External|Declarations Missing|Complete Programs)",
        "build",
    ),
    (
        r"#(Likely Infinite|Problematic Control|Suspicious Statements|Statements with No|Ignored Return|Warnings)",
        "debug|memory",
    ),
    (r"#(Switches|Deep Breaks|Loop and If|Complete Logic)", "debug|memory"),
    (
        r"#(Null|Undefined|Notnull|Predicate|Partially|Built in C|Characters|Enumerators|Numeric|Arbitrary|Boolean|Abstract|"
        r"Controlling Access|Mutability|Polymorphism|Memory|Storage|Dealloc|Unshared|Temporary|Owned|Keep|Shared|Stack|Inner|"
        r"Implicit Memory|Reference Counting|Sharing|Aliasing|Unique|Returned|Exposure|Read-Only|String Literals|Exposed|"
        r"Buffer|Checking Accesses|Annotating Buffer|Global Variables|Modifications|Execution)",
        "memory",
    ),
)
_AVR: Rules = (
    (r"#(Detailed Description|Overview|Introduction|Brief)|__AVR_LIBC", ""),
    (r"inttypes.html#.*(PRI|SCN)", "stl"),
    (r"FAQ.html#.*(reentrant|updated within an interrupt)", "concurrency|memory"),
    (r"FAQ.html#.*(undefined reference|linker|-O flag|relocate|raw binary|clock skew|C\+\+ on the AVR)", "build"),
    (r"FAQ.html#.*(gdb|randomly jump|detect RAM|generating nonsense|baud rate)", "debug|systems"),
    (
        r"FAQ.html#.*(initialize all|array of strings|_BV|8-bit operation|pass an IO port|foo\.\.\.bar|function pointers)",
        "memory|systems",
    ),
    (r"FAQ.html#.*\?$", "systems"),
    (r"/(malloc|group__alloca|group__avr__(stdint|inttypes))", "memory"),
    (r"/group__avr__(string|stdio|stdlib|time)|/group__ctype", "stl"),
    (r"/group__util__atomic", "concurrency"),
    (r"/(mem_sections|using_tools|overview|optimization|library|group__avr__version)", "build"),
    (
        r"/(group__avr__(interrupts|sleep|io|eeprom|watchdog|power|pgmspace|boot)|group__util|inline_asm|assembler)",
        "systems",
    ),
)
_TIDY: Rules = (
    (
        r"checks/(objc|.*osx|google-objc|altera|fuchsia-|list|index|abseil-duration|abseil-time|zircon|llvm-|llvmlibc|darwin)",
        "",
    ),
    (r"checks/(concurrency|cert-con|cert-pos4)|spuriously|signal-to-kill|spinlock|mt-unsafe", "concurrency"),
    (
        r"include|header|namespace|macro|forward-declaration|definitions|using-|reserved-identifier|global-names",
        "build",
    ),
    (
        r"cloexec|posix|signal|env33|fio38|err33|vfork|insecureAPI.(getpw|mk)|optin.portability.Unix|temp-failure",
        "systems",
    ),
    (
        r"static-assert|forwarding-reference|-auto|trailing|constexpr|overload|template|transparent|type-traits|concat-nested",
        "template",
    ),
    (r"sizeof|memset|memory-comparison|malloc|in-alloc|array|insecureAPI", "memory"),
    (
        r"string|str-|strcat|container|ranges|inaccurate-erase|emplace|loop-convert|for-range|shrink|random|avoid-bind|"
        r"raw-string|transform|algorithm|iterator|insert|map|lambda|faster",
        "stl",
    ),
    (r"clang-analyzer-(core|deadcode|cplusplus|unix|valist|security)", "debug|memory"),
    (r"assert|infinite-loop|branch|suspicious-(semicolon|missing)|too-small-loop|swapped", "debug|memory"),
    (
        r"pointer|memory|new|delete|cast|virtual|constructor|copy|move|slic|smart|unique|shared|init|exception|throw|destruct|"
        r"assignment|raii|narrow|conver|enum|const|null|integer|sign|union|member|use-after|override|default|noexcept|"
        r"dangling|vararg|goto|float|bool|rounding|handle|widening|implicit|literal",
        "memory",
    ),
)
_C_DOCS = "usr/share/doc"
C_DOCUMENTS = (
    DocumentSource("linux-docs", "linux-doc-6.1", "GPL-2.0", f"{_C_DOCS}/linux-doc-6.1/html", ("[a-zA-Z]*/*.html", "[a-zA-Z]*/*/*.html"), "C in the Linux kernel", _LINUX),
    DocumentSource("glib-docs", "libglib2.0-doc", "LGPL-2.1", "usr/share/gtk-doc/html/glib", ("*.html",), "C with GLib", _GLIB, title="GLib"),
    DocumentSource("splint-manual", "splint-doc-html", "GPL-2.0", f"{_C_DOCS}/splint-doc-html/html", ("manual.html",), "C", _SPLINT, title="Splint"),
    DocumentSource("avr-libc", "avr-libc", "BSD-3-Clause", f"{_C_DOCS}/avr-libc/avr-libc-user-manual", ("FAQ.html", "[a-z]*.html"), "C for AVR", _AVR),
    DocumentSource("clang-tidy", "llvm-toolchain-14", "Apache-2.0 WITH LLVM-exception", ".", ("*/clang-tools-extra/docs/clang-tidy/checks/*.rst",), "C++", _TIDY, is_source=True),
)  # fmt: skip

_C_TESTS: Rules = (
    (
        r"(?i)block|objc|CF\w|altivec|neon|aarch|/arm|mips|ppc|riscv|/sve|x86|i386|dump|plist|/bug|opencl|darwin|plugin|/pr\d|"
        r"/\d+-\d|swift|hexagon|gimple|bpf|vxworks|/dfp/|xray|nvptx|checker-|crash|dwarf|guality|/compat/|rtl/|gcc-torture|mm-pnvi|"
        r"/vect|/optim/|/linear/|/kill-|cse|/bb|phi|mem2reg|avr-|/graphite|/autopar|/tree-ssa|iconv|/CodeGen.*(arm|cpu|target)",
        "",
    ),
    (r"asm[-_.]|[-_]asm", "systems|memory"),
    (r"thread|atomic|(?<![bc])lock|/tls|/gomp/|/tsan/|/tm/|openmp|reentrant|sync[-_]", "concurrency"),
    (
        r"/cpp/|/Preprocessor/|macro|preproc|hashif|hashdefine|include|pragma-(once|weak|push|pop)|extern|inline|visibility|"
        r"/lto/|/pch/|/PCH/|/weak|linkage|tentative|/W?undef|/Driver/|common-sym|static[-_](forward|var|storage)|multi-input",
        "build",
    ),
    (r"generic|typeof|overload|autotype|auto-type|choose.expr", "template|memory"),
    (r"format|printf|scanf|stdio|wchar|ctype|utf|strto|/ato|/itoa|/ltoa|math_lib|stream|ucn", "stl"),
    (
        r"(?<!con)str(n|l)?(ing|cpy|cat|len|cmp|chr|op)|mem(cpy|set|cmp|move|chr)|cstring|escape|char_array|charconst",
        "stl|memory",
    ),
    (r"quicksort|qsort|hanoi|/15_recursion|sha256|/46_grep|dhry", "algo"),
    (
        r"/(asan|ubsan|hwasan|noncompile)/|backtrace|assert|Wunused|unreach|typo|W?uninit|spellcheck|Wmisleading|bound",
        "debug|memory",
    ),
    (r"/(analyzer|Analysis)/", "debug|memory"),
    (
        r"simd|prefetch|signal|setjmp|longjmp|interrupt|vfork|fork|mmap|/main|_args|31_args|volatile|io\.c",
        "systems|memory",
    ),
    (
        r"(?i)struct|union|enum|array|ptr|point|bitf|cast|conv|integer|int[-_]|float|shift|overflow|sizeof|offsetof|align|pack|"
        r"alloc|free|init|const|qual|restrict|vla|va[-_]|va_|vararg|variadic|func|typedef|compare|promot|sign|alias|anon|"
        r"compound|flex|desig|bool|complex|liter|switch|goto|label|div|bitwise|lvalue|null|void|endian|stack|cond|comma|"
        r"precedence|ternary|scope|array|deref|address|expr|seque|parenth|c99|c11|return|declspec|decl|nested|case|loop|binary",
        "memory",
    ),
)
_GCC, _SOURCES = "../g/gcc-12.2.0/gcc/testsuite", "../sources"
C_SUITES = (
    SuiteSource("gcc/c-tests", "GPL-3.0", _GCC, ("gcc.dg/*.c", "gcc.dg/*/*.c", "c-c++-common/*.c", "c-c++-common/*/*.c"), "C", _C_TESTS),
    SuiteSource("clang/c-tests", "Apache-2.0 WITH LLVM-exception", f"{_SOURCES}/llvm-toolchain-14", ("*/clang/test/Sema/*.c", "*/clang/test/Analysis/*.c", "*/clang/test/Preprocessor/*.c", "*/clang/test/Parser/*.c", "*/clang/test/CodeGen/*.c"), "C", _C_TESTS),
    SuiteSource("sparse-tests", "MIT", f"{_SOURCES}/sparse", ("*/validation/*.c", "*/validation/*/*.c"), "C", _C_TESTS),
    SuiteSource("sdcc-tests", "GPL-2.0", f"{_SOURCES}/sdcc", ("*/support/regression/tests/*.c",), "C", _C_TESTS),
    SuiteSource("tcc-tests", "LGPL-2.1", f"{_SOURCES}/tcc", ("tests/tests2/*.c",), "C", _C_TESTS),
)  # fmt: skip
C_SOURCES = ("tcc", "sdcc", "sparse", "cdecl", "cppcheck", "flawfinder")
"""Debian source packages that are unpacked as a whole."""

_DIRECTIVE = re.compile(
    r"//[ \t]*(?:expected-|ext-)[^{\n]*\{\{[^}]*\}\}.*$|(?<!:)//.*$|/\*[\s\S]*?\*/|^#include <testfwk.h>$", re.MULTILINE
)
_DRIVEN = re.compile(
    r"clang_analyzer_|CHECK:|__analyzer_|analyzer-decls|tree-vect|__SDCC|\{(?:type|storage|sign|size|attr)\}|strlenopt\.h|__SIZE_TYPE__"
)


def tidy_test(code: str) -> str:
    """Return the code of a test without comments and the directives of its test driver; empty if it needs the driver."""
    return "" if _DRIVEN.search(code) else tidy_code(_DIRECTIVE.sub("", code))


_CHECKED = re.compile(
    r'\bcheck\w*\(((?:\s*"(?:[^"\\]|\\.)*")+)[^;"]*\);\s*ASSERT_EQUALS\(((?:\s*"(?:[^"\\]|\\.)*")+)', re.DOTALL
)
_LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"')
_FILE_LABELS: Rules = (
    (
        r"testnullpointer|testmemleak|testbufferoverrun|testuninitvar|testleakauto|testautovar|testtype|test64bit",
        "memory|debug",
    ),
    (r"testvaarg|testsizeof|testcharvar|testclass|testconstructors|testpostfix|testexception", "memory|debug"),
    (r"teststring|teststl", "stl|debug"),
    (r"testio", "stl|debug"),
    (r"testpreprocessor", "build|debug"),
    (r"testcondition|testother|testbool|testunusedvar|testassert|testincomplete", "debug|memory"),
)
_PLACES = re.compile(r"\[test\.c(?:pp)?:(\d+)\](?: -> \[test\.c(?:pp)?:\d+\])*: \((\w+)(?:, inconclusive)?\) ")
_CPP_ONLY = re.compile(
    r"\b(?:class|template|namespace|new|delete|public|private|using)\b|::|&&? ?\w+\)|<\w+>|\bnullptr\b"
)


def _unescape(literals: str) -> str:
    text = "".join(_LITERAL.findall(literals))
    return re.sub(r"\\(.)", lambda match: {"n": "\n", "t": "    "}.get(match[1], match[1]), text)


def checked_snippets(packages: Path, random: Random) -> Iterator[tuple[Item, str]]:
    """Yield faulty code from cppcheck's tests, each with the tool's message."""
    for path in sorted(packages.parent.glob("sources/cppcheck/*/test/test*.cpp")):
        label = next((label for pattern, label in _FILE_LABELS if re.search(pattern, path.stem)), "")
        found = _CHECKED.findall(path.read_text(encoding="utf-8")) if label else []
        for literals, asserted in random.sample(found, min(len(found), _MOST_OF_FILE)):
            code, message = _unescape(literals), _unescape(asserted).strip().split("\n")[0]
            place = _PLACES.match(message)
            if place is not None and len(code) > _MIN_SNIPPET_CHARS:
                language = "C++" if _CPP_ONLY.search(code) else "C"
                text = message[place.end() :]
                name = f"main.{'cpp' if language == 'C++' else 'c'}"
                yield Item(text, text, code, label, language), f"{name}:{place[1]}: {place[2]}: {text}"


_MOST_OF_FILE, _MIN_SNIPPET_CHARS = 40, 50
_DECLARATIONS = (
    "What does `{d}` mean in C?", "explain the C declaration {d}", "how do I read {d}", "{d};\nwhat type is this in C?",
    "In C, what is the difference between {d} and {o}?", "I found this in C code and cannot parse it: {d}", "{d}",
    "Is `{d}` a pointer to an array or an array of pointers?", "C: {d}\n\nwhich part binds first?", "What is {d}; in C",
)  # fmt: skip
_WANTED = (
    "How do I declare {w} in C?", "C syntax for {w}", "how to write a declaration in C: {w}", "In C, declare {w}.",
    "What is the right way to declare {w} in C with a typedef?",
)  # fmt: skip


def declarations(packages: Path, random: Random) -> list[tuple[str, str]]:
    """Return questions about declarations, from the tests of cdecl."""
    [path] = packages.parent.glob("sources/cdecl/*/testset")
    lines = path.read_text(encoding="utf-8").splitlines()
    shown = [line.removeprefix("explain ").strip() for line in lines if line.startswith("explain ")]
    wanted = [line.removeprefix("declare ").strip() for line in lines if line.startswith("declare ")]
    wanted = [
        line.replace("ptr", "pointer").replace("func", "function").replace(" ret ", " returning ") for line in wanted
    ]
    wanted = [line.replace("functiontion", "function") for line in wanted]
    asked = [random.choice(_DECLARATIONS).format(d=each, o=random.choice(shown)) for each in shown]
    return [(text, "memory") for text in [*asked, *(random.choice(_WANTED).format(w=each) for each in wanted)]]


C_LOG_RULES: Rules = (
    (r"pragma omp|pthread|_Atomic|atomic", "concurrency|debug"),
    (r"\[-Wformat|expects argument of type|conversion type|implicit declaration of function ‘(?:printf|str|mem)", "stl|debug"),
    (
        r"No such file|undefined reference|\bmacro|#(?:if|elif|include|error|define|pragma)|-Werror|static declaration of|"
        r"previous (?:static|extern)|visibility|\binline\b|redefined|multiple definition|-Wcpp|pasting",
        "build|debug",
    ),
    (
        r"pointer|discards|const-|\bcast|alias|overflow|shift|array|struct|union|enum|integer|sign|bit-field|\bfree|alloc|NULL|"
        r"initializer|lvalue|alignment|qualifier|restrict|va_|variably|sizeof|complete type|conversion|subscript|null",
        "debug|memory",
    ),
    (r"error:", "debug"),
)  # fmt: skip
"""Labels for a C compiler's output, by the words of its messages."""

_MESSAGE = re.compile(r"(?:error|warning): (.*)")


def label_c_log(text: str) -> str:
    return label_log("\n".join(match[0] for match in _MESSAGE.finditer(text)), C_LOG_RULES)


_FLAW_LABELS = {
    "buffer": "memory|stl", "format": "stl|memory", "integer": "memory|stl", "free": "memory", "random": "algo|stl",
    "race": "systems", "tmpfile": "systems", "shell": "systems", "access": "systems", "input": "systems", "obsolete": "systems",
}  # fmt: skip
_FLAWS = (
    "Is {f} dangerous in C?", "What is wrong with {f}()?", "{f}: {w}. What should I use instead?", "Why should I not use {f} in C?",
    "{f}.c:{n}:{k}: {w}. {a}", "main.c:{n}: [{v}] ({t}) {f}: {w}. {a}.\n\nHow serious is this?", "{a} instead of {f}? Why?",
    "my static analyser complains about {f}: {w}", "Is there a safe alternative to {f}?", "C code review says: {w} ({f}). {a}.",
)  # fmt: skip


def flawed_functions(packages: Path, random: Random) -> list[tuple[str, str]]:
    """Return questions about functions of C that are easily misused, from the rules of flawfinder."""
    [path] = packages.parent.glob("sources/flawfinder/*/flawfinder.py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    [rules] = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "c_ruleset"
    ]
    if not isinstance(rules, ast.Dict):
        raise ValueError(f"{path}: the rules are no dictionary")
    found: list[tuple[str, str]] = []
    for key, rule in zip(rules.keys, rules.values, strict=True):
        if isinstance(key, ast.Constant) and isinstance(rule, ast.Tuple):
            fields = [part.value if isinstance(part, ast.Constant) else "" for part in rule.elts]
            level, warning, advice, topic = fields[1:5]
            names = str(key.value).split("|")
            for name in names[:_MOST_NAMES] if topic in _FLAW_LABELS else ():
                forms = [form for form in _FLAWS if advice or "{a}" not in form]
                form = random.choice(forms).replace("{f}", name).replace("{n}", str(random.randrange(2, 200)))
                form = (
                    form.replace("{k}", str(random.randrange(1, 40)))
                    .replace("{v}", str(level))
                    .replace("{t}", str(topic))
                )
                text = form.replace("{w}", str(warning).rstrip(".")).replace("{a}", str(advice).rstrip("."))
                found.append((text, _FLAW_LABELS[str(topic)]))
    return found


_MOST_NAMES = 4
_PO_ENTRY = re.compile(r'(?m)^msgid ((?:".*"\n)+)msgstr ((?:".*"\n?)+)')


def c_messages(packages: Path, random: Random) -> Iterator[tuple[str, str]]:
    """Yield gcc's messages about C, in English and sometimes in another language."""
    for language in ("de", "ru", "zh_CN", "es"):
        text = (packages / f"../g/gcc-12.2.0/gcc/po/{language}.po").read_text(encoding="utf-8")
        for part in text.split("\n\n"):
            match = _PO_ENTRY.search(part)
            if (
                match is None
                or "fuzzy" in part
                or not re.search(r"^#: (?:c/|c-family/c-(?:warn|format|cpp|lex))", part, re.M)
            ):
                continue
            english, other = (re.sub(r'"\n"|^"|"\n?$', "", each) for each in match.groups())
            label = label_log(f"error: {english}", C_LOG_RULES)
            if len(english) > _MIN_MESSAGE_CHARS:
                shown = english if random.random() < 0.75 else other or english
                lead = random.choice(
                    ("main.c:{n}:{k}: error: ", "main.c:{n}:{k}: warning: ", "test.c:{n}: error: ", "gcc: ")
                )
                place = lead.replace("{n}", str(random.randrange(2, 90))).replace("{k}", str(random.randrange(1, 40)))
                yield f"{place}{fill_message(shown)}", label


_MIN_MESSAGE_CHARS = 25
