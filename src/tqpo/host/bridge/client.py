"""The learner's side of the pipes: a server of environments, started as a child process in another Python.

Every wait has an end, and every failure is an error of `tqpo.host.bridge.errors`. A server ends after any failure but
an exception inside an environment, and with this process, even where that is killed.
"""

import collections
import contextlib
import dataclasses
import functools
import json
import os
import shutil
import signal
import subprocess
import threading
import weakref
from typing import Any

import numpy as np

from tqpo.host.bridge import errors, server
from tqpo.host.bridge.server import Channel, Frame, Violation

CHUNKS, TAIL = 1000, 8192  # of stderr: reads that are kept, and bytes that an error shows
GRACE = 3.0  # s for a server to leave by itself
OURS = ("PYTHONPATH", "PYTHONHOME", "PYTHONSAFEPATH", "PYTHONSTARTUP")  # meant for this Python, wrong for another


@dataclasses.dataclass(frozen=True)
class Options:
    """How a server is started and waited for."""

    timeout: float = 60.0  # s that one call of one environment may take
    start_timeout: float = 120.0  # s to import and build the environments
    info: tuple[str, ...] = ("cost",)  # prefixes of the numeric `info` entries that are passed on
    folder: str | os.PathLike[str] | None = None  # working folder of the server; its modules can be imported there


class Server:
    """A process with the environments `part` of a batch."""

    def __init__(self, words: list[str], part: range, options: Options):
        self.part, self.options = part, options
        self._kind, self._id, self._patience = "hello", 0, options.start_timeout  # of the answer that is due
        self._turn = part  # the environments that may be at work
        env = {name: value for name, value in os.environ.items() if name not in OURS}
        pipes: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        try:  # in a session of its own: Ctrl-C is for the learner, which then ends its environments itself
            self.popen: Any = subprocess.Popen(words, 0, cwd=options.folder, env=env, start_new_session=True, **pipes)
        except OSError as error:
            raise errors.InterpreterError(f"{words[0]} cannot be started: {error}") from None
        self._end = weakref.finalize(self, end, self.popen, os.getpid())
        self._channel = Channel(self.popen.stdout.fileno(), self.popen.stdin.fileno(), options.timeout)
        self._stderr: collections.deque[bytes] = collections.deque(maxlen=CHUNKS)
        chunks = iter(functools.partial(self.popen.stderr.read, 4096), b"")
        self._reader = threading.Thread(target=self._stderr.extend, args=(chunks,), daemon=True)
        self._reader.start()

    def stop(self, grace: float) -> None:
        """Hangs up, waits this long for the process to end by itself, then ends it."""
        if finalizer := self._end.detach():
            end(*finalizer[2], grace=grace)

    def ask(self, kind: str, data: dict[str, Any], **arrays: np.ndarray) -> None:
        if not self._end.alive:
            raise errors.BridgeError("the connection to the environments is closed")
        self._kind, self._id, self._turn, self._patience = kind, self._id + 1, self.part, self.options.timeout
        with contextlib.suppress(BrokenPipeError):  # `answer` finds out why a pipe is broken
            self._channel.send(Frame(kind, self._id, data, arrays))

    def answer(self) -> Frame:
        """The answer that is due; before it, each environment may be announced once, where the others took long."""
        frame = self._channel.receive(self._patience)
        for _ in self.part if self._id else ():
            if (frame.kind, frame.id) == ("busy", self._id):
                self._turn = [self.part[frame.data["env"]]]
                frame = self._channel.receive(self._patience)
        if (frame.kind, frame.id) == ("error", self._id) and frame.data["env"] is not None:
            index, message, text = self.part[frame.data["env"]], frame.data["message"], frame.data["traceback"]
            raise errors.HostedEnvironmentError(index, message, text)
        if (frame.kind, frame.id) != (self._kind, self._id):
            raise Violation(f"{frame.kind} {frame.id} came in answer to {self._kind} {self._id}: {frame.data!s:.2000}")
        return frame

    def explain(self, error: BaseException) -> BaseException:
        """Ends the process: what failed, how the process ended and the last lines that it wrote on stderr."""
        if isinstance(error, errors.BridgeError) or not isinstance(error, Exception):
            return error
        kind, message = errors.ProtocolError, f"{type(error).__name__}: {error} (docs/bridge.md has the protocol)"
        if isinstance(error, TimeoutError):
            first, last = self._turn[0], self._turn[-1]
            who = f"environment {first}" if first == last else f"environments {first} to {last}"
            limit = f"{self._patience:g} s ({'timeout' if self._id else 'start_timeout'})"
            kind, message = errors.BridgeTimeoutError, f"{who}: no answer to {self._kind} within {limit}"
        elif isinstance(error, EOFError):
            kind, message = errors.ServerDiedError, str(error)
        self.stop(GRACE if kind is errors.ServerDiedError else 0.0)
        self._reader.join(1.0)
        code, words = self.popen.returncode, b"".join(list(self._stderr))[-TAIL:].decode("utf-8", "replace").strip()
        how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with status {code}"
        return kind(f"{message}; the process with the environments ended {how}; its last output:\n{words}")


def end(popen: Any, owner: int, grace: float = GRACE) -> None:
    """No process is left. A fork of the process that started it leaves it alone."""
    if os.getpid() != owner:
        return
    popen.stdin.close()
    try:
        popen.wait(grace)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(popen.pid, signal.SIGKILL)  # with whatever the environments have started
        popen.wait()
    popen.stdout.close()


def command(python: str, **asked: Any) -> list[str]:
    """What starts a server in the interpreter `python`, a name or a path."""
    path = shutil.which(python)
    if path is None:
        raise errors.InterpreterError(f"there is no interpreter {python!r}; give a path, or a name that is on PATH")
    try:  # a symbolic link stays: the interpreter of a virtual environment is one
        return [os.path.abspath(path), server.__file__, json.dumps(asked, allow_nan=False)]
    except (TypeError, ValueError) as error:
        raise errors.ProtocolError(f"arguments of an environment in another Python must be JSON: {error}") from None
