"""Child processes that do not outlive their test, whatever happens in it."""

import contextlib
import os
import signal
import traceback


class Child:
    """A forked process that runs `work(*args, write)`, where `write` is a file descriptor to report to.

    A fork is the process that a new interpreter would be, without a second for its imports. As a context manager it is
    killed at the end, if it still runs.
    """

    def __init__(self, work, *args):
        self._report, write = os.pipe()
        self._code = None
        self.pid = os.fork()
        if self.pid:
            os.close(write)
            return
        try:
            os.close(self._report)
            work(*args, write)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        os.close(self._report)

    def read(self, size=4096):
        """Bytes of its report, none at the end of it."""
        return os.read(self._report, size)

    def rest(self):
        """All that it reported and that was not read: until it ends."""
        return b"".join(iter(self.read, b""))

    def poll(self):
        """Its exit code, negative for a signal, or None while it runs."""
        return self._code if self._code is not None else self._wait(os.WNOHANG)

    def wait(self):
        """Its exit code."""
        return self._code if self._code is not None else self._wait(0)

    def kill(self):
        """Its exit code, which is -9 unless it came before the signal."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        return self.wait()

    def _wait(self, options):
        pid, status = os.waitpid(self.pid, options)
        if pid:
            self._code = os.waitstatus_to_exitcode(status)
        return self._code
