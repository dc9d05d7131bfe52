"""Sources that teach words and code only: the code of many packages in many languages, and the names that the headers
of the C and C++ libraries declare. They measure nothing."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from bench.routing_corpus.phrasing import Item

C_LANGUAGES = frozenset({"C", "C++"})


@dataclass(frozen=True, slots=True)
class LibrarySource:
    package: str
    language: str
    suffixes: tuple[str, ...]
    is_source: bool = False  # a Debian source package; else a binary package


def _list(language: str, suffixes: str, binary: str = "", source: str = "") -> tuple[LibrarySource, ...]:
    ends = tuple(suffixes.split())
    return (
        *(LibrarySource(name, language, ends) for name in binary.split()),
        *(LibrarySource(name, language, ends, is_source=True) for name in source.split()),
    )


LIBRARIES = (
    *_list("Python", ".py", "python3-flask python3-requests python3-twisted meson", "python-django"),
    *_list("Java", ".java", "", "libcommons-lang3-java libcommons-io-java jsoup guava-libraries libcommons-collections4-java junit4"),
    *_list("Rust", ".rs", "librust-regex-dev librust-serde-dev librust-rand-dev", "rust-clap rust-ripgrep"),
    *_list("Go", ".go", "golang-github-gorilla-mux-dev golang-github-gin-gonic-gin-dev golang-gopkg-yaml.v3-dev"),
    *_list("Go", ".go", "", "golang-github-spf13-cobra golang-golang-x-net"),
    *_list("JavaScript", ".js", "node-yargs node-lodash", "node-express jquery"),
    *_list("C#", ".cs", "", "keepass2"),
    *_list("Kotlin", ".kt", "", "kotlin"),
    *_list("Scala", ".scala", "", "scala"),
    *_list("Groovy", ".groovy", "", "groovy"),
    *_list("PHP", ".php", "php-symfony-console", "php-monolog php-twig phpunit"),
    *_list("Ruby", ".rb", "ruby-rack ruby-mail ruby-sinatra"),
    *_list("Perl", ".pm .pl .t", "libdatetime-perl", "libmojolicious-perl libmoose-perl"),
    *_list("Haskell", ".hs", "", "haskell-aeson haskell-lens xmonad"),
    *_list("OCaml", ".ml", "", "ocamlgraph lwt ocaml-dune"),
    *_list("Lua", ".lua", "prosody lua-penlight"),
    *_list("R", ".R .r", "", "r-cran-ggplot2"),
    *_list("Lisp", ".lisp .el", "cl-alexandria cl-ppcre elpa-magit elpa-helm"),
    *_list("Erlang", ".erl", "erlang-src"),
    *_list("Elixir", ".ex .exs", "", "elixir-lang"),
    *_list("bash", ".sh", "bash-completion"),
    *_list("Pascal", ".pas .pp", "fpc-source-3.2.2"),
    *_list("Ada", ".adb", "libgnatcoll21-dev"),
    *_list("Fortran", ".f .f90", "", "lapack"),
    *_list("D", ".d", "libgphobos-12-dev libphobos2-ldc-shared-dev"),
    *_list("Octave", ".m", "octave-image octave-statistics"),
    *_list("Prolog", ".pl", "", "swi-prolog"),
    *_list("Tcl", ".tcl", "", "tcllib"),
    *_list("Vala", ".vala", "", "vala"),
    *_list("SQL", ".sql", "postgresql-15-pgtap"),
    *_list("C++", ".cpp .cc .cxx .hpp .hxx", "libspdlog-dev nlohmann-json3-dev libcereal-dev doctest-dev libboost1.74-dev"),
    *_list("C++", ".cpp .cc .cxx .hpp .hxx", "librange-v3-dev c++-annotations", "leveldb re2 ninja-build abseil poco catch2 cli11"),
    *_list("C++", ".cpp .cc .cxx .hpp .hxx", "", "libpqxx yaml-cpp"),
    *_list("C", ".c", "", "curl jansson jq libevent redis zlib coreutils nano"),
)  # fmt: skip

_COMMENT = re.compile(r"/\*.*?\*/|\"\"\".*?\"\"\"", re.DOTALL)
_MIN_CHARS, _MAX_CHARS, _MAX_FILE_BYTES = 150, 1300, 400_000
MAX_FILES = 400  # of a package that are read


def read_library(source: LibrarySource, folder: Path, most: int) -> Iterator[Item]:
    """Yield excerpts from the code of a package. C and C++ excerpts belong to some specialist, which is not said."""
    random = Random(source.package)
    root = folder / ("sources" if source.is_source else "packages") / source.package
    paths = sorted(path for path in root.rglob("*") if path.suffix in source.suffixes and path.is_file())
    for path in random.sample(paths, min(len(paths), MAX_FILES)):
        if most <= 0:
            break
        if path.stat().st_size > _MAX_FILE_BYTES:
            continue
        code = _excerpt(path.read_text(encoding="utf-8", errors="replace"), random)
        if len(code) >= _MIN_CHARS:
            most -= 1
            label = "" if source.language in C_LANGUAGES else "reject"
            yield Item(_title(path), "", code, label, source.language)


def _title(path: Path) -> str:
    return re.sub(r"[-_]+", " ", path.stem)


def _excerpt(text: str, random: Random) -> str:
    """Return some paragraphs of the code, from the start of a file or from a line that begins a definition."""
    lines = _COMMENT.sub("", text).splitlines()
    lines = [line for line in lines if not re.match(r"\s*(//|#\s|--\s|;;|%+\s|\(\*)\s*\S*.*$", line)]
    starts = [0, *(at for at, line in enumerate(lines) if line[:1].isalpha() and at and not lines[at - 1].strip())]
    at = random.choice(starts)
    return "\n".join(lines[at : at + random.randrange(8, 40)])[:_MAX_CHARS].strip()


HEADER_LABELS = {
    "stl": "algorithm array bitset charconv chrono codecvt deque format forward_list fstream functional iomanip ios iosfwd iostream "
    "istream iterator list locale map numeric optional ostream queue random ranges ratio regex set span sstream stack "
    "streambuf string string_view tuple unordered_map unordered_set utility valarray variant vector any initializer_list "
    "filesystem syncstream cstring cctype cwchar cwctype complex",
    "stl|memory|algo": "cmath numbers limits cfloat climits cstdint",
    "template": "type_traits concepts compare typeindex",
    "memory": "memory memory_resource new scoped_allocator exception stdexcept typeinfo",
    "concurrency": "atomic barrier condition_variable future latch mutex semaphore shared_mutex stop_token thread coroutine",
    "systems": "csignal",
    "debug": "stacktrace source_location",
}
C_HEADER_LABELS = {
    "concurrency": "threads.h pthread.h semaphore.h stdatomic.h",
    "systems": "unistd.h fcntl.h signal.h termios.h poll.h dirent.h netdb.h spawn.h syslog.h aio.h mqueue.h pty.h utime.h "
    "sys/socket.h sys/stat.h sys/mman.h sys/wait.h sys/epoll.h sys/select.h sys/time.h sys/resource.h sys/ioctl.h "
    "sys/sendfile.h sys/un.h sys/uio.h sys/inotify.h sys/eventfd.h sys/timerfd.h sys/signalfd.h sys/ptrace.h sched.h "
    "arpa/inet.h netinet/in.h netinet/tcp.h net/if.h setjmp.h pwd.h grp.h",
    "stl": "string.h strings.h ctype.h wchar.h wctype.h locale.h regex.h search.h iconv.h uchar.h",
    "stl|systems": "stdio.h time.h glob.h fnmatch.h ftw.h",
    "stl|memory|algo": "math.h complex.h tgmath.h fenv.h inttypes.h",
    "memory": "malloc.h alloca.h obstack.h",
    "debug": "execinfo.h assert.h",
    "build": "dlfcn.h link.h",
}
_SPECIAL_NAMES = {
    "memory": "malloc calloc realloc free aligned_alloc reallocarray posix_memalign unique_ptr shared_ptr weak_ptr auto_ptr allocator "
    "addressof bad_alloc owner_less default_delete enable_shared_from_this make_shared make_unique allocator_traits",
    "systems": "getenv setenv putenv unsetenv system abort exit atexit quick_exit at_quick_exit _Exit mkstemp mkdtemp realpath",
    "algo": "qsort bsearch rand srand random drand48",
    "stl": "strtol strtoul strtod strtof strtoll atoi atof atol abs div labs ldiv mblen mbtowc wctomb mbstowcs wcstombs",
}  # fmt: skip
_C_NAME = re.compile(
    r"^(?:extern|static)?[\w\s*]*?\b(\w+) \([^;]*?\)[^;{]*;|^__MATH\w+\s*\(\s*(\w+)", re.MULTILINE | re.DOTALL
)
_MACRO = re.compile(r"^\s*#\s*define\s+([A-Za-z]\w+)()", re.MULTILINE)
_CPP_NAME = re.compile(r"\b(?:class|struct|union|using)\s+([a-z]\w+)|^\s+([a-z]\w+)\(", re.MULTILINE)
_INNER = re.compile(r"^\s*#\s*include\s*[<\"](bits/[\w./+-]+|std_\w+\.h)[>\"]", re.MULTILINE)
_NAMES_SHOWN = 5
_SHARED = 4  # names that so many headers declare, such as `begin` and `swap`, say nothing about one of them


def read_headers(include: Path, headers: Sequence[str], *, is_c: bool) -> dict[str, list[str]]:
    """Return the names that each header declares, itself or in inner headers that it alone includes."""
    texts = {name: _read(include, name) for name in headers}
    inner = {name: set(_INNER.findall(text)) for name, text in texts.items()}
    users = Counter(each for names in inner.values() for each in names)
    found: dict[str, set[str]] = {}
    for name, text in texts.items():
        whole = "\n".join([text, *(_read(include, each) for each in sorted(inner[name]) if users[each] == 1)])
        matches = [*_C_NAME.findall(whole), *_MACRO.findall(whole)] if is_c else _CPP_NAME.findall(whole)
        found[name] = {each for pair in matches for each in pair if each[:1].isalpha() and len(each) > 2}
    shared = Counter(each for names in found.values() for each in names)
    return {header: sorted(each for each in names if shared[each] < _SHARED) for header, names in found.items()}


def _read(include: Path, header: str) -> str:
    for folder in (include, include / "x86_64-linux-gnu"):
        if (folder / header).is_file():
            return (folder / header).read_text(encoding="utf-8", errors="replace")
    return ""


_FORMS = (
    "{names}",
    "#include <{header}>\n{names}",
    "What does {name} do?",
    "How do I use {name} from <{header}>{in}?",
    "{name}{in}",
    "#include <{header}>\n\nint main() {{\n    {qualified}\n}}",
    "What is the difference between {name} and {other}{in}?",
)


def header_prompts(include: Path, random: Random, *, is_c: bool, most: int) -> Iterator[tuple[str, str]]:
    """Yield texts about the names of each header, with the header's label. `most` is for one header."""
    special = {name: label for label, names in _SPECIAL_NAMES.items() for name in names.split()}
    labels = {
        name: label for label, names in (C_HEADER_LABELS if is_c else HEADER_LABELS).items() for name in names.split()
    }
    for header, names in read_headers(include, list(labels), is_c=is_c).items():
        own = [name for name in names if name not in special] or [header.removesuffix(".h")]
        for _ in range(min(most, 2 + len(own) // 4)):
            yield _fill_names(random, header, own, is_c=is_c), labels[header]
    for name, label in special.items():
        yield (
            _fill_names(random, "stdlib.h" if is_c else random.choice(("cstdlib", "memory")), [name], is_c=is_c),
            label,
        )


def _fill_names(random: Random, header: str, names: list[str], *, is_c: bool) -> str:
    chosen = random.sample(names, min(_NAMES_SHOWN, len(names)))
    prefix = "" if is_c else random.choice(("std::", "std::", ""))
    name, other = f"{prefix}{chosen[0]}", f"{prefix}{chosen[-1]}"
    where = random.choice((" in C", " (C)", "") if is_c else (" in C++", " (C++)", ""))
    qualified = "\n    ".join(
        f"{prefix}{each}{'(' if is_c else ' '}{'x' if is_c else each[0]}{');' if is_c else ';'}" for each in chosen
    )
    form = random.choice(_FORMS)
    return form.format(header=header, names="; ".join(f"{prefix}{each}" for each in chosen), name=name, other=other,
                       qualified=qualified, **{"in": where})  # fmt: skip
