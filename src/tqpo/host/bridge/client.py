"""A conversation with a server of environments: `start` one in another Python, or `connect` to one that runs.

Every wait has an end, every failure is an error of `bridge.errors`, and a conversation that failed is over, except after an
exception inside an environment.
"""

import contextlib
import socket
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from tqpo.host.bridge import server
from tqpo.host.bridge.errors import (
    BridgeError,
    BridgeTimeoutError,
    HostedEnvironmentError,
    ProtocolError,
    ServerDiedError,
    VersionError,
)
from tqpo.host.bridge.process import GRACE, Options, Process
from tqpo.host.bridge.server import (
    DTYPES,
    MAX_INFO,
    MAX_NAME,
    VERSION,
    Channel,
    Frame,
    Hangup,
    Space,
    Torn,
    Violation,
    whole,
)


class Hello(NamedTuple):
    """What a server says of its environments."""

    num_envs: int
    observation: Space
    action: Space
    max_steps: int | None
    versions: dict[str, str]

    @property
    def max_reply(self) -> int:
        """Bytes of the largest payload of a reset or step: observations twice, numbers, flags."""
        each = DTYPES[self.observation.dtype] * int(np.prod(self.observation.shape, dtype=np.int64))
        return self.num_envs * (2 * each + 10 + 9 * MAX_INFO)


class Steps(NamedTuple):
    """One step of all environments of a server."""

    obs: np.ndarray  # [n, …] after any reset
    reward: np.ndarray  # [n]
    terminated: np.ndarray  # [n] bool
    truncated: np.ndarray  # [n] bool
    final_obs: np.ndarray  # [episodes that ended, …] their last observations, where the server resets
    info: dict[str, tuple[np.ndarray, np.ndarray]]  # name: values [n], and where there is one [n] bool


class Connection:
    """One server; `first` is the index of its first environment among those of all servers."""

    def __init__(self, channel: Channel, timeout: float, process: Process | None = None, first: int = 0):
        self.channel, self.timeout, self.process, self.first = channel, timeout, process, first
        self.closed = False
        self._id, self._kind = -1, ""
        self._busy: int | None = None  # the environment that the server said is next
        self._hang_up = weakref.finalize(self, channel.sock.close)

    def greet(self, token: str, autoreset: str) -> None:
        self.ask("hello", {"version": VERSION, "token": token, "autoreset": autoreset})
        frame = self.answer(server.MAX_PAYLOAD)
        with self._errors():
            if frame.data.get("version") != VERSION:
                said = frame.data.get("version")
                raise VersionError(f"the server speaks version {said!r} of the protocol, this side {VERSION}")
            self.hello = parse_hello(frame)

    def ask(self, kind: str, data: dict[str, Any] | None = None, arrays: dict[str, np.ndarray] | None = None) -> None:
        if self.closed:
            raise BridgeError("the connection to the environments is closed")
        self._id, self._kind, self._busy = self._id + 1, kind, None
        with self._errors(), contextlib.suppress(ConnectionError):  # `answer` finds out why a connection is broken
            self.channel.send(Frame(kind, self._id, data or {}, arrays or {}), self.timeout)

    def answer(self, max_payload: int) -> Frame:
        with self._errors():
            frame = self.channel.receive(self.timeout, max_payload=max_payload)
            signs = 0
            while frame.kind == "busy":
                self._check_busy(frame, signs)
                signs += 1
                frame = self.channel.receive(self.timeout, max_payload=max_payload)
            if frame.kind == "error":
                raise error_of(frame, self.first)
            if (frame.kind, frame.id) != (self._kind, self._id):
                raise Violation(f"{frame.kind} {frame.id} came in answer to {self._kind} {self._id}")
            return frame

    def ask_reset(self, seeds: list[int | None], mask: np.ndarray) -> None:
        self.ask("reset", {"seeds": seeds}, {"mask": mask})

    def answer_reset(self) -> np.ndarray:
        """Observations [n, …]; zeros for the environments outside the mask."""
        frame = self.answer(self.hello.max_reply)
        with self._errors():
            server.expect_arrays(frame, {"obs": self._observations(self.hello.num_envs)})
        return frame.arrays["obs"]

    def ask_step(self, actions: np.ndarray) -> None:
        self.ask("step", arrays={"action": actions})

    def answer_step(self) -> Steps:
        frame = self.answer(self.hello.max_reply)
        with self._errors():
            names = parse_names(frame.data)
            n, a = self.hello.num_envs, frame.arrays
            over = a["final_obs"].shape[0] if "final_obs" in a and a["final_obs"].ndim else 0
            expected = {"obs": self._observations(n), "reward": ("<f8", (n,))}
            expected |= {"terminated": ("|b1", (n,)), "truncated": ("|b1", (n,))}
            expected |= {"info": ("<f8", (len(names), n)), "has_info": ("|b1", (len(names), n))}
            server.expect_arrays(frame, expected | {"final_obs": self._observations(over)})
            if over not in (0, np.sum(a["terminated"] | a["truncated"])):
                raise Violation(f"{over} last observations are not one for each episode that ended")
        info = {name: (a["info"][i], a["has_info"][i]) for i, name in enumerate(names)}
        return Steps(a["obs"], a["reward"], a["terminated"], a["truncated"], a["final_obs"], info)

    def picture(self, env: int) -> np.ndarray:
        """What environment number `env` of this server draws: [height, width, 3]."""
        self.ask("render", {"env": env})
        frame = self.answer(server.MAX_PAYLOAD)
        with self._errors():
            shape = frame.arrays["picture"].shape if "picture" in frame.arrays else ()
            if len(shape) != 3 or shape[2] != 3:
                raise Violation("a picture must be [height, width, 3]")
            server.expect_arrays(frame, {"picture": ("|u1", shape)})
        return frame.arrays["picture"]

    def close(self) -> None:
        """Says goodbye, and sees to it that the server is gone."""
        if not self.closed:
            self.timeout = GRACE
            with contextlib.suppress(BridgeError):
                self.ask("close")
                self.answer(0)
            self._drop(GRACE)

    def _check_busy(self, frame: Frame, signs: int) -> None:
        """A sign of life names the environment that is next; in one command each can be, to step and to reset."""
        n = self.hello.num_envs if self._id > 0 else 0
        if frame.id != self._id or frame.arrays or set(frame.data) != {"env"} or not whole(frame.data["env"], 0, n - 1):
            raise Violation("a sign of life must name an environment and the command that it is busy with")
        if signs >= 2 * n:
            raise Violation(f"more than {2 * n} signs of life in one command")
        self._busy = frame.data["env"]

    def _observations(self, count: int) -> tuple[str, tuple[int, ...]]:
        return self.hello.observation.dtype, (count, *self.hello.observation.shape)

    def _drop(self, grace: float) -> None:
        self.closed = True
        self._hang_up()
        if self.process is not None:
            self.process.stop(grace)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """What failed, as an error of ours; after any but an exception in an environment the conversation is over."""
        try:
            yield
        except HostedEnvironmentError:
            raise
        except TimeoutError as error:
            self._drop(0.0)
            message = (
                f"{self._who()}: no answer to {self._kind} within {self.timeout:g} s ({error}); the process was ended"
            )
            raise BridgeTimeoutError(message + self._last_words()) from None
        except (Hangup, OSError) as error:
            death = self.process.death() if self.process else None
            self._drop(0.0)
            raise death or ServerDiedError(f"the connection to the environments broke: {error}") from None
        except Violation as error:
            death = self.process.death() if self.process and isinstance(error, Torn) else None
            self._drop(0.0)
            raise death or ProtocolError(f"{error} (docs/bridge.md has the protocol)") from None
        except BaseException:
            self._drop(0.0)
            raise

    def _who(self) -> str:
        if self._id <= 0:
            return "the server"
        first, n = self.first, self.hello.num_envs
        if n == 1:
            return f"environment {first}"
        return f"environments {first} to {first + n - 1}" if self._busy is None else f"environment {first + self._busy}"

    def _last_words(self) -> str:
        words = self.process.tail() if self.process else ""
        return f"; stderr:\n{words}" if words else ""


def connect(address: str, token: str, autoreset: str, options: Options, process: Process | None = None) -> Connection:
    """A conversation with the server at unix:PATH or 127.0.0.1:PORT."""
    unix = address.startswith("unix:")
    host, _, port = address.rpartition(":")
    if not unix and (host != "127.0.0.1" or not port.isdigit()):
        raise ProtocolError(f"{address!r} is neither unix:PATH nor 127.0.0.1:PORT")
    sock = socket.socket(socket.AF_UNIX if unix else socket.AF_INET)
    connection = Connection(Channel(sock, options.timeout), options.timeout, process)
    with connection._errors():
        sock.settimeout(options.timeout)
        sock.connect(address.removeprefix("unix:") if unix else (host, int(port)))
        if not unix:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.greet(token, autoreset)
    return connection


def start(processes: list[Process], autoreset: str) -> list[Connection]:
    """A conversation with each server that was started; when one fails, all end."""
    connections: list[Connection] = []
    try:
        for process in processes:
            connection = connect(*process.announcement(), autoreset, process.options, process)
            process.connected()
            connection.first = sum(c.hello.num_envs for c in connections)
            connections.append(connection)
    except BaseException:
        for process in processes:
            process.stop(0.0)
        raise
    return connections


def error_of(frame: Frame, first: int) -> BridgeError:
    """The error that an error frame stands for."""
    code, message, text, env = (frame.data.get(name) for name in ("code", "message", "traceback", "env"))
    if not all(isinstance(word, str) for word in (code, message, text)):
        raise Violation("an error frame without code, message and traceback")
    if code == "environment":
        if not isinstance(env, int) or not whole(env, 0, server.MAX_ENVS - 1):
            raise Violation("an error frame of an environment without its index")
        return HostedEnvironmentError(first + env, f"environment {first + env} raised: {message}", str(text))
    return (VersionError if code == "version" else ProtocolError)(f"the server refused: {message} ({code})")


def parse_hello(frame: Frame) -> Hello:
    data = frame.data
    names = {"version", "num_envs", "observation", "action", "max_steps", "versions"}
    if set(data) != names or not whole(data["num_envs"], 1, server.MAX_ENVS):
        raise Violation(f"a hello must have {', '.join(sorted(names))} and at least one environment")
    steps, versions = data["max_steps"], data["versions"]
    if not (steps is None or whole(steps, 1, 1 << 53)) or not isinstance(versions, dict):
        raise Violation("max_steps must be null or positive, versions an object")
    if not all(isinstance(v, str) for v in versions.values()):
        raise Violation("versions must be text")
    spaces = {
        "obs": parse_space(data["observation"], "obs", frame),
        "action": parse_space(data["action"], "action", frame),
    }
    ends = {f"{k}_{end}": (space.dtype, space.shape) for k, space in spaces.items() for end in ("low", "high")}
    server.expect_arrays(frame, ends)
    if spaces["obs"].discrete:
        raise Violation("observations must be a box")
    return Hello(data["num_envs"], spaces["obs"], spaces["action"], steps, versions)


def parse_space(said: Any, name: str, frame: Frame) -> Space:
    if not isinstance(said, dict) or set(said) != {"type", "dtype", "shape"} or said["type"] not in ("box", "discrete"):
        raise Violation(f"the space of {name} must have a type (box or discrete), dtype and shape")
    _, dtype, shape = server.check_entry([name, said["dtype"], said["shape"]], ())
    low, high = frame.arrays.get(f"{name}_low"), frame.arrays.get(f"{name}_high")
    if low is None or high is None or low.shape != shape or high.shape != shape or not np.all(low <= high):
        raise Violation(f"the space of {name} needs a lower and an upper end")
    discrete = said["type"] == "discrete"
    if discrete and (dtype, shape) != ("<i8", ()):
        raise Violation("a discrete space must be one <i8")
    return Space(dtype, shape, low, high, discrete)


def parse_names(data: dict[str, Any]) -> list[str]:
    names = data.get("info")
    if set(data) != {"info"} or not isinstance(names, list) or len(names) > MAX_INFO:
        raise Violation(f"a step must list the names of at most {MAX_INFO} info entries")
    if not all(isinstance(name, str) and 0 < len(name) <= MAX_NAME for name in names) or len(set(names)) < len(names):
        raise Violation("names of info entries must be short texts, each once")
    return names
