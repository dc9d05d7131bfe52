"""Text that a detector must recognise, and text that it must ignore."""

LINKER = {
    "GNU ld": """Why?
/usr/bin/ld: /tmp/ccyGzqQL.o: in function `main':
a.cpp:(.text+0xc): undefined reference to `vtable for S'
collect2: error: ld returned 1 exit status""",
    "a person quotes it": "undefined reference to vtable",
    "a person quotes a name": "what to do about undefined reference to boost::system::generic_category()",
    "twice defined": "d.cpp:(.text+0x0): multiple definition of `main'; /tmp/d.o:d.cpp:(.text+0x0): first defined here",
    "library missing": "/usr/bin/ld: cannot find -lnope: No such file or directory",
    "lld": "ld.lld: error: undefined symbol: foo(int)\n>>> referenced by main.cpp:3",
    "Apple": 'Undefined symbols for architecture arm64:\n  "_foo", referenced from:\n      _main in main.o',
    "Apple's other": "ld: library not found for -lfoo\nclang: error: linker command failed with exit code 1",
    "Microsoft": 'main.obj : error LNK2019: unresolved external symbol "int __cdecl f(void)" referenced in main',
    "Apple, twice": "duplicate symbol '_foo' in:\n    /tmp/a.o\n    /tmp/b.o\nld: 1 duplicate symbol",
    "Apple, twice, on one line": "duplicate symbol _foo in a.o and b.o",
    "at start": "./app: symbol lookup error: ./app: undefined symbol: _ZN3fooEv",
}

STACK_TRACE = {
    "gdb": """Program received signal SIGSEGV, Segmentation fault.
#0  0x000055555555513a in depth (p=0x0) at e.cpp:2
#1  0x000055555555514c in depth (p=0x7fffffffe6e0) at e.cpp:2
#2  0x0000555555555177 in main () at e.cpp:3""",
    "gdb, quoted and without addresses": """> #1  depth (p=0x7fffffffe6e0) at e.cpp:2
> #2  main () at e.cpp:3""",
    "gdb in a library": "#0  raise () from /lib64/libc.so.6\n#1  abort () from /lib64/libc.so.6",
    "gdb, one in a library": '#0  raise (sig=6) from /usr/lib/libc.so.6\n#1  f (s="(not) at home") at src/a.cpp:12',
    "Boost without lines": " 0# f() in ./app\n 1# main() in ./app",
    "lldb": "* thread #1, stop reason = EXC_BAD_ACCESS\n  * frame #0: 0x0000000100003f50 a.out`main at main.cpp:4:5",
    "glibc": """./d(main+0x19)[0x562a5d8c6162]
/lib/x86_64-linux-gnu/libc.so.6(+0x2724a)[0x7f40a21eb24a]
./d(_start+0x21) [0x562a5d8c6081]""",
    "Abseil": "*** SIGSEGV received ***\nPC: @ 0x5581 main\n    @     0x7f12e4  (unknown)\n    @     0x5581aa  main",
    "Boost": " 0# bar(int) at /src/file.cpp:70\n 1# bar(int) at /src/file.cpp:70\n 2# main at /src/main.cpp:93",
    "kernel": "BUG: unable to handle page fault\nCall Trace:\n <TASK>\n ? do_syscall_64+0x3b/0x90",
    "uncaught": "It dies:\nterminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc",
}

SANITIZER = {
    "address": """==21431==ERROR: AddressSanitizer: heap-use-after-free on address 0x602000000010 at pc 0x55bafdeff499
READ of size 4 at 0x602000000010 thread T0""",
    "thread": "==================\nWARNING: ThreadSanitizer: data race (pid=21438)\n  Read of size 4 at 0x559d98cb1094",
    "memory": "==9==WARNING: MemorySanitizer: use-of-uninitialized-value\n    #0 0x49 in main x.cpp:3",
    "leak": "==77==ERROR: LeakSanitizer: detected memory leaks",
    "undefined": "b.cpp:3:114: runtime error: signed integer overflow: 2147483647 + 1 cannot be represented in 'int'",
    "summary alone": "SUMMARY: UndefinedBehaviorSanitizer: undefined-behavior b.cpp:3:114 in",
    "deadly": "AddressSanitizer:DEADLYSIGNAL",
    "valgrind": """==21566== Invalid read of size 4
==21566==    at 0x10923F: main (b.cpp:3)
==21566==  Address 0x4d6dc80 is 0 bytes inside a block of size 12 free'd""",
}

BUILD = {
    "CMake": """Fix this:
cmake_minimum_required(VERSION 3.20)
project(demo CXX)
add_executable(demo main.cpp)""",
    "CMake, shouted and indented": "  ADD_LIBRARY (core STATIC a.cpp)\n  TARGET_LINK_LIBRARIES (core PUBLIC z)",
    "CMake complains": "CMake Error at CMakeLists.txt:3 (find_package):\n  By not providing FindNope.cmake",
    "make": "CXX := g++\nCXXFLAGS += -O2\n\napp: main.o util.o\n\t$(CXX) $(CXXFLAGS) -o $@ $^\n",
    "make, tabs lost": ".PHONY: clean\nclean:\n    rm -f $(OBJS)\n",
    "make, by its own names": "app: main.o\n\tg++ -o $@ $<\n",
    "CMake over lines": "add_executable(demo # the program\n  main.cpp)\ntarget_link_libraries(demo m) # for sin",
    "make complains": "make: *** No rule to make target 'foo.o', needed by 'app'.  Stop.",
    "make cannot read": "Makefile:4: *** missing separator.  Stop.",
    "ninja": "ninja: error: 'x.cpp', needed by 'x.o', missing and no known rule to make it",
    "configure": "configure: error: C++ compiler cannot create executables",
}

SFINAE = {
    "enable_if": """template <typename T, typename = void> struct has_size : std::false_type {};
template <typename T> struct has_size<T, std::void_t<decltype(std::declval<T>().size())>> : std::true_type {};
template <typename T, std::enable_if_t<has_size<T>::value, int> = 0> auto f(T const& t) { return t.size(); }""",
    "concepts": """template <typename T>
concept Drawable = requires(T t) { { t.draw() } -> std::same_as<void>; };
template <typename T> requires Drawable<T> && (!std::is_same_v<T, int>) void draw(T& t);
template <typename T> requires (sizeof...(T) > 1) struct many { using r = std::invoke_result_t<T>; };""",
}

NOTHING = {
    "cmake in a sentence": "How do I tell cmake to use C++20, and is target_link_libraries(app PRIVATE m) enough?",
    "make in a sentence": "Should I make this constructor explicit? My Makefile builds it with $(CXX).",
    "a word about the linker": "Explain how the linker resolves an undefined reference to a weak symbol.",
    "prose": "Is a dangling pointer the same as an undefined reference to memory?",
    "a word about ASan": "Should I enable AddressSanitizer or UndefinedBehaviorSanitizer: what is the difference?",
    "Go": "panic: runtime error: index out of range [3] with length 3",
    "Python": 'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\n    f()\nZeroDivisionError: x',
    "Java": "Exception in thread main java.lang.Error\n\tat com.example.Main.main(Main.java:12)",
    "PHP": "#0 /var/www/index.php(12): foo()\n#1 {main}",
    "issue numbers": "This fixes #0 and #1.\n#1 is the worse one\n#2 can wait",
    "a shell script": 'for arg in "$@"; do\n\techo "$arg"\ndone',
    "C++ with labels": "class A {\npublic:\n\tA();\nprivate:\n\tint x;\n};\nswitch (n) {\ncase 1:\n\treturn 2;\n}",
    "more labels": "class A {\nprotected:\n\tint CC = 3;\n};\nswitch (n) {\ndefault:\n\tCC = 3;\n}\nCC = 4;",
    "Python with tabs": "class Card:\n\tCC = 3\n\tdef f(self):\n\t\treturn self.CC",
    "issues with places": "Issues:\n#1 Fix login (broken) from mobile\n#2 Fix logout (flaky) from desktop",
    "a list from zero": "#0 buy milk (2 l) at store\n#1 call mom (mobile) at noon",
    "a list with times": "#1 call mom (mobile) at 10:30\n#2 walk the dog (small) at 11:00",
    "a list in Boost's way": "1# buy milk (2 l) at store\n2# put it (all of it) in the fridge",
    "a script with a compiler": '#!/bin/bash\nCC=gcc\n"$CC" -O2 "$@"\nrun $@\n',
    "a script's help": '#!/bin/sh\nusage:\n\texec prog "$@"\n',
    "YAML with tabs": "services:\n\tweb:\n\t\timage: nginx\nCC = 3",
    "a project in prose": "Project (phase 2) is late.\nfind_package (the parcel)",
    "two in prose": "Project (phase 2) is late.\nfind_package (the parcel) before noon, please.",
    "a crossword": "duplicate symbol 'x' in my crossword puzzle",
    "one template": "template <typename T> T twice(T t) { return t + t; } // is enable_if needed here?",
    "two templates, few tricks": "template<class T> T a(T t);\ntemplate<class T> T b(T t);\nwhat is decltype(a(1))?",
    "a compiler's explanation": """x.cpp:5: error: no match for 'operator-'
x.cpp:5: note: candidate: 'template<class T> requires (X<T>) auto operator-(T)'
x.cpp:6: note: candidate: 'template<class T> requires (Y<T>) auto operator-(T, enable_if_t<Z<T>::value>)'
x.cpp:7: note: candidate: 'template<class T> requires (Y<T>) decltype(declval<T>()) operator-(T, T)'""",
    "equal signs": "== Results ==\n=== 12 ===\n1 == 1 == 1\n==12==\nif (a == b) return;",
    "hex": "What does 0x7fff mean at address [0x10]? And @ 0x20?",
    "exceptions": "When is terminate called after throwing an instance of 'E' from a destructor?",
    "empty": "",
}
