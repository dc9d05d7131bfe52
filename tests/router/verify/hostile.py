# ruff: noqa: E501
"""Hostile sources, grouped by the verdict that they must get."""

from collections.abc import Mapping

_BOMB = "\n".join(
    f"#define B{i} B{i - 1} B{i - 1} B{i - 1} B{i - 1} B{i - 1} B{i - 1} B{i - 1} B{i - 1}" for i in range(1, 12)
)

FAILS: Mapping[str, str] = {
    "another's file": '#include "/etc/passwd"\nint main() {}\n',
    "by a macro": "#define FILE </etc/passwd>\n#include FILE\nint main() {}\n",
    "by way of its own folder": '#include "../../../../../../etc/passwd"\nint main() {}\n',
    "the environment": '#include "/proc/self/environ"\nint main() {}\n',
    "its own memory": '#include "/proc/self/maps"\nint main() {}\n',
    "an endless file": '#include "/dev/zero"\nint main() {}\n',
    "standard input again": '#include "/dev/stdin"\nint main() {}\n',
    "as a string": 'const char secret[] = {\n#embed "/etc/passwd"\n};\nint main() {}\n',
    "a folder": '#include "/usr"\nint main() {}\n',
    "itself, in circles": "#include __FILE__\n#include __FILE__\nint main() {}\n",
    "templates without end": "template <int N> struct A { static const int v = A<N - 1>::v + A<N + 1>::v; };\nint main() { return A<9>::v; }\n",
    "templates that double": (
        "template <int N, class T> struct A { using L = typename A<N - 1, A<N, T>>::T_; using T_ = typename A<N - 1, L>::T_; };\n"
        "template <class T> struct A<0, T> { using T_ = T; };\nint main() { A<40, int>::T_ x; return sizeof x; }\n"
    ),
    "macros that multiply": f"#define B0 x + x\n{_BOMB}\nint x = B11;\nint main() {{}}\n",
    "a constant that is never reached": "constexpr int f() { int i = 0; for (;;) i ^= 1; return i; }\nconstexpr int x = f();\nint main() {}\n",
    "constants that double": "constexpr long f(int n) { return n < 2 ? n : f(n - 1) + f(n - 2); }\nconstexpr long x = f(60);\nint main() {}\n",
    "parentheses": "int main() { return " + "(" * 100_000 + ";\n",
    "braces": "int main() " + "{" * 100_000 + "\n",
    "errors without end": "int main() {\n" + "x = ;\n" * 10_000 + "}\n",
    "an error as long as a book": "int main() { " + "a" * 100_000 + " = 1; }\n",
    "a note as long as a book": "#error " + "words " * 20_000 + "\n",
    "more than there is": "int main() { static char a[1ull << 62][1 << 30]; return a[0][0]; }\n",
    "a missing end": "int main() { /* ",
    "a string without end": 'int main() { const char *s = R"x( ',
    "a check that fails": 'static_assert(false, "\\n<stdin>:1:1: error: /etc/passwd\\n");\nint main() {}\n',
    "another's name": '#line 1 "/etc/passwd"\nint main() { return ; + }\n',
    "whether there is a file": "#if __has_include(</etc/passwd>)\nint main() {}\n#else\n#error none\n#endif\n",
    "a file that is newer": '#pragma GCC dependency "/etc/passwd"\nint main() { return ; + }\n',
    "a plugin": '#pragma GCC plugin "/tmp/x.so"\n#pragma clang load "/tmp/x.so"\nint main() { return ; + }\n',
    "trigraphs": "int main() ??< return 0; ??>\n",
    "options in a comment": '// -include /etc/passwd -fplugin=/tmp/x.so\n#pragma GCC optimize ("-include /etc/passwd")\nint main() { return ; + }\n',
}
"""Sources that must fail within their limits."""

PASSES: Mapping[str, str] = {
    "what only an assembler would read": '__asm__(".incbin \\"/etc/passwd\\"");\nint main() { __asm__ volatile(".incbin \\"/etc/shadow\\""); }\n',
    "the end of a line in another fashion": "int main() {\r\n  return 0;\r\n}\r\n",
    "zeros": "int main() { return 0; }\n\0\0\n",
    "no character at all": 'int main() { const char *s = "\udcff\ud800"; return s[0]; }\n',
    "trigraphs in a remark": "int main() { return 0; }\n// what??/\n",
    "a large array": "static char a[1 << 30]; int main() { return a[5]; }\n",
    "an optimisation": '#pragma GCC optimize ("O3")\n#pragma GCC diagnostic error "-Wall"\nint main() { int unused; }\n',
    "a file that is not there": "#if __has_include(</etc/passwd>)\n#error it leaks\n#endif\nint main() {}\n",
    "nor there": '#if __has_include("/proc/self/environ") || __has_include("/etc/hostname")\n#error it leaks\n#endif\nint main() {}\n',
}
"""Sources that must pass, because they do no harm in the sandbox."""

COMMON = (
    *("another's file", "by a macro", "the environment", "an endless file", "itself, in circles"),
    *("templates that double", "macros that multiply", "errors without end", "whether there is a file"),
    *("what only an assembler would read", "zeros", "no character at all", "nor there"),
)
"""The sources that a short run uses."""
