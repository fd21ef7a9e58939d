"""How processes of the suite compile kernels: each kernel in one of them at a time, and without a tracer.

A process that waited finds the machine code in the cache. Coverage traces Python, of which numba is made: compiling
under its tracer takes half as long again.
"""

import contextlib
import fcntl
import sys
import threading

from numba.core.dispatcher import Dispatcher


class Turns(threading.local):
    """Whether this thread compiles: what it compiles within that takes no turn of its own, lest two wait crosswise."""

    busy = False


_turns = Turns()


def compile_in_turn():
    """Have every kernel of this process that is cached be compiled, or loaded, in its turn."""
    compile_ = Dispatcher.compile

    def compile_in_turn_(self, sig):
        if _turns.busy:
            return compile_(self, sig)
        _turns.busy = True
        try:
            with _untraced(), _turn(self):
                return compile_(self, sig)
        finally:
            _turns.busy = False

    Dispatcher.compile = compile_in_turn_


@contextlib.contextmanager
def _turn(dispatcher):
    with contextlib.ExitStack() as stack:
        path = getattr(dispatcher._cache, "cache_path", None)
        if path is not None:
            lock = stack.enter_context(open(f"{path}/{dispatcher.py_func.__name__}.lock", "w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _untraced():
    tracer = sys.gettrace()
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(tracer)
