"""Hosts environments in this Python for a learner in another one: a single file that needs nothing but NumPy.

    python3.10 server.py --env safety_gymnasium:SafetyPointGoal1-v0 --envs 8

It announces one line of JSON on stdout (version, address, token), serves one client and exits when that client leaves.
Whatever the environments print goes to stderr. docs/bridge.md describes the protocol; the client speaks it with the same
`encode`, `decode` and `Channel`. Nothing received is ever evaluated or unpickled. Runs on Python 3.8 and newer.
"""

# The syntax of Python 3.8:
# ruff: noqa: UP035, UP041, B905

from __future__ import annotations

import argparse
import contextlib
import hmac
import importlib
import inspect
import json
import os
import platform
import secrets
import select
import socket
import struct
import sys
import threading
import time
import traceback
from typing import Any, Callable, NamedTuple

import numpy as np

VERSION = 1
MAGIC = b"TQPB"
PREFIX = struct.Struct("<4sII")  # magic, bytes of the header, bytes of the payload
KINDS = {"hello", "reset", "step", "render", "close", "busy", "error"}
AUTORESET = ("same_step", "disabled")
DTYPES = {"|b1": 1, "|u1": 1, "|i1": 1, "<i2": 2, "<i4": 4, "<i8": 8, "<f4": 4, "<f8": 8}
MAX_HEADER = 1 << 20  # bytes
MAX_PAYLOAD = 1 << 28  # bytes
MAX_HELLO = 1 << 12  # bytes of header before the token was shown
MAX_ARRAYS, MAX_DIMS = 16, 8
MAX_ENVS = 4096
MAX_INFO = 64  # names of numeric `info` entries
MAX_NAME = 128  # characters of such a name
MAX_TEXT = 1 << 14  # characters of a traceback
HELLO_TIMEOUT = 10.0  # s
SEND_TIMEOUT = 60.0  # s a client may take to read a reply
BUSY_AFTER = 1.0  # s of one command, after which each environment is announced before its turn
GRACE = 5.0  # s between the loss of the client and the end of a server that is stuck in an environment


class Violation(Exception):
    """The other side broke the protocol."""


class Torn(Violation):
    """The connection ended in the middle of a frame."""


class Hangup(Exception):
    """The other side closed the connection between two frames."""


class Frame(NamedTuple):
    kind: str
    id: int  # a request counts up from 0; its reply has the same number
    data: dict[str, Any] = {}  # noqa: RUF012
    arrays: dict[str, np.ndarray] = {}  # noqa: RUF012


def whole(value: Any, low: int, high: int) -> bool:
    """An integer of JSON (not a bool) in [low, high]."""
    return type(value) is int and low <= value <= high


def encode(frame: Frame) -> bytes:
    """Prefix, header as JSON, arrays as they lie in memory: C order, little-endian."""
    arrays = {k: np.ascontiguousarray(v, v.dtype.newbyteorder("<")).reshape(v.shape) for k, v in frame.arrays.items()}
    listed = [[name, array.dtype.str, list(array.shape)] for name, array in arrays.items()]
    fields = {"kind": frame.kind, "id": frame.id, "data": frame.data, "arrays": listed}
    header = json.dumps(fields, allow_nan=False, separators=(",", ":")).encode()
    payload = b"".join(array.tobytes() for array in arrays.values())
    if len(header) > MAX_HEADER or len(payload) > MAX_PAYLOAD:
        raise Violation(f"a {frame.kind} frame of {len(header)} + {len(payload)} bytes is too large")
    return PREFIX.pack(MAGIC, len(header), len(payload)) + header + payload


def decode_prefix(prefix: bytes, max_header: int = MAX_HEADER, max_payload: int = MAX_PAYLOAD) -> tuple[int, int]:
    """Sizes of header and payload, refused before a byte of them is read."""
    magic, header, payload = PREFIX.unpack(prefix)
    if magic != MAGIC:
        raise Violation(f"a frame begins with {magic!r}, not with {MAGIC!r}")
    if header > max_header or payload > max_payload:
        raise Violation(f"a frame of {header} + {payload} bytes; at most {max_header} + {max_payload} are expected")
    return header, payload


def reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def decode(header: bytes | bytearray, payload: bytes | bytearray) -> Frame:
    try:
        fields = json.loads(bytes(header).decode("utf-8"), parse_constant=reject_constant)
    except (ValueError, RecursionError) as error:
        raise Violation(f"a header that is not JSON: {error}") from None
    if not isinstance(fields, dict) or set(fields) != {"kind", "id", "data", "arrays"}:
        raise Violation("a header must have exactly the fields kind, id, data, arrays")
    kind, number, data, listed = fields["kind"], fields["id"], fields["data"], fields["arrays"]
    if not isinstance(kind, str) or kind not in KINDS or not whole(number, 0, 1 << 53) or not isinstance(data, dict):
        raise Violation("a header whose kind, id or data is not valid")
    if not isinstance(listed, list) or len(listed) > MAX_ARRAYS:
        raise Violation(f"arrays must be a list of at most {MAX_ARRAYS}")
    arrays, offset = {}, 0
    for entry in listed:
        name, dtype, shape = check_entry(entry, arrays)
        count = int(np.prod(shape, dtype=object))  # Python integers: a shape cannot overflow
        end = offset + count * DTYPES[dtype]
        if end > len(payload):
            raise Violation(f"array {name!r} of {dtype}{shape} ends beyond the payload of {len(payload)} bytes")
        arrays[name] = np.frombuffer(payload, dtype, count, offset).reshape(shape) if count else np.empty(shape, dtype)
        if dtype == "|b1" and count and arrays[name].view(np.uint8).max() > 1:
            raise Violation(f"array {name!r} has a truth value that is neither 0 nor 1")
        offset = end
    if offset != len(payload):
        raise Violation(f"a payload of {len(payload)} bytes for arrays of {offset}")
    return Frame(kind, number, data, arrays)


def check_entry(entry: Any, taken: Any) -> tuple[str, str, tuple[int, ...]]:
    """Name, dtype and shape of an array in a header."""
    if not isinstance(entry, list) or len(entry) != 3:
        raise Violation("an array must be [name, dtype, shape]")
    name, dtype, shape = entry
    if not isinstance(name, str) or name in taken or not isinstance(dtype, str) or dtype not in DTYPES:
        raise Violation(f"array {str(name)[:MAX_NAME]!r}: a new name and a dtype of {', '.join(DTYPES)} are needed")
    if not isinstance(shape, list) or len(shape) > MAX_DIMS or not all(whole(n, 0, MAX_PAYLOAD) for n in shape):
        raise Violation(f"array {name[:MAX_NAME]!r} has no valid shape")
    return name, dtype, tuple(shape)


def expect_arrays(frame: Frame, expected: dict[str, tuple[str, tuple[int, ...]]]) -> None:
    """Exactly these arrays, with these dtypes and shapes."""
    found = {name: (array.dtype.str, array.shape) for name, array in frame.arrays.items()}
    if found != expected:
        raise Violation(f"a {frame.kind} frame with arrays {found} instead of {expected}")


class Channel:
    """A socket that carries frames. A frame that has begun must be complete within `frame_timeout` seconds."""

    def __init__(self, sock: socket.socket, frame_timeout: float = 30.0):
        self.sock, self.frame_timeout = sock, frame_timeout

    def send(self, frame: Frame, timeout: float = SEND_TIMEOUT) -> None:
        self.sock.settimeout(timeout)
        try:
            self.sock.sendall(encode(frame))
        except socket.timeout:
            raise TimeoutError(f"the other side did not read a {frame.kind} frame in {timeout:g} s") from None

    def receive(self, wait: float | None = None, max_header: int = MAX_HEADER, max_payload: int = MAX_PAYLOAD) -> Frame:
        """The next frame, whose first byte must come within `wait` seconds (None: any time)."""
        first = self._read(1, None if wait is None else time.monotonic() + wait, "nothing came")
        if not first:
            raise Hangup("the other side closed the connection")
        deadline = time.monotonic() + self.frame_timeout
        rest = self._rest(PREFIX.size - 1, deadline)
        header, payload = decode_prefix(bytes(first + rest), max_header, max_payload)
        return decode(self._rest(header, deadline), self._rest(payload, deadline))

    def _rest(self, size: int, deadline: float) -> bytearray:
        found = self._read(size, deadline, "a frame stayed incomplete")
        if len(found) < size:
            raise Torn("the connection ended in the middle of a frame")
        return found

    def _read(self, size: int, deadline: float | None, trouble: str) -> bytearray:
        """`size` bytes, or fewer where the connection ends before."""
        buffer = bytearray(size)
        view, got = memoryview(buffer), 0
        while got < size:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(f"{trouble} in time")
            self.sock.settimeout(left)
            try:
                count = self.sock.recv_into(view[got:])
            except socket.timeout:
                raise TimeoutError(f"{trouble} in time") from None
            except ConnectionError:
                count = 0
            if count == 0:
                return buffer[:got]
            got += count
        return buffer


class Space(NamedTuple):
    """A space as the protocol knows it: a box, or for actions also one of n integers."""

    dtype: str
    shape: tuple[int, ...]
    low: np.ndarray
    high: np.ndarray
    discrete: bool = False

    def describe(self) -> dict[str, Any]:
        return {"type": "discrete" if self.discrete else "box", "dtype": self.dtype, "shape": list(self.shape)}


def kind_of(space: Any) -> str:
    """Box, Discrete, …: by name, so that gym, gymnasium and safety_gymnasium all do."""
    known = {"Box", "Discrete", "MultiDiscrete", "MultiBinary", "Dict", "Tuple"}
    for base in type(space).__mro__:
        if base.__name__ in known:
            return base.__name__
    raise TypeError(f"the space {space} is none of {', '.join(sorted(known))}")


def box_dtype(dtype: Any) -> str:
    little = np.dtype(dtype).newbyteorder("<").str
    return little if little in DTYPES else "<f4"


def parts_of(space: Any) -> list[tuple[Any, Any]]:
    """Keys and spaces inside a Dict or Tuple, in the space's own order."""
    return list(space.spaces.items() if kind_of(space) == "Dict" else enumerate(space.spaces))


def flat_bounds(space: Any) -> tuple[np.ndarray, np.ndarray]:
    kind = kind_of(space)
    if kind == "Box":
        return np.ravel(space.low).astype("<f4"), np.ravel(space.high).astype("<f4")
    if kind in ("Dict", "Tuple"):
        both = [flat_bounds(part) for _, part in parts_of(space)]
        return np.concatenate([low for low, _ in both]), np.concatenate([high for _, high in both])
    size = int(np.prod(space.shape)) if kind == "MultiBinary" else int(np.sum(options(space)))
    return np.zeros(size, "<f4"), np.ones(size, "<f4")


def options(space: Any) -> list[int]:
    """How many values each entry of a Discrete or MultiDiscrete has."""
    return [int(n) for n in np.ravel(space.n if kind_of(space) == "Discrete" else space.nvec)]


def flatten(space: Any, value: Any) -> np.ndarray:
    """One float32 vector: boxes in C order, a choice as one-hot, the parts of a Dict or Tuple one after another."""
    kind = kind_of(space)
    if kind in ("Dict", "Tuple"):
        return np.concatenate([flatten(part, value[key]) for key, part in parts_of(space)])
    if kind in ("Box", "MultiBinary"):
        return fitted(value, "<f4", tuple(space.shape)).ravel()
    chosen = np.ravel(value).astype(int) - np.ravel(getattr(space, "start", 0)).astype(int)
    return np.concatenate([np.eye(n, dtype="<f4")[i] for n, i in zip(options(space), chosen)])


def fitted(value: Any, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    array = np.asarray(value, dtype=dtype)
    if array.shape != shape:
        raise ValueError(f"an observation of shape {array.shape} instead of {shape}")
    return array


def observation_space(space: Any) -> Space:
    if kind_of(space) == "Box":
        dtype = box_dtype(space.dtype)
        return Space(dtype, tuple(space.shape), space.low.astype(dtype), space.high.astype(dtype))
    low, high = flat_bounds(space)
    return Space("<f4", low.shape, low, high)


def action_space(space: Any) -> Space:
    kind = kind_of(space)
    if kind == "Box":
        dtype = box_dtype(space.dtype)
        return Space(dtype, tuple(space.shape), space.low.astype(dtype), space.high.astype(dtype))
    if kind == "Discrete":
        low = np.asarray(int(getattr(space, "start", 0)), "<i8")
        return Space("<i8", (), low, low + int(space.n) - 1, discrete=True)
    raise TypeError(f"actions of {space}: only Box and Discrete are supported")


class Outcome(NamedTuple):
    obs: np.ndarray
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, float]


class Slot:
    """One environment, whichever of the interfaces of gym it has."""

    def __init__(self, env: Any, prefixes: tuple[str, ...]):
        self.env, self.prefixes = env, prefixes
        self.observation, self.action = observation_space(env.observation_space), action_space(env.action_space)
        self.boxed = kind_of(env.observation_space) == "Box"
        parameters = inspect.signature(getattr(env, "unwrapped", env).reset).parameters.values()
        self.reset_takes_seed = any(p.name == "seed" or p.kind is p.VAR_KEYWORD for p in parameters)
        self.over = True  # until the first reset

    def reset(self, seed: int | None) -> np.ndarray:
        if seed is None:
            found = self.env.reset()
        elif self.reset_takes_seed:
            found = self.env.reset(seed=seed)
        else:
            self.env.seed(seed)
            found = self.env.reset()
        if isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], dict):
            found = found[0]
        self.over = False
        return self._observed(found)

    def step(self, action: np.ndarray) -> Outcome:
        result = self.env.step(int(action) if self.action.discrete else action)
        if not isinstance(result, tuple) or len(result) not in (4, 5, 6):
            raise TypeError("step() must give 4, 5 or 6 values")
        info = dict(result[-1] or {})
        if len(result) == 6:  # Safety-Gymnasium: observation, reward, cost, terminated, truncated, info
            obs, reward, info["cost"], terminated, truncated, _ = result
        elif len(result) == 5:
            obs, reward, terminated, truncated, _ = result
        else:  # gym before 0.26: observation, reward, done, info
            obs, reward, done, _ = result
            truncated = bool(info.get("TimeLimit.truncated", False))
            terminated = done and not truncated
        self.over = bool(terminated) or bool(truncated)
        return Outcome(self._observed(obs), float(reward), bool(terminated), bool(truncated), self._numbers(info))

    def _observed(self, obs: Any) -> np.ndarray:
        space = self.observation
        return fitted(obs if self.boxed else flatten(self.env.observation_space, obs), space.dtype, space.shape)

    def _numbers(self, info: dict[Any, Any]) -> dict[str, float]:
        found = {}
        for name, value in info.items():
            if isinstance(name, str) and name.startswith(self.prefixes) and len(name) <= MAX_NAME:
                array = np.asarray(value)
                if array.size == 1 and array.dtype.kind in "biuf":
                    found[name] = float(array.reshape(()))
        return found


class EnvironmentFault(Exception):
    """An exception inside environment number `index`."""

    def __init__(self, index: int, error: BaseException):
        super().__init__(f"environment {index}: {type(error).__name__}: {error}")
        self.index, self.text = index, traceback.format_exc()


class Host:
    """The environments of this process, as commands on whole batches [n, …]."""

    def __init__(self, slots: list[Slot], max_steps: int | None, versions: dict[str, str]):
        self.slots, self.max_steps, self.versions = slots, max_steps, versions
        self.observation, self.action = slots[0].observation, slots[0].action
        self.autoreset = AUTORESET[0]
        self.actions = {"action": (self.action.dtype, (len(slots), *self.action.shape))}
        self.begin: Callable[[int], None] = lambda index: None  # called before each call of an environment

    @property
    def max_request(self) -> int:
        """Bytes of the largest payload that a client may send."""
        dtype, shape = self.actions["action"]
        return max(DTYPES[dtype] * int(np.prod(shape)), len(self.slots))

    def hello(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        data = {
            "version": VERSION,
            "num_envs": len(self.slots),
            "observation": self.observation.describe(),
            "action": self.action.describe(),
            "max_steps": self.max_steps,
            "versions": self.versions,
        }
        spaces = {"obs": self.observation, "action": self.action}
        return data, {f"{k}_{end}": getattr(space, end) for k, space in spaces.items() for end in ("low", "high")}

    def reset(self, frame: Frame) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """New episodes of the environments under the mask; `obs` has zeros for the others."""
        n = len(self.slots)
        expect_arrays(frame, {"mask": ("|b1", (n,))})
        seeds = frame.data.get("seeds")
        if set(frame.data) != {"seeds"} or not isinstance(seeds, list) or len(seeds) != n:
            raise Violation(f"reset needs a list of {n} seeds")
        if not all(seed is None or whole(seed, 0, (1 << 64) - 1) for seed in seeds):
            raise Violation("a seed must be null or an integer from 0 to 2^64 - 1")
        obs = np.zeros((n, *self.observation.shape), self.observation.dtype)
        for i in np.flatnonzero(frame.arrays["mask"]).tolist():
            obs[i] = self._guarded(i, "reset", seeds[i])
        return {}, {"obs": obs}

    def step(self, frame: Frame) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        expect_arrays(frame, self.actions)
        actions = frame.arrays["action"]
        if frame.data or not np.all(np.isfinite(actions)):
            raise Violation("step takes finite actions and nothing else")
        if self.action.discrete and np.any((actions < self.action.low) | (actions > self.action.high)):
            raise Violation(f"an action outside {self.action.low} … {self.action.high}")
        over = [i for i, slot in enumerate(self.slots) if slot.over]
        if over:
            raise Violation(f"step before a reset of environments {over}")
        results = [self._guarded(i, "step", np.array(action)) for i, action in enumerate(actions)]
        obs, final = np.stack([r.obs for r in results]), []
        for i, slot in enumerate(self.slots):
            if slot.over and self.autoreset == "same_step":
                final.append(obs[i].copy())
                obs[i] = self._guarded(i, "reset", None)
        names = sorted({name for r in results for name in r.info})[:MAX_INFO]
        count = len(names), len(results)
        arrays = {
            "obs": obs,
            "reward": np.array([r.reward for r in results], "<f8"),
            "terminated": np.array([r.terminated for r in results], "|b1"),
            "truncated": np.array([r.truncated for r in results], "|b1"),
            "info": np.array([[r.info.get(k, 0.0) for r in results] for k in names], "<f8").reshape(count),
            "has_info": np.array([[k in r.info for r in results] for k in names], "|b1").reshape(count),
            "final_obs": np.array(final, self.observation.dtype).reshape(len(final), *self.observation.shape),
        }
        return {"info": names}, arrays

    def render(self, frame: Frame) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        expect_arrays(frame, {})
        index = frame.data.get("env")
        if set(frame.data) != {"env"} or not whole(index, 0, len(self.slots) - 1):
            raise Violation("render needs the index of an environment")
        picture = self._guarded(index, "render")
        return {}, {"picture": picture}

    def _guarded(self, index: Any, command: str, *arguments: Any) -> Any:
        self.begin(index)
        try:
            if command == "render":
                return np.asarray(self.slots[index].env.render(), "|u1")
            return getattr(self.slots[index], command)(*arguments)
        except Exception as error:
            for slot in self.slots:  # some have moved on and some have not: all begin anew
                slot.over = True
            raise EnvironmentFault(int(index), error) from error

    def close(self) -> None:
        for slot in self.slots:
            with contextlib.suppress(Exception):
                slot.env.close()


def refuse(channel: Channel, number: int, code: str, error: BaseException, **more: Any) -> None:
    """Says what was wrong, where the other side still listens."""
    text = more.pop("traceback", "")[-MAX_TEXT:]
    data = {"code": code, "message": str(error)[:MAX_TEXT], "traceback": text, "env": None, **more}
    with contextlib.suppress(OSError, Violation):
        channel.send(Frame("error", number, data), timeout=HELLO_TIMEOUT)


def greet(channel: Channel, host: Host, token: str) -> bool:
    """Whether this is our client: its version, then its token; nothing larger than a hello is read before."""
    try:
        frame = channel.receive(HELLO_TIMEOUT, MAX_HELLO, 0)
        data = frame.data
        if frame.kind != "hello" or frame.id != 0 or frame.arrays:
            raise Violation("the first frame must be a hello with id 0")
        if data.get("version") != VERSION:
            refuse(channel, 0, "version", Violation(f"this server speaks version {VERSION}"))
            return False
        shown = data.get("token")
        if not isinstance(shown, str) or not hmac.compare_digest(shown.encode(), token.encode()):
            refuse(channel, 0, "token", Violation("this is not the token that the server announced"))
            return False
        if set(data) != {"version", "token", "autoreset"} or data["autoreset"] not in AUTORESET:
            raise Violation(f"a hello has version, token and autoreset, one of {', '.join(AUTORESET)}")
    except Hangup:
        return False
    except (Violation, OSError, UnicodeError) as error:
        refuse(channel, 0, "protocol", error)
        return False
    host.autoreset = data["autoreset"]
    try:
        channel.send(Frame("hello", 0, *host.hello()))
    except OSError:
        return False
    return True


def talk(channel: Channel, host: Host) -> int:
    """Answers commands until the client closes or breaks the protocol; the exit status."""
    number, began = 0, 0.0

    def say_busy(index: int) -> None:
        if time.monotonic() - began >= BUSY_AFTER:
            channel.send(Frame("busy", number, {"env": index}))

    host.begin = say_busy
    commands = {"reset": host.reset, "step": host.step, "render": host.render}
    while True:
        number += 1
        try:
            frame = channel.receive(None, MAX_HEADER, host.max_request)
            began = time.monotonic()
            if frame.id != number:
                raise Violation(f"request {frame.id} came instead of {number}")
            if frame.kind == "close":
                host.close()
                channel.send(Frame("close", number))
                return 0
            if frame.kind not in commands:
                raise Violation(f"{frame.kind} is not a command")
            channel.send(Frame(frame.kind, number, *commands[frame.kind](frame)))
        except EnvironmentFault as fault:
            refuse(channel, number, "environment", fault, traceback=fault.text, env=fault.index)
        except Violation as error:
            refuse(channel, number, "protocol", error)
            return 2
        except (Hangup, OSError):  # the client is gone, or reads no more
            return 0


def leave_with(sock: socket.socket) -> None:
    """Ends this process soon after the client has gone, even from inside an environment that hangs."""

    def watch() -> None:
        poll = select.poll()
        poll.register(sock, getattr(select, "POLLRDHUP", select.POLLHUP))
        poll.poll()
        time.sleep(GRACE)
        os._exit(3)

    if hasattr(select, "poll"):
        threading.Thread(target=watch, daemon=True).start()


def listen(address: str) -> tuple[socket.socket, str]:
    """A listening socket at unix:PATH or 127.0.0.1:PORT, and the address where it can be reached."""
    if address.startswith("unix:"):
        sock = socket.socket(socket.AF_UNIX)
        before = os.umask(0o177)  # a socket for this user alone
        try:
            sock.bind(address[len("unix:") :])
        finally:
            os.umask(before)
    else:
        host, _, port = address.rpartition(":")
        if host != "127.0.0.1" or not port.isdigit():
            raise SystemExit(f"--listen {address}: unix:PATH or 127.0.0.1:PORT")
        sock = socket.socket(socket.AF_INET)
        sock.bind((host, int(port)))
        address = f"127.0.0.1:{sock.getsockname()[1]}"
    sock.listen(8)
    return sock, address


def find(name: str, arguments: dict[str, Any]) -> Any:
    """The environment `module:factory`, or `module:ID` by the module's `make`."""
    module_name, _, rest = name.partition(":")
    if not module_name or not rest:
        raise SystemExit(f"--env {name}: write module:factory or module:ID")
    module = importlib.import_module(module_name)
    factory = getattr(module, rest, None)
    if callable(factory):
        return factory(**arguments)
    if not callable(getattr(module, "make", None)):
        raise SystemExit(f"--env {name}: {module_name} has neither {rest} nor make()")
    return module.make(rest, **arguments)


def version_of(module: str) -> dict[str, str]:
    found = getattr(sys.modules.get(module), "__version__", None)
    return {module: found[:MAX_NAME]} if isinstance(found, str) else {}


def build(options: argparse.Namespace) -> Host:
    arguments = json.loads(options.kwargs)
    slots = [Slot(find(options.env, arguments), tuple(options.info)) for _ in range(options.envs)]
    limit = getattr(getattr(slots[0].env, "spec", None), "max_episode_steps", None)
    module = options.env.partition(":")[0]
    versions = {"python": platform.python_version(), "numpy": np.__version__}
    for name in (module, "gymnasium", "gym", "mujoco"):
        versions.update(version_of(name))
    return Host(slots, int(limit) if limit else None, versions)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Hosts environments for a learner in another Python (docs/bridge.md).")
    parser.add_argument("--env", required=True, help="module:factory, or module:ID where the module has make()")
    parser.add_argument("--envs", type=int, default=1, help="how many copies this process steps, one after another")
    parser.add_argument("--kwargs", default="{}", help="JSON object of arguments of the factory")
    parser.add_argument("--info", action="append", help="prefix of numeric info entries to pass on (default: cost)")
    parser.add_argument("--listen", default="127.0.0.1:0", help="unix:PATH or 127.0.0.1:PORT (port 0: any)")
    parser.add_argument("--connect-timeout", type=float, default=120.0, help="seconds to wait for the client")
    parser.add_argument("--frame-timeout", type=float, default=30.0, help="seconds a frame may take to arrive")
    options = parser.parse_args()
    options.info = options.info or ["cost"]
    if not 1 <= options.envs <= MAX_ENVS:
        parser.error(f"--envs {options.envs}: from 1 to {MAX_ENVS}")
    return options


def admit(listener: socket.socket, host: Host, token: str, options: argparse.Namespace) -> Channel | None:
    """The first client that shows the token; strangers are turned away."""
    deadline = time.monotonic() + options.connect_timeout
    while True:
        listener.settimeout(max(deadline - time.monotonic(), 0.001))
        try:
            sock, _ = listener.accept()
        except socket.timeout:
            return None
        channel = Channel(sock, min(options.frame_timeout, HELLO_TIMEOUT))
        if greet(channel, host, token):
            channel.frame_timeout = options.frame_timeout
            return channel
        sock.close()


def main() -> int:
    options = arguments()
    out = os.fdopen(os.dup(1), "w")  # stdout is for the announcement; what environments print goes to stderr
    os.dup2(2, 1)
    beside = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [os.getcwd(), *(p for p in sys.path if p != beside)]  # the working folder, not the one of this file
    host = build(options)
    listener, address = listen(options.listen)
    token = secrets.token_hex(16)
    with out:
        out.write(json.dumps({"version": VERSION, "address": address, "token": token}) + "\n")
    channel = admit(listener, host, token, options)
    listener.close()
    if address.startswith("unix:"):
        with contextlib.suppress(OSError):
            os.unlink(address[len("unix:") :])
    if channel is None:
        return 1
    leave_with(channel.sock)
    if channel.sock.family == socket.AF_INET:
        channel.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    status = talk(channel, host)
    channel.sock.close()
    return status


if __name__ == "__main__":
    sys.exit(main())
