"""Whether an answer is any good, as far as a program can tell: in a process that can be killed."""
