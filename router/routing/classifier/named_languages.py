"""Finds which languages and tools a prompt names. A name is one word of many; the sign that stands for it is always the
same, so that a model knows what a language is that no prompt of its training named."""

import re

SIGNS = ("zzsigncpp", "zzsignc", "zzsignother", "zzsignmixed", "zzsignnone")
_CPP, _C, _OTHER, _MIXED, _NONE = SIGNS


def _read_words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CPP_NAMES = _read_words(
    """
c++ c++0x c++03 c++98 c++11 c++14 c++17 c++20 c++23 c++26 c++2a c++2b c++1z cpp cpp11 cpp14 cpp17 cpp20 g++ clang++
libstdc++ libc++ stl boost qt cmake cmakelists.txt makefile gcc clang msvc hpp ctad sfinae crtp raii cuda
"""
)
_OTHER_NAMES = _read_words(
    """
rust rustc rustup cargo golang python python2 python3 py pip pandas numpy scipy matplotlib django flask fastapi pytest
pytorch tensorflow keras jupyter java javac jvm jdk maven gradle spring hibernate junit kotlin scala groovy clojure
javascript js jquery typescript ts node node.js nodejs npm yarn deno react reactjs react.js angular angularjs vue vue.js
svelte express webpack html html5 css css3 sass tailwind bootstrap php laravel symfony wordpress composer ruby rails
rspec rubygems perl cpan raku haskell ghc ghci cabal erlang elixir phoenix ocaml opam f# fsharp c# csharp .net dotnet
asp.net linq unity vb vb.net vba powershell bash zsh fish awk sed lua luajit julia matlab octave simulink mathematica
rstudio ggplot ggplot2 tidyverse dplyr sas stata spss fortran gfortran cobol pascal delphi lazarus gnat vhdl verilog
prolog lisp elisp emacs scheme racket tcl smalltalk objective-c objc xcode swiftui ios android flutter solidity wasm
sql mysql mariadb postgresql postgres sqlite sqlite3 mongodb redis oracle plsql t-sql graphql excel spreadsheet access
latex tex tikz bibtex docker kubernetes k8s terraform ansible nginx apache git github gitlab svn debian ubuntu dpkg apt
fedora arch dlang dmd nim crystal zig vala apl cython abap apex xml xslt json yaml regex selenium hadoop spark kafka
"""
)
_WORD = re.compile(r"[.@]?[a-z][a-z0-9_]*(?:[.-][a-z0-9]+|\+\+[a-z0-9]*|#)*")
_PIECE_TABLE = bytes(byte if chr(byte) in "abcdefghijklmnopqrstuvwxyz0123456789_.@+#-" else 0x20 for byte in range(256))
"""Maps characters that no word has to spaces."""
_AFTER = r"(?![A-Za-z0-9_+#'/=-]|\.\w)"
_C_NAME = re.compile(r"""C(?<![A-Za-z0-9_+/'"=.-]C)(?:89|90|99|11|17|23)?""" + _AFTER)
_OTHER_NAME = re.compile(r"(?:Go|R|D|Ada|Swift|Dart|Node|Erlang|Lean)" + _AFTER)
_BEFORE_OTHER_NAME = ("in ", "use ", "using ", "my ", "[", "(")
_FENCE_TAG = re.compile(r"^[ \t>]*(?:```|~~~)[ \t]*([A-Za-z+#]+)", re.MULTILINE)
_FILE = re.compile(
    r"\.([A-Za-z]\w{0,4})(?=:\d|\(\d+(?:,\d+)*\):|\", line \d)"
)  # the extension, where tools print a line
_TAGS_OF_C = _read_words("c h")
_TAGS_OF_CPP = _read_words("cc cxx hh hxx")
_TAGS_OF_OTHERS = _read_words(
    "d r go ada adb ads swift dart sh shell console rs java kt cs fs ml mli hs pl pm rb jl f f90 f95 for pas tsx jsx "
    "ex exs erl"
)


def language_sign(question: str, text: str) -> str:
    """Return the word that stands for the languages named in the question, by the tags of the text's fences, and by the
    names of files in tools' output."""
    words = _words(question)
    tags = {tag.lower() for tag in _FILE.findall(text)}
    if "```" in text or "~~~" in text:
        tags.update(tag.lower() for tag in _FENCE_TAG.findall(text))
    words |= tags
    is_cpp = not words.isdisjoint(_CPP_NAMES) or not tags.isdisjoint(_TAGS_OF_CPP)
    is_other = not words.isdisjoint(_OTHER_NAMES) or not tags.isdisjoint(_TAGS_OF_OTHERS) or _names_other(question)
    is_c = not tags.isdisjoint(_TAGS_OF_C) or _C_NAME.search(question) is not None
    if is_other:
        return _MIXED if is_cpp or is_c else _OTHER
    return _CPP if is_cpp else _C if is_c else _NONE


def _words(question: str) -> set[str]:
    """Return all words that _WORD finds. Pieces of letters are words already, which is faster than a search."""
    pieces = set(question.lower().encode("ascii", "replace").translate(_PIECE_TABLE).decode("ascii").split())
    plain = {piece for piece in pieces if piece.isalpha()}
    return plain.union(_WORD.findall(" ".join(pieces - plain)))


def _names_other(question: str) -> bool:
    """Whether a language is named whose name is also a word or a letter."""
    names = (match.start() for match in _OTHER_NAME.finditer(question))
    return any(not at or question.endswith(_BEFORE_OTHER_NAME, 0, at) for at in names)
