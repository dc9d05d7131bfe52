"""Sample conversations: a first question, follow-ups that depend on it, and new questions."""

FIRST = {
    "template": "Why does enable_if in the return type make my two overloads of this function template ambiguous?",
    "stl": "How do I erase elements from a std::map while iterating over it without invalidating the iterator?",
    "algo": "Implement Dijkstra's shortest path on a weighted graph with a priority queue and give its complexity.",
    "memory": "How do I break a cycle of shared_ptr between a parent and its children so that nothing leaks?",
    "concurrency": "Why does my condition variable miss the notification when the producer thread is faster?",
    "systems": "Write a non-blocking TCP server with epoll that handles EINTR, EAGAIN and short writes.",
    "build": "How do I link a static library in CMake with target_link_libraries so that its headers are found as "
    "well?",
    "debug": "My program crashes with a segmentation fault only in release builds, how do I find out why with gdb?",
}
"""First questions by the specialist that answers them."""

FOLLOW_UPS = (
    "yes, do that",
    "Could you explain that in a little more detail please, I am not sure that I follow?",
    "Thanks, that makes sense. Can you show me a complete example that I can try out myself?",
    "Hmm, I tried what you said but it is still not doing what I want. What else could it be?",
    "And which of the two ways would you recommend for a larger project with several people?",
    "Okay. Please rewrite your answer so that it is shorter, and leave out the introduction this time.",
    "Is there anything that I should be careful about when I do it like this, or is it safe in every case?",
)

NEW_QUESTIONS = {
    "template": "Now something different: write a concept that accepts any type with a nested value_type, and "
    "constrain this function template with a requires clause instead of SFINAE, so that the error message"
    " of the compiler is short.",
    "stl": "Another question: which of std::unordered_map and std::map should I take for ten million string keys"
    " that I look up often and never iterate over, and does reserve help the container with its rehashing"
    " and its iterators?",
    "algo": "Next topic: given a list of intervals with weights, choose a set of intervals that do not overlap "
    "with the largest total weight. Which dynamic programming recurrence solves it, and what are its time"
    " and space complexity?",
    "memory": "Next: should this factory return a unique_ptr or a raw pointer, who owns the object after a move, "
    "and is it safe to keep a reference to the object behind the smart pointer when the owner moves it "
    "into another container?",
    "concurrency": "Different thing: do I need memory_order_acquire when one thread sets an atomic flag and another "
    "thread spins on it before it reads the data that was written, or would a mutex with a condition "
    "variable be the better choice?",
    "systems": "On to another matter: fork a child process, exec a program in it and capture its standard output "
    "through a pipe, with waitpid and the right handling of SIGCHLD and of file descriptors that must not"
    " be inherited.",
    "build": "Something else: cmake says that it could not find a package configuration file for fmt although I "
    "installed it with vcpkg. Which toolchain file and which CMAKE_PREFIX_PATH do I have to pass when I "
    "configure the build?",
    "debug": "Another problem: valgrind reports an invalid read of size 8 after the loop and gdb stops with "
    "SIGSEGV in a destructor, the backtrace shows only my own frames. How do I find the line that "
    "corrupted the object?",
}
"""Independent questions, by the specialist that should answer."""
