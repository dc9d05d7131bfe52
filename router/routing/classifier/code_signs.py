"""What code shows of itself: whether it is in C or C++ or in another language, and the names of what it uses.

The language is told by pieces that are common in the one and rare in the other. A sign stands for the answer, so that a
model knows foreign code of which it has learnt no word.
"""

import re

CODE_SIGNS = ("zzcodeours", "zzcodeother", "zzcodemixed", "zzcodeunclear", "zzcodenone")
_OURS, _OTHER, _MIXED, _UNCLEAR, _NONE = CODE_SIGNS
_OF_OURS = (
    "std::", "#include", "#if", "#endif", "#define", "char *", "char*", "const char", "void *", "int *", "size_t",
    "struct ", "NULL", "nullptr", "<<", "int main(", "typename ", "template <", "template<", "public:", "cout", "endl",
    "unsigned ", "sizeof", "vector<", "using namespace", ".size()", "printf(", "scanf(", "static_cast", "constexpr",
    "operator", "const &", "const&", "auto&", "int32_t", "uint32_t", "uint8_t", "typedef ", "push_back", ".begin()",
    "inline ", "free(", "malloc(", "noexcept", "explicit ", "delete ", "virtual ", "decltype", "long long", "co_await",
    "co_return", "union ", "unordered_map<", "const ", "bool ",
)  # fmt: skip
_OF_OTHERS = (
    "public class", "public static", "public int", "public void", "public boolean", "private final", "import ",
    "package ", "function", "var ", " extends ", " implements ", "self", " final ", "):\n", "end\n", "let ", "let mut",
    "let rec", "=>", ":=", "func ", "fun ", "fn ", "nil", "module ", "None", "True", "super", "$this", "===", "!==",
    "throws ", "this.", "then\n", "my $", "@Override", "match ", "require(", "List<", "Map<", "<?php", "System.",
    "__init__", "<-", "interface ", "boolean", "foreach", "undefined", '"""', "pub ", "alias ", "</", ": string",
    "instanceof", "impl ", "println", "export ", "procedure", "immutable", "trait ", "@nogc", "@safe", "get;",
    "scope ", "fmt.", ".unwrap()", "unittest", "lambda", "typeof(", "$_", "delegate", "ubyte", "(defun", "writeln",
    "__traits", "auto ref", "dchar", "string[]", "Console.", "@property", ".stringof", "pragma(msg", "mixin",
    "implicit none", ".length", "== null", "!= null", "String[]", "static if",
)  # fmt: skip
_MAX_CHARS = 1000  # of the code that are read
_CLEAR = 2  # times as many pieces of one side as of the other


def code_sign(code: str) -> str:
    """Return the word that stands for the language of the code."""
    if not code.strip():
        return _NONE
    code = code[:_MAX_CHARS]
    ours, others = sum(piece in code for piece in _OF_OURS), sum(piece in code for piece in _OF_OTHERS)
    if ours == others == 0:
        return _UNCLEAR
    if ours >= _CLEAR * others:
        return _OURS
    return _OTHER if others >= _CLEAR * ours else _MIXED


_USED = re.compile(
    r"""^[ \t>]*(?:\#[ \t]*include[ \t]*[<"]|(?:import|from|using(?:[ ]namespace)?|use|package|require)[ \t]+['"]?)
      ([\w./:+-]+)|\bstd::(\w+)""",
    re.MULTILINE | re.VERBOSE,
)
_MAX_NAMES = 12


def used_names(text: str) -> str:
    """Return the names of the headers, modules and members of namespace std that occur first in the text."""
    names: dict[str, None] = {}
    for match in _USED.finditer(text):
        names[match[1] or match[2]] = None
        if len(names) == _MAX_NAMES:
            break
    return " ".join(names)
