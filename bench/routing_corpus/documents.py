"""Sources that are documentation in Debian packages. Rules on a page's path and heading give the label."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from bench.routing_corpus.pages import Section, iter_paths, read_page, sentences
from bench.routing_corpus.phrasing import Item

Rules = tuple[tuple[str, str], ...]
"""Patterns for `path#heading`, and the label of the first that matches. No match, or an empty label: left out."""


@dataclass(frozen=True, slots=True)
class DocumentSource:
    name: str
    package: str
    licence: str
    root: str  # a path in the package
    globs: tuple[str, ...]
    language: str
    rules: Rules
    is_page: bool = False  # a page is one item; else each section is
    title: str = ""  # of its pages, if their first heading is none
    is_source: bool = False  # a Debian source package; else a binary package


_CPPREFERENCE: Rules = (
    (r"/(thread|atomic)[/.]|memory_model|stop_token|_Atomic|thread_storage|execution", "concurrency"),
    (
        r"language/(template|.*_template|class_template|constraints|concepts|sfinae|parameter_pack|fold|dependent_name|"
        r"partial_spec|deduction_guide|auto|decltype|constexpr|adl|overload|operators|type_alias|sizeof\.\.\.|constant_expr)",
        "template",
    ),
    (r"language/(lambda|range-for|structured_binding|string_literal|user_literal|initializer_list)", "stl"),
    (
        r"language/(translation_phases|namespace|using_decl|storage_duration|inline|language_linkage|main_function|"
        r"definition|static_assert|modules|include)|/preprocessor[/.]|/header/",
        "build",
    ),
    (
        r"language/(abstract|access|aggregate|alignas|alignof|array|bit_field|cast|class|const_cast|constructor|converting|"
        r"copy_|cv|data_members|default_|delete|derived|destructor|direct_init|dynamic_cast|ebo|enum|except|explicit|final|"
        r"friend|implicit|initialization|lifetime|list_init|member|move_|new|noexcept|nullptr|object|override|pointer|raii|"
        r"reference|reinterpret|rule_of|static|this|throw|try|typeid|union|value_|virtual|zero_init|conversion|type|struct|"
        r"function|scalar|compatible|eval_order|incomplete|volatile|restrict)",
        "memory",
    ),
    (
        r"/memory[/.]|/error/(exception|current_|rethrow|uncaught|nested|throw|terminate|unexpected)|/types/(type_info|"
        r"numeric_limits|bad_cast|bad_typeid|max_align|NULL|byte|climits|integer\.|nullptr_t|offsetof|ptrdiff_t|size_t)|/utility/(move|forward|exchange|move_if)",
        "memory",
    ),
    (r"/types/|/concept/|/concepts/|utility/(declval|integer_sequence)|/type_support", "template"),
    (r"/error/(assert|errno)|/(assert|static_assert)\.html", "debug"),
    (r"/utility/program/|/program/(signal|SIG|raise|system|getenv|abort|exit)|c/program", "systems"),
    (
        r"/(container|algorithm|iterator|string|utility|io|chrono|filesystem|regex|numeric|locale|ranges|variadic)[/.]",
        "stl",
    ),
)
_C_REFERENCE: Rules = (
    (r"/(thread|atomic)[/.]|memory_model|_Atomic|language/atomic|thread_storage", "concurrency"),
    (r"/preprocessor[/.]|/header|translation_phases|language/(static_assert|_Static_assert|conformance)", "build"),
    (r"language/main_function", "build|systems"),
    (r"language/(storage_duration|static_storage|extern|file_scope|inline|scope|name_space)", "build|memory"),
    (r"language/generic|/variadic[/.]", "template|memory"),
    (r"language/|/memory[/.]", "memory"),
    (r"/types[/.]", "memory|stl"),  # NULL, size_t, limits, booleans
    (r"/error/errno|/error\.html", "systems|debug"),
    (r"/error/", "debug"),
    (r"program/(setjmp|longjmp|jmp_buf)", "systems|memory"),
    (r"/program[/.]", "systems"),
    (r"/(io|chrono)[/.]", "stl|systems"),  # formatted input and output of files; clocks
    (r"/(algorithm|string|numeric|locale)[/.]", "stl"),
)
"""C has no templates; its library's files and clocks are close to the system."""
_BOOST: Rules = (
    (r"/(atomic|thread|lockfree|fiber|coroutine2?|signals2)/", "concurrency"),
    (r"/(asio|process|boost_process|interprocess|boost_dll|dll|mpi)/", "systems"),
    (r"/(smart_ptr|pool|align|move|intrusive|any|typeof_mem|boost_typeindex|typeindex|conversion|any)/", "memory"),
    (
        r"/(mpl|mp11|hana|fusion|proto|metaparse|typeof|yap|boost_yap|boost_typeerasure|concept_check|callable_traits|"
        r"type_traits|function_types|boost_staticassert|poly_collection)/",
        "template",
    ),
    (r"/(graph|sort|heap|crc|geometry|accumulators|boost_random)/", "algo"),
    (r"/(stacktrace|test)/", "debug"),
    (
        r"/(container|circular_buffer|array|string_algo|unordered|foreach|chrono|date_time|variant|lambda|boost_lexical_cast|"
        r"boost_stlinterfaces|stl_interfaces|program_options|property_tree|ratio|hash|tribool|xpressive|function|iostreams|"
        r"range|tokenizer|optional|format|regex|property_map|multi_index)/",
        "stl",
    ),
)
_LIBSTDCXX: Rules = (
    (r"/(concurrency|atomics|ext_concurrency|using_concurrency|parallel)", "concurrency"),
    (
        r"/(memory|dynamic_memory|bitmap_alloc|mt_alloc|auto_ptr|shared_ptr|using_exceptions|termination|support)",
        "memory",
    ),
    (r"/(traits|concept_check|ext_compile_checks)", "template"),
    (r"/(debug|profile|ext_demangling|backtrace)", "debug"),
    (
        r"/(setup|configure|make|using_dynamic|using_dual_abi|abi|using_headers|using\.|using_macros|intro|prereq)",
        "build",
    ),
    (
        r"/(algorithms|containers|associative|sequences|iterators|io|fstreams|streambufs|stringstreams|strings|numerics|"
        r"unordered|utilities|pairs|policy_data|facets|localization|ext_containers|ext_algor|bitset|vector)",
        "stl",
    ),
)
_CLANG: Rules = (
    (
        r"(Address|Memory|Leak|Thread|UndefinedBehavior|HardwareAssistedAddress|DataFlow)Sanitizer|SanitizerSpecial|StaticAnalyzer|"
        r"checkers|analyzer/user-docs",
        "debug",
    ),
    (r"ThreadSafetyAnalysis|OpenMP", "concurrency"),
    (
        r"LTO|Modules|CrossCompilation|Toolchain|UsersManual|CommandLineReference|MSVCCompat|JSONCompil|PCH|"
        r"SourceBasedCodeCoverage|ControlFlowIntegrity\.|HowToSetup",
        "build",
    ),
    (r"LanguageExtensions.*(vector|builtin|simd|prefetch|assembly)", "systems"),
)
_VALGRIND: Rules = ((r"(mc-manual|hg-manual|drd-manual|faq|FAQ|quick-start|manual-core|dh-manual|ms-manual)", "debug"),)
_MANUALS: Rules = (
    (r"man3/(pthread|sem_|thrd|mtx_|cnd_)|man2/(futex|membarrier)", "concurrency"),
    (r"man3/(malloc|alloca|mtrace|mcheck|posix_memalign|obstack|mallinfo|malloc_)", "memory"),
    (r"man3/(backtrace|assert)", "debug"),
    (
        r"man3/(str|mem|wc|wm|isalpha|toupper|qsort|bsearch|printf|scanf|fopen|fread|fgetc|gets|puts|tsearch|hsearch|queue|"
        r"insque|sin|cos|exp|log|pow|sqrt|floor|ceil|round|time|ctime|strftime|abs|rand|atoi|div)",
        "stl",
    ),
    (r"man3/(dl|rtld|end\.|program_inv)|man3/makedev", "build"),
    (
        r"man2/|man3/(get|set|sock|inet|aio|mq_|shm_|posix_spawn|exec|popen|system|opendir|readdir|ftw|glob|fts|sig|daemon|"
        r"open|tty|tc|rpc|if_|send|recv|err|sys|ulimit|nice|sleep|mk|fd|io|io_uring|readlink|usleep|wait)",
        "systems",
    ),
)
REJECT_ALL: Rules = ((r".", "reject"),)
_CMAKE: Rules = ((r"(command|manual|module/Find|module/|prop_tgt|variable|policy|prop_)", "build"),)
BUILD_ALL: Rules = ((r".", "build"),)
_TBB: Rules = ((r"(tbb_userguide|reference)", "concurrency"),)
_FMT: Rules = ((r".", "stl"),)
_PYBIND: Rules = (
    (r"(compiling|installing|faq.html#.*(link|cmake|compile|undefined|import|visib|debug))", "build"),
    (r"(smart_ptrs|object|classes|exceptions|embedding)", "memory"),
    (r"(stl|chrono|strings|overview|functional|eigen|numpy)", "stl"),
)
_GTEST: Rules = ((r"(quickstart-cmake|quickstart-bazel|pkgconfig|platforms)", "build"),)
_QUESTION_FAQ: Rules = ((r"#.*\?$", "reject"),)

_CC_BY_SA, _GFDL = "CC-BY-SA-3.0", "GFDL-1.3"
_REFERENCE = "usr/share/cppreference/doc/html/en"
_PYTHON, _NODE, _RUST = "usr/share/doc/python3.11/html", "usr/share/doc/nodejs/api", "usr/share/doc/rust-doc/html"

DOCUMENTS = (
    DocumentSource("cppreference/cpp", "cppreference-doc-en-html", _CC_BY_SA, _REFERENCE, ("cpp/**/*.html",), "C++", _CPPREFERENCE, True),
    DocumentSource("cppreference/c", "cppreference-doc-en-html", _CC_BY_SA, _REFERENCE, ("c/**/*.html",), "C", _C_REFERENCE, True),
    DocumentSource("boost-docs", "libboost1.74-doc", "BSL-1.0", "usr/share/doc/libboost1.74-doc", ("doc/html/*/*.html", "doc/html/*/*/*.html", "libs/*/doc/**/*.html"), "C++ with Boost", _BOOST),
    DocumentSource("libstdc++-manual", "libstdc++-12-doc", _GFDL, "usr/share/doc/gcc-12-base/libstdc++", ("manual/*.html",), "C++", _LIBSTDCXX),
    DocumentSource("clang-docs", "clang-14-doc", "Apache-2.0 WITH LLVM-exception", "usr/share/doc/clang-14/html", ("*.html", "analyzer/*.html", "analyzer/user-docs/*.html"), "C++", _CLANG),
    DocumentSource("valgrind-docs", "valgrind", "GFDL-1.2", "usr/share/doc/valgrind/html", ("*.html",), "Valgrind", _VALGRIND),
    DocumentSource("manual-linux", "manpages-dev", "GPL and BSD", "usr/share/man", ("man2/*.gz", "man3/*.gz"), "C", _MANUALS, True),
    DocumentSource("manual-liburing", "liburing-dev", "MIT", "usr/share/man", ("man*/*.gz",), "C", ((r".", "systems"),), True),
    DocumentSource("manual-ru", "manpages-ru-dev", "GPL and BSD", "usr/share/man/ru", ("man2/*.gz", "man3/*.gz"), "C", _MANUALS, True),
    DocumentSource("manual-de", "manpages-de-dev", "GPL and BSD", "usr/share/man/de", ("man2/*.gz", "man3/*.gz"), "C", _MANUALS, True),
    DocumentSource("manual-zh", "manpages-zh", "GPL and BSD", "usr/share/man/zh_CN", ("man2/*.gz", "man3/*.gz"), "C", _MANUALS, True),
    DocumentSource("cmake-manual", "cmake-doc", "BSD-3-Clause", "usr/share/doc/cmake-data/html", ("command/*.html", "manual/*.html", "module/*.html", "prop_tgt/*.html", "variable/*.html"), "CMake", _CMAKE),
    DocumentSource("scons-guide", "scons-doc", "MIT", "usr/share/doc/scons/HTML", ("*.html",), "SCons", BUILD_ALL),
    DocumentSource("tbb-docs", "libtbb-doc", "Apache-2.0", "usr/share/doc/libtbb-dev/html", ("tbb_userguide/*.html", "reference/*.html"), "C++ with TBB", _TBB),
    DocumentSource("fmt-docs", "libfmt-doc", "MIT", "usr/share/doc", ("**/*.html",), "C++ with fmt", _FMT),
    DocumentSource("pybind11-docs", "pybind11-doc", "BSD-3-Clause", "usr/share/doc/pybind11-doc/html", ("*.html", "advanced/**/*.html"), "C++ with pybind11", _PYBIND),
    DocumentSource("python/faq", "python3.11-doc", "PSF-2.0", _PYTHON, ("faq/*.html",), "Python", _QUESTION_FAQ),
    DocumentSource("python/docs", "python3.11-doc", "PSF-2.0", _PYTHON, ("library/*.html", "howto/*.html", "tutorial/*.html"), "Python", REJECT_ALL),
    DocumentSource("perl-faq", "perl-doc", "Artistic", "usr/share/perl/5.36.0/pod", ("perlfaq[1-9].pod",), "Perl", _QUESTION_FAQ),
    DocumentSource("rust/book", "rust-doc", "MIT or Apache-2.0", _RUST, ("book/ch*.html",), "Rust", REJECT_ALL),
    DocumentSource("rust/errors", "rust-doc", "MIT or Apache-2.0", _RUST, ("error-index.html",), "Rust", REJECT_ALL),
    DocumentSource("rust/reference", "rust-doc", "MIT or Apache-2.0", _RUST, ("std/*/struct.*.html", "std/*/trait.*.html", "std/*/fn.*.html", "std/*/*/struct.*.html"), "Rust", REJECT_ALL, True),
    DocumentSource("go-docs", "golang-1.19-doc", "BSD-3-Clause", "usr/share/doc", ("**/*.html",), "Go", REJECT_ALL),
    DocumentSource("node-docs", "nodejs-doc", "MIT", _NODE, ("*.md.gz",), "Node.js", REJECT_ALL),
    DocumentSource("sqlite-docs", "sqlite3-doc", "public domain", "usr/share/doc/sqlite3", ("*.html",), "SQL", REJECT_ALL),
    DocumentSource("postgresql-docs", "postgresql-doc-15", "PostgreSQL", "usr/share/doc/postgresql-doc-15/html", ("*.html",), "PostgreSQL", REJECT_ALL),
    DocumentSource("git-docs", "git-doc", "GPL-2.0", "usr/share/doc/git", ("html/*.html", "RelNotes/*.html"), "git", REJECT_ALL),
    DocumentSource("debian-faq", "debian-faq", "GPL-2.0", "usr/share/doc", ("**/*.en.html",), "Debian", REJECT_ALL),
    DocumentSource("octave-docs", "octave-doc", "GPL-3.0", "usr/share/doc/octave", ("octave.html/*.html",), "Octave", REJECT_ALL),
    DocumentSource("erlang-docs", "erlang-doc", "Apache-2.0", "usr/share/doc/erlang-doc", ("doc/*/*.html", "lib/stdlib*/doc/html/*.html"), "Erlang", REJECT_ALL),
    DocumentSource("haskell-docs", "ghc-doc", "BSD-3-Clause", "usr/share/doc/ghc-doc/html", ("users_guide/*.html", "users_guide/exts/*.html"), "Haskell", REJECT_ALL),
)  # fmt: skip

MAX_PAGES = 700  # of a source that are read
_BORING = re.compile(
    r"^(see also|contents?|index|parameters?|return values?|exceptions?|notes?|example|examples|complexity|synopsis|library|"
    r"description|requirements|overview|acknowledg|references?|history|copyright|bugs|errors|versions|name|usage|"
    r"navigation|introduction|summary|table of|module attributes|methods|imports|exports|data types|function descriptions|"
    r"note: .*|functions?|header .*|class .*|struct .*|options|properties|.{0,2}|.{90,})$", re.IGNORECASE)  # fmt: skip
_SINCE = re.compile(r"\s*\((?:since|until|deprecated|removed)[^)]*\)|,.*$|<[^<>]*>")


def read_documents(source: DocumentSource, packages: Path) -> Iterator[Item]:
    folder = packages.parent / "sources" if source.is_source else packages
    root = folder / source.package / source.root
    rules = [(re.compile(pattern), label) for pattern, label in source.rules]
    paths = list(iter_paths(root, source.globs))
    for path in Random(source.name).sample(paths, min(len(paths), MAX_PAGES)):
        if path.name.split(".")[0] in ("index", "genindex", "search") or path.stat().st_size > 3_000_000:
            continue
        sections = read_page(path)
        for section in [_join_page(sections)] if source.is_page and sections else sections:
            place = f"/{path.relative_to(root)}#{section.heading}"
            label = next((label for pattern, label in rules if pattern.search(place)), "")
            if label and (item := _item(section, label, source)) is not None:
                yield item


def _join_page(sections: list[Section]) -> Section:
    """Return the page as one section: its title, its first prose and the last of its examples."""
    first = next(
        (s for s in sections if s.heading not in ("NAME", "SYNOPSIS", "LIBRARY") and s.paragraphs), sections[0]
    )
    page = sections[0].page.partition(" - ")[0].split(",")[0] if " - " in sections[0].page else sections[0].page
    codes = [code for section in sections for code in section.codes if code.count("\n") > 3]
    shown = [each for each in sections if each.heading.upper().startswith(("EXAMPLE", "PROGRAM"))]
    codes = [code for section in shown for code in section.codes] or codes[-1:]
    return Section(page, _SINCE.sub("", page).strip(), first.paragraphs, codes)


def _item(section: Section, label: str, source: DocumentSource) -> Item | None:
    heading = section.heading.replace(" - cppreference.com", "").removeprefix("◆ ")
    if _BORING.match(heading):
        return None
    prose = sentences(section)
    code = next((each for each in section.codes if len(each) > 20), "")
    if not prose and not code:
        return None
    return Item(_qualify(heading, source.title or section.page), prose, code, label, source.language)


def _qualify(heading: str, page: str) -> str:
    """Return the heading; a short one in plain words also names its page."""
    is_plain = len(heading.split()) < 4 and re.fullmatch(r"[\w' -]+", heading) and not re.search(r"_|\w[A-Z]", heading)
    return f"{heading} ({page})" if is_plain and page and page != heading and len(page) < 60 else heading
