"""Hosts environments in this Python for a learner in another one: a single file that needs nothing but NumPy.

The learner starts it as a child process, asks on its stdin and hears answers on its stdout; what the environments print
goes to stderr. docs/bridge.md describes the protocol; the learner speaks it with the same `encode`, `decode` and
`Channel`. Nothing received is ever evaluated or unpickled. Runs on Python 3.8 and newer.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import math
import os
import platform
import select
import struct
import sys
import threading
import time
import traceback
from typing import Any, NamedTuple

import numpy as np

VERSION = 2
MAGIC = b"TQPB"
PREFIX = struct.Struct("<4sII")  # magic, bytes of the header, bytes of the payload
KINDS = {"hello", "reset", "step", "render", "busy", "error"}
DTYPES = {"|b1", "|u1", "|i1", "<i2", "<i4", "<i8", "<f4", "<f8"}
MAX_HEADER, MAX_PAYLOAD, MAX_DIMS = 1 << 24, 1 << 28, 8  # bytes, bytes, dimensions of an array
MAX_TEXT = 1 << 14  # characters of a traceback
TIMEOUT = 60.0  # s that the learner may take to write or to read a frame
BUSY_AFTER = 1.0  # s of one command, after which each environment is announced before its turn
GRACE = 5.0  # s between the loss of the learner and the end of a server that is stuck in an environment


class Violation(Exception):
    """The other side broke the protocol."""


class Frame(NamedTuple):
    kind: str
    id: int  # 0 for the hello; requests count up from 1, and an answer has the number of its request
    data: dict[str, Any] = {}  # noqa: RUF012
    arrays: dict[str, np.ndarray] = {}  # noqa: RUF012


def whole(value: Any, low: int, high: int) -> bool:
    """An integer of JSON (not a bool) in [low, high]."""
    return type(value) is int and low <= value <= high


def encode(frame: Frame) -> bytes:
    """Prefix, header as JSON, arrays in C order, little-endian."""
    arrays = {name: np.asarray(array, array.dtype.newbyteorder("<")) for name, array in frame.arrays.items()}
    listed = {name: [array.dtype.str, array.shape] for name, array in arrays.items()}
    header = json.dumps({"kind": frame.kind, "id": frame.id, "data": frame.data, "arrays": listed}).encode()
    payload = b"".join(array.tobytes() for array in arrays.values())
    if len(header) > MAX_HEADER or len(payload) > MAX_PAYLOAD:
        raise Violation(f"a {frame.kind} frame of {len(header)} + {len(payload)} bytes is too large")
    return PREFIX.pack(MAGIC, len(header), len(payload)) + header + payload


def decode_prefix(prefix: bytes | bytearray) -> tuple[int, int]:
    """Sizes of header and payload, refused before a byte of them is read."""
    magic, header, payload = PREFIX.unpack(prefix)
    if magic != MAGIC:
        raise Violation(f"a frame begins with {bytes(prefix)!r}, not with {MAGIC!r}")
    if header > MAX_HEADER or payload > MAX_PAYLOAD:
        raise Violation(f"a frame of {header} + {payload} bytes; at most {MAX_HEADER} + {MAX_PAYLOAD} are expected")
    return header, payload


def decode(header: bytes | memoryview, payload: bytes | memoryview) -> Frame:
    try:
        fields = json.loads(str(header, "utf-8"))
        kind, number, data, listed = (fields.pop(name) for name in ("kind", "id", "data", "arrays"))
        if fields or kind not in KINDS or not whole(number, 0, 1 << 53) or not isinstance(data, dict):
            raise ValueError("its fields must be kind, id, data and arrays, and valid")
        return Frame(kind, number, data, decode_arrays(listed, payload))
    except Exception as error:
        raise Violation(f"a frame that cannot be read: {type(error).__name__}: {error}") from None


def decode_arrays(listed: dict[str, Any], payload: bytes | memoryview) -> dict[str, np.ndarray]:
    arrays, offset = {}, 0
    for name, (dtype, shape) in listed.items():
        if dtype not in DTYPES or len(shape) > MAX_DIMS or not all(whole(n, 0, MAX_PAYLOAD) for n in shape):
            raise ValueError(f"array {name!r} must be [dtype, shape], with a dtype of {', '.join(sorted(DTYPES))}")
        count = math.prod(shape)
        array = np.frombuffer(payload, dtype, count, offset) if count else np.empty(0, dtype)
        if dtype == "|b1" and np.any(array.view("|u1") > 1):
            raise ValueError(f"array {name!r} has a truth value that is neither 0 nor 1")
        arrays[name], offset = array.reshape(shape), offset + array.nbytes
    if offset != len(payload):
        raise ValueError(f"a payload of {len(payload)} bytes for arrays of {offset}")
    return arrays


def expect_arrays(frame: Frame, **expected: tuple[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """The arrays of a frame, which must be exactly these, with these dtypes and shapes."""
    given = {name: (array.dtype.str, array.shape) for name, array in frame.arrays.items()}
    if given != expected:
        raise Violation(f"a {frame.kind} frame with arrays {given} instead of {expected}")
    return frame.arrays


class Channel:
    """A pipe to read frames from and one to write them to; a frame that has begun must be over in `timeout` seconds."""

    def __init__(self, source: int, sink: int, timeout: float = TIMEOUT):
        self.source, self.sink, self.timeout = source, sink, timeout
        os.set_blocking(sink, False)

    def send(self, frame: Frame) -> None:
        left, deadline = memoryview(encode(frame)), time.monotonic() + self.timeout
        while left:
            self._wait(self.sink, select.POLLOUT, deadline, f"a {frame.kind} frame was not read")
            left = left[os.write(self.sink, left) :]

    def receive(self, patience: float = math.inf) -> Frame:
        """The next frame, which must begin within `patience` seconds."""
        self._wait(self.source, select.POLLIN, time.monotonic() + patience, "nothing came")
        deadline = time.monotonic() + self.timeout
        header, payload = decode_prefix(self._read(PREFIX.size, deadline))
        rest = memoryview(self._read(header + payload, deadline))
        return decode(rest[:header], rest[header:])

    def _read(self, size: int, deadline: float) -> bytearray:
        buffer = bytearray(size)
        left = memoryview(buffer)
        while left:
            self._wait(self.source, select.POLLIN, deadline, "a frame stayed incomplete")
            count = os.readv(self.source, [left])
            if count == 0:
                raise EOFError("the other side closed its pipe")
            left = left[count:]
        return buffer

    def _wait(self, pipe: int, event: int, deadline: float, trouble: str) -> None:
        poll = select.poll()
        poll.register(pipe, event)
        left = max(deadline - time.monotonic(), 0.0)
        if not poll.poll(None if left == math.inf else 1000 * left):
            raise TimeoutError(f"{trouble} in time")


def kind_of(space: Any) -> str:
    """Box, Discrete, …: by name, so that gym, gymnasium and safety_gymnasium all do."""
    known = {"Box", "Discrete", "MultiDiscrete", "MultiBinary", "Dict", "Tuple"}
    for base in type(space).__mro__:
        if base.__name__ in known:
            return base.__name__
    raise TypeError(f"the space {space} is none of {', '.join(sorted(known))}")


def flatten(space: Any, value: Any) -> np.ndarray:
    """One float32 vector: boxes in C order, a choice as one-hot, the parts of a Dict or Tuple one after another."""
    kind = kind_of(space)
    if kind in ("Dict", "Tuple"):
        parts = space.spaces.items() if kind == "Dict" else enumerate(space.spaces)
        return np.concatenate([flatten(part, value[key]) for key, part in parts])
    if kind in ("Box", "MultiBinary"):
        return np.asarray(value, "<f4").ravel()
    sizes = np.ravel(space.n if kind == "Discrete" else space.nvec)
    chosen = np.ravel(value).astype(int) - np.ravel(getattr(space, "start", 0)).astype(int)
    return np.concatenate([np.eye(n, dtype="<f4")[i] for n, i in zip(sizes, chosen)])  # noqa: B905


def flat_ends(space: Any) -> np.ndarray:
    """Lower and upper ends [2, d] of what `flatten` gives."""
    kind = kind_of(space)
    if kind in ("Dict", "Tuple"):
        parts = space.spaces.values() if kind == "Dict" else space.spaces
        return np.concatenate([flat_ends(part) for part in parts], 1)
    if kind == "Box":
        return np.stack([flatten(space, space.low), flatten(space, space.high)])
    size = math.prod(space.shape) if kind == "MultiBinary" else np.sum(space.n if kind == "Discrete" else space.nvec)
    return np.stack([np.zeros(size, "<f4"), np.ones(size, "<f4")])


def ends(space: Any) -> np.ndarray:
    """Lower and upper ends [2, …] of a Box or Discrete, in float32 where the protocol lacks the dtype."""
    if kind_of(space) == "Discrete":
        low = int(getattr(space, "start", 0))
        return np.array([low, low + int(space.n) - 1], "<i8")
    if kind_of(space) != "Box":
        raise TypeError(f"actions of {space}: only Box and Discrete are supported")
    dtype = np.dtype(space.dtype).newbyteorder("<").str
    return np.stack([space.low, space.high]).astype(dtype if dtype in DTYPES else "<f4")


class Slot:
    """One environment, whichever of the interfaces of gym it has."""

    def __init__(self, env: Any, prefixes: tuple[str, ...]):
        self.env, self.prefixes = env, prefixes
        self.boxed, self.discrete = kind_of(env.observation_space) == "Box", kind_of(env.action_space) == "Discrete"
        self.obs_ends = ends(env.observation_space) if self.boxed else flat_ends(env.observation_space)
        self.action_ends = ends(env.action_space)
        parameters = inspect.signature(getattr(env, "unwrapped", env).reset).parameters.values()
        self.reset_takes_seed = any(p.name == "seed" or p.kind is p.VAR_KEYWORD for p in parameters)

    def reset(self, seed: int | None) -> np.ndarray:
        if seed is not None and not self.reset_takes_seed:
            self.env.seed(seed)
            seed = None
        obs = self.env.reset() if seed is None else self.env.reset(seed=seed)
        if isinstance(obs, tuple) and len(obs) == 2 and isinstance(obs[1], dict):
            obs = obs[0]
        return self._observed(obs)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, float]]:
        result = self.env.step(int(action) if self.discrete else action)
        if not isinstance(result, tuple) or len(result) not in (4, 5, 6):
            raise TypeError("step() must give 4, 5 or 6 values")
        info = dict(result[-1] or {})
        if len(result) == 6:  # Safety-Gymnasium: observation, reward, cost, terminated, truncated, info
            obs, reward, info["cost"], terminated, truncated, _ = result
        elif len(result) == 5:
            obs, reward, terminated, truncated, _ = result
        else:  # gym before 0.26: observation, reward, done, info
            obs, reward, done, _ = result
            truncated = info.get("TimeLimit.truncated", False)
            terminated = done and not truncated
        return self._observed(obs), float(reward), bool(terminated), bool(truncated), self._numbers(info)

    def render(self) -> np.ndarray:
        return np.asarray(self.env.render(), "|u1")

    def _observed(self, obs: Any) -> np.ndarray:
        value = obs if self.boxed else flatten(self.env.observation_space, obs)
        array, shape = np.asarray(value, self.obs_ends.dtype), self.obs_ends.shape[1:]
        if array.shape != shape:
            raise ValueError(f"an observation of shape {array.shape} instead of {shape}")
        return array

    def _numbers(self, info: dict[Any, Any]) -> dict[str, float]:
        """The entries that are numbers and whose names begin as the learner wishes."""
        named = {k: np.asarray(v) for k, v in info.items() if isinstance(k, str) and k.startswith(self.prefixes)}
        return {k: float(v.reshape(())) for k, v in named.items() if v.size == 1 and v.dtype.kind in "biuf"}


class Host:
    """The environments of this process, as commands on whole batches [n, …]."""

    def __init__(self, slots: list[Slot], channel: Channel):
        self.slots, self.channel = slots, channel
        self.number, self.began, self.turn = 0, 0.0, None  # the command, when it began, the environment at work

    def hello(self, *modules: str) -> Frame:
        """What the learner must know, with the versions of the modules."""
        slot = self.slots[0]
        limit = getattr(getattr(slot.env, "spec", None), "max_episode_steps", None) or None
        known = {name: getattr(sys.modules.get(name), "__version__", None) for name in modules}
        versions = {"python": platform.python_version(), **{name: str(said) for name, said in known.items() if said}}
        data = {"version": VERSION, "discrete": slot.discrete, "max_steps": limit and int(limit), "versions": versions}
        return Frame("hello", 0, data, {"obs": slot.obs_ends, "action": slot.action_ends})

    def talk(self) -> int:
        """Answers commands until the learner leaves or breaks the protocol; the exit status."""
        commands = {"reset": self.reset, "step": self.step, "render": self.render}
        while True:
            self.number, self.turn = self.number + 1, None
            try:
                frame = self.channel.receive()
                self.began = time.monotonic()
                if frame.id != self.number or frame.kind not in commands:
                    raise Violation(f"{frame.kind} {frame.id} came as command number {self.number}")
                self.channel.send(commands[frame.kind](frame))
            except Exception as error:
                if self.turn is None and isinstance(
                    error, (EOFError, OSError)
                ):  # the learner is gone, or reads no more
                    return 0
                words = {"message": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
                data = {"env": self.turn, **{name: text[-MAX_TEXT:] for name, text in words.items()}}
                with contextlib.suppress(OSError):
                    self.channel.send(Frame("error", self.number, data))
                if self.turn is None:  # what came was nonsense
                    return 2

    def reset(self, frame: Frame) -> Frame:
        """New episodes of some environments: pairs of an index and a seed."""
        seeds = frame.data["seeds"]
        for i, seed in seeds:
            if not whole(i, 0, len(self.slots) - 1) or not (seed is None or whole(seed, 0, (1 << 64) - 1)):
                raise Violation(f"{i}: {seed} is not an environment and null or an integer from 0 to 2^64 - 1")
        obs = [self._call(i, "reset", seed) for i, seed in seeds]
        return Frame("reset", self.number, arrays={"obs": np.stack(obs)})

    def step(self, frame: Frame) -> Frame:
        ends = self.slots[0].action_ends
        actions = expect_arrays(frame, action=(ends.dtype.str, (len(self.slots), *ends.shape[1:])))["action"]
        if frame.data or not np.all(np.isfinite(actions)):
            raise Violation("step takes finite actions and nothing else")
        results = [self._call(i, "step", np.array(action)) for i, action in enumerate(actions)]
        obs, reward, terminated, truncated, infos = zip(*results)  # noqa: B905
        arrays = {"obs": np.stack(obs), "reward": np.array(reward, "<f8")}
        arrays.update(terminated=np.array(terminated, "|b1"), truncated=np.array(truncated, "|b1"))
        return Frame("step", self.number, {"info": infos}, arrays)

    def render(self, frame: Frame) -> Frame:
        """A picture of the first environment."""
        return Frame("render", self.number, arrays={"picture": self._call(0, "render")})

    def _call(self, index: int, command: str, *arguments: Any) -> Any:
        """Lets one environment work. An exception leaves `turn` at its index."""
        if time.monotonic() - self.began >= BUSY_AFTER:
            self.channel.send(Frame("busy", self.number, {"env": index}))
        self.turn = index
        result = getattr(self.slots[index], command)(*arguments)
        self.turn = None
        return result


def leave_with(pipe: int) -> None:
    """Ends this process soon after the learner has gone, even from inside an environment that hangs."""
    poll = select.poll()
    poll.register(pipe, 0)  # for nothing but the hangup of the last writer
    poll.poll()
    time.sleep(GRACE)
    os._exit(3)


def find(name: str, arguments: dict[str, Any]) -> Any:
    """The environment `module:factory`, or `module:ID` by the module's `make`."""
    module_name, _, rest = name.partition(":")
    module = importlib.import_module(module_name)
    if callable(getattr(module, rest, None)):
        return getattr(module, rest)(**arguments)
    if not callable(getattr(module, "make", None)):
        raise SystemExit(f"{name}: {module_name} has neither {rest} nor make()")
    return module.make(rest, **arguments)


def main(env: str, envs: int, arguments: dict[str, Any], info: list[str]) -> int:
    channel = Channel(os.dup(0), os.dup(1))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # what environments print, even from C, goes to stderr
    threading.Thread(target=leave_with, args=(channel.source,), daemon=True).start()
    beside = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [os.getcwd(), *(p for p in sys.path if p != beside)]  # the working folder, not the one of this file
    host = Host([Slot(find(env, arguments), tuple(info)) for _ in range(envs)], channel)
    channel.send(host.hello("numpy", env.partition(":")[0], "gymnasium", "gym", "mujoco"))
    status = host.talk()
    for slot in host.slots:
        with contextlib.suppress(Exception):
            slot.env.close()
    return status


if __name__ == "__main__":
    sys.exit(main(**json.loads(sys.argv[1])))
