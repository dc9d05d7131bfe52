"""What callers ask."""

from collections.abc import Iterator
from itertools import count, cycle

_TOPICS = (
    "why does SFINAE drop this overload when the concept is not satisfied",
    "which iterator category does std::ranges::sort want of a std::deque",
    "write a function for the longest increasing subsequence in n log n",
    "who owns the raw pointer after std::unique_ptr::release returns it",
    "is a relaxed atomic load enough to see what the other thread wrote under the mutex",
    "epoll_wait returns EINTR when the process gets a signal, how do I go on",
    "target_link_libraries does not find the static library of the subdirectory",
    "the program prints the wrong sum, find the bug in the loop",
)
_LINE = "for (std::size_t i = 0; i < values.size(); ++i) total += values[i] * weights.at(i);\n"
_numbers = count()


def prompts(size: int) -> Iterator[str]:
    """A new text every time: no classifier and no cache can have seen it. At least so many bytes."""
    for number, topic in zip(_numbers, cycle(_TOPICS), strict=False):
        head = f"{topic} (case {number})\n"
        yield head + _LINE * (max(0, size - len(head)) // len(_LINE) + bool(size))
