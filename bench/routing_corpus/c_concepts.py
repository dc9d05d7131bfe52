"""The concepts of C and of programming in it, in the order of the standard and of a course, written for Octet. With the
phrasings of the corpus they are questions; two labels mean that either specialist can answer."""

from collections.abc import Iterator

from bench.routing_corpus.phrasing import Item

CONCEPTS = {
    "memory": """
the decay of an array to a pointer|pointer arithmetic|a pointer to a pointer|void pointers|the null pointer|a dangling pointer
a pointer to an array and an array of pointers|two-dimensional arrays as parameters|a variable-length array|a flexible array member
designated initializers|compound literals|changing a string literal|a character array and a character pointer|padding in a struct
assigning one struct to another|passing a struct by value|returning a struct|type punning through a union|an anonymous union
the layout of bit-fields|the type of an enumeration|typedef of a function pointer|an array of function pointers|callbacks with user data
opaque structs|a constant pointer and a pointer to a constant|the const qualifier in parameters|volatile variables|the restrict qualifier
integer promotions|the usual arithmetic conversions|signed integer overflow|wraparound of unsigned integers|shifting a negative number
setting and clearing bits|conversion from char to int|whether char is signed|the sizeof operator|sizeof of an array parameter|size_t and int
comparing floating point numbers|conversion from double to int|hexadecimal and octal constants|operator precedence|the order of evaluation
sequence points|the comma operator|lvalues|assignment as an expression|increment twice in an expression|uninitialised variables
undefined behaviour|implementation-defined behaviour|strict aliasing|the effective type of an object|calloc and malloc|realloc
freeing memory twice|returning the address of a local variable|a large array on the stack|static local variables|automatic variables
scope of a variable in a block|goto for cleaning up|falling through in a switch|declarations in a switch|the address of a struct member
the order of the members of a struct|casting the result of malloc|nested structs|a struct that contains a pointer to itself|NULL and 0
the value of a pointer after free|alignment of an object|offsetof|complex declarations|boolean values|negative zero|infinity and NaN
division and remainder of negative numbers|the largest value of an integer type|integer types of fixed width|long and long long
""",
    "memory|template": """
variable arguments and va_list|generic containers with void pointers|default argument promotions|a type-generic macro with _Generic|typeof
""",
    "memory|build": """
old-style function definitions|a function without a prototype|an implicit function declaration|a function without parameters|linkage of names
static functions|static and extern at file scope|tentative definitions|inline functions|name spaces of tags and members|forward declarations
""",
    "memory|systems": """
byte order|unaligned access|setjmp and longjmp|the stack frame of a function|where variables are stored|the layout of a process in memory
""",
    "build": """
macros with arguments|a macro that evaluates its argument twice|turning a macro's argument into a string|joining tokens in a macro
macros with several statements|variadic macros|X macros|include guards|conditional compilation|predefined macros|pragma once
a variable in a header|multiple definitions|undefined references|the order of libraries on the command line|linking the math library
static libraries|shared libraries|position-independent code|compiler warnings as errors|choosing the version of the standard
optimisation levels|cross compilation|dependencies in a makefile|separate compilation|calling C functions from C++|weak symbols
visibility of symbols|_Static_assert|the stages of translation|header files and source files|a missing header|pkg-config|debug symbols
""",
    "stl|systems": """
printf formats of fixed-width integers|scanf that skips input|reading a line of unknown length|fgets and the newline|fflush of input
buffering of standard output|reading numbers from a file|writing a binary file|the end of a file|seeking in a file|temporary files
reading one character without waiting|formatting the time|measuring elapsed time|command line options|getchar and EOF
""",
    "stl": """
strcpy and strncpy|snprintf|splitting a string with strtok|converting a string to a number|qsort with a comparison function|bsearch
memcpy and memmove|memset of integers|comparing strings|joining strings|toupper of a string|duplicating a string|finding a substring
random numbers in a range|rounding numbers|wide characters|multibyte strings|locales|printing a number in binary|mathematical functions
""",
    "systems": """
file descriptors|open, read and write|fork and exec|a pipe between processes|memory-mapped files|a TCP client|non-blocking sockets
select and poll|signal handlers|waiting for a child process|listing a directory|environment variables|a daemon|shared memory
locking a file|the terminal in raw mode|system calls|errno after a failed call|interrupted system calls|exit codes|vector instructions
inline assembly|cache lines|huge pages|a kernel module|device registers|microcontroller interrupts|zombie processes|resource limits
""",
    "concurrency": """
creating a thread with pthreads|arguments of a thread|a mutex|condition variables|joining and detaching threads|thread-local variables
atomic variables|volatile and atomic|memory order|a race on a global counter|deadlocks|read-write locks|semaphores|a thread pool
reentrant functions|thread-safe initialisation|spinlocks|a barrier for threads|cancelling a thread|lock-free queues|C11 threads
""",
    "debug": """
a segmentation fault in a loop|finding a leak with Valgrind|an invalid read|the address sanitizer's report|a core dump|breakpoints in gdb
a program that prints garbage|a loop that never ends|other results with optimisation|a bus error|stack smashing detected
a corrupted heap|an off-by-one error|wrong output of printf|a function that returns the wrong value|a crash at exit
a comparison that is never true|a list that loses its elements|a string without its terminator|an index out of bounds
""",
    "algo": """
reversing a linked list|a binary search|quicksort|merging sorted arrays|the sieve of Eratosthenes|matrix multiplication|a hash table
traversing a tree|permutations of a string|the greatest common divisor|counting set bits|sorting records by a key|palindromes
the shortest path|a priority queue|dynamic programming|removing duplicates from an array|rotating an array|balanced parentheses
converting a number to another base|a ring buffer|topological sorting|string matching|backtracking|binary trees
""",
}


def read_concepts() -> Iterator[Item]:
    for label, listed in CONCEPTS.items():
        for subject in listed.strip().replace("\n", "|").split("|"):
            yield Item(subject, "", "", label, "C")
