"""Compute something in a process of its own, for the sake of what computing leaves behind: threads, pools, caches."""

import json
import os
import signal
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from octet.supervise.spawn import check_forkable, die_with


class ApartFailed(RuntimeError):
    """The process ended without a result."""


def apart(compute: Callable[[], Any]) -> Any:
    """The result, which must be what JSON can say. Raises ApartFailed."""
    check_forkable()
    reading, writing = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _compute(compute, parent, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(pid, 0)
    if status or not said:
        raise ApartFailed(f"the process that was to compute it {ending(status)}")
    return json.loads(said)


def _compute(compute: Callable[[], Any], parent: int, writing: int) -> NoReturn:
    code = 1
    try:
        die_with(parent)
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(json.dumps(compute()).encode())
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def ending(status: int) -> str:
    """How a process ended, by what waiting for it returned."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"ended with status {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
