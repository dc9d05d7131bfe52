"""Allocate memory until a cgroup is nearly full, and hold it until the process is killed."""

import sys
import time

from octet.rpc.memory import memory_reader

_STEP = 1 << 20


def main() -> None:
    share = float(sys.argv[1])
    read, taken = memory_reader(), []
    print("hog ready on memory", flush=True)
    while True:
        memory = read()
        if memory is None:
            sys.exit("the cgroup has no memory limit")
        if memory.used + _STEP < share * memory.limit:
            taken.append(bytearray(_STEP))
            taken[-1][:: 1 << 12] = b"x" * (_STEP >> 12)
        elif memory.used - _STEP > share * memory.limit and taken:
            taken.pop()
        else:
            time.sleep(0.05)


if __name__ == "__main__":
    main()
