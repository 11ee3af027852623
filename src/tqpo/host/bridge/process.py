"""The other Python: starts a server there, hears its announcement, and sees to its end.

A server that this process started ends with it: at `Process.stop`, when the object is forgotten, at exit; and by itself where
this process is killed.
"""

import contextlib
import dataclasses
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import weakref
from typing import Any

from tqpo.host.bridge import server
from tqpo.host.bridge.errors import BridgeTimeoutError, InterpreterError, ProtocolError, ServerDiedError, VersionError

TAIL = 8192  # bytes of stderr that are kept
ANNOUNCEMENT = 4096  # bytes, at most
GRACE = 3.0  # s for a server to leave by itself
SOCKET_PATH = 100  # bytes that the name of a Unix socket may have everywhere
OURS = ("PYTHONPATH", "PYTHONHOME", "PYTHONSAFEPATH", "PYTHONSTARTUP")  # meant for this Python, wrong for another


@dataclasses.dataclass(frozen=True)
class Options:
    """How a server is started and waited for."""

    timeout: float = 60.0  # s that one call of one environment may take
    start_timeout: float = 120.0  # s to import and build the environments
    info: tuple[str, ...] = ("cost",)  # prefixes of the numeric `info` entries that are passed on
    folder: str | os.PathLike[str] | None = None  # working folder of the server; its modules can be imported there


def interpreter(python: str) -> str:
    """The path of an interpreter given by name or path."""
    found = shutil.which(python)
    if found is None:
        raise InterpreterError(
            f"there is no interpreter {python!r}; give the path of one, or a name that is on PATH such as python3.10"
        )
    return os.path.abspath(found)  # a symbolic link stays: the interpreter of a virtual environment is one


class Process:
    """A server with `num_envs` copies of `env` in the interpreter `python`."""

    def __init__(self, python: str, env: str, num_envs: int, options: Options, arguments: dict[str, Any]):
        self.options = options
        program = interpreter(python)
        try:
            given = json.dumps(arguments, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ProtocolError(f"arguments of an environment in another Python must be JSON: {error}") from None
        folder = tempfile.mkdtemp(prefix="tqpo-")
        path = os.path.join(folder, "socket")
        listen = f"unix:{path}" if os.name == "posix" and len(os.fsencode(path)) < SOCKET_PATH else "127.0.0.1:0"
        words = [program, server.__file__, "--env", env, "--envs", str(num_envs), "--kwargs", given]
        words += [word for prefix in options.info for word in ("--info", prefix)]
        words += ["--listen", listen, "--connect-timeout", f"{options.start_timeout:g}"]
        try:
            self.popen = subprocess.Popen(
                words,
                cwd=options.folder,
                env={name: value for name, value in os.environ.items() if name not in OURS},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,  # Ctrl-C is for the learner, which then ends its environments itself
            )
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise InterpreterError(f"{program} cannot be started: {error}") from None
        self._tail = bytearray()
        self._reader = threading.Thread(target=drain, args=(self.popen.stderr, self._tail), daemon=True)
        self._reader.start()
        self._parts = self.popen, folder, os.getpid()
        self._finalizer = weakref.finalize(self, end, *self._parts)

    def connected(self) -> None:
        """The socket's name has served its purpose, so that nothing is left should this process be killed."""
        shutil.rmtree(self._parts[1], ignore_errors=True)

    def stop(self, grace: float = GRACE) -> None:
        """Waits this long for the process to end by itself, then ends it."""
        if self._finalizer.detach():
            end(*self._parts, grace)

    def tail(self) -> str:
        """The last lines on stderr of a process that has ended."""
        self._reader.join(1.0)
        return self._tail.decode("utf-8", "replace").strip()

    def death(self) -> ServerDiedError | None:
        """The error to raise where the process has ended, or ends within a moment."""
        try:
            code = self.popen.wait(GRACE)
        except subprocess.TimeoutExpired:
            return None
        how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with status {code}"
        return ServerDiedError(f"the process with the environments ended {how}; its last words:\n{self.tail()}")

    def announcement(self) -> tuple[str, str]:
        """Address and token, from the one line that the server writes on stdout."""
        line = self._first_line(time.monotonic() + self.options.start_timeout)
        try:
            said = json.loads(line)
            version, address, token = said["version"], said["address"], said["token"]
        except (ValueError, TypeError, KeyError, RecursionError):
            raise ProtocolError(f"a server announces its address as JSON; this one wrote {line[:200]!r}") from None
        if version != server.VERSION:
            raise VersionError(f"the server speaks version {version!r} of the protocol, this side {server.VERSION}")
        if not isinstance(address, str) or not isinstance(token, str):
            raise ProtocolError(f"a server announces its address and token as text; this one wrote {line[:200]!r}")
        return address, token

    def _first_line(self, deadline: float) -> bytes:
        assert self.popen.stdout is not None
        pipe, line = self.popen.stdout.fileno(), b""
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([pipe], [], [], left)[0]:
                self.stop(0.0)
                limit = self.options.start_timeout
                raise BridgeTimeoutError(f"no environments after {limit:g} s (start_timeout); stderr:\n{self.tail()}")
            byte = os.read(pipe, 1)
            if not byte and (death := self.death()):
                raise death
            if not byte or len(line) > ANNOUNCEMENT:
                raise ProtocolError(f"a server announces itself in one line; this one wrote {line[:200]!r}")
            line += byte
        return line


def drain(pipe: Any, tail: bytearray) -> None:
    """Keeps the last of what the process writes, so that it never waits for a reader."""
    with pipe, contextlib.suppress(OSError, ValueError):
        while chunk := pipe.read(4096):
            tail += chunk
            del tail[:-TAIL]


def end(popen: subprocess.Popen, folder: str, owner: int, grace: float = GRACE) -> None:
    """No process and no folder is left. A fork of the process that started it leaves it alone."""
    if os.getpid() != owner:
        return
    try:
        popen.wait(grace)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.name == "posix":
                os.killpg(popen.pid, signal.SIGKILL)  # with whatever the environments have started
            else:
                popen.kill()
        popen.wait()
    if popen.stdout is not None:
        popen.stdout.close()
    shutil.rmtree(folder, ignore_errors=True)
