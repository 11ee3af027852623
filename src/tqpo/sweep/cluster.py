"""Callables as tasks, many at a time: on a Ray cluster, or in processes of this machine.

A task is a name, a callable and its arguments. It is started again if its process or machine is lost, so it must go on
where it left off. If it raises, its result is a `TaskError`. Every task has a process of its own: its memory is free
when it ends.
"""

import collections
import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from tqpo.errors import ConfigError, TqpoError

Task = tuple[str, Callable[..., Any], tuple[Any, ...]]
Runner = Callable[..., Iterator[tuple[str, Any]]]  # (tasks, on_wait=…) → (name, result) as they finish
LOOK_EVERY = 1.0  # s between two calls of `on_wait`
FAREWELL = 30.0  # s in which a task that is called off may save what it has
PASSED_ON = ("JAX_", "XLA_", "TQPO_")  # environment variables that tasks get from here


class TaskError(TqpoError):
    """What a task raised, or that it was lost too often."""


class Raised(NamedTuple):
    """A task's exception as text: not every exception can be pickled."""

    summary: str
    details: str


def run_tasks(
    tasks: Sequence[Task],
    cpus: float = 1,
    gpus: float = 0,
    address: str | None = None,
    retries: int = 3,
    on_wait: Callable[[], Any] | None = None,
) -> Iterator[tuple[str, Any]]:
    """Runs tasks on a Ray cluster; yields (name, result) as they finish, with a `TaskError` where a task failed.

    Each task gets so many CPUs and GPUs; 0.25 GPUs put four on one. `address` is that of a cluster, or "auto"; without
    one, Ray is started on this machine. `on_wait` is called every second; if it raises, all tasks are called off.
    """
    ray = import_ray()
    own = not ray.is_initialized()
    if own:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        with keeping_handler(signal.SIGTERM), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"os\.fork")  # JAX's: Ray executes its own programs at once
            ray.init(address=address or "local", log_to_driver=False, logging_level="error")
    pending: dict[Any, str] = {}
    try:
        check_needs(ray, cpus, gpus, firm=address is None)
        needs = {"num_cpus": cpus, "num_gpus": gpus, "max_retries": retries}
        remote, variables = ray.remote(max_calls=1)(call), {"env_vars": environment(gpus)}
        for name, function, arguments in tasks:
            bound = remote.options(name=name, runtime_env=variables, **needs)
            pending[bound.remote(function, arguments)] = name
        while pending:
            ended, _ = ray.wait(list(pending), timeout=LOOK_EVERY)
            for reference in ended:
                yield pending.pop(reference), fetch(ray, reference, retries)
            if on_wait is not None:
                on_wait()
    finally:
        for reference in pending:
            ray.cancel(reference)
        if pending:
            ray.wait(list(pending), num_returns=len(pending), timeout=FAREWELL)
        if own:
            ray.shutdown()


@contextlib.contextmanager
def keeping_handler(number: int) -> Iterator[None]:
    """Ray puts its own in place of whatever listens."""
    before = signal.getsignal(number)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(number, before)


def import_ray() -> Any:
    try:
        import ray
    except ImportError:
        hint = 'pip install ".[ray]" in the clone, or stay on this machine with --local'
        raise ConfigError(f"Ray is not installed: {hint}") from None
    return ray


def check_needs(ray: Any, cpus: float, gpus: float, firm: bool) -> None:
    """Ray would wait for ever for a node that is large enough. A cluster may yet get one, so there it is a warning."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if any(node.get("CPU", 0) >= cpus and node.get("GPU", 0) >= gpus for node in nodes):
        return
    there = "; ".join(f"{node.get('CPU', 0):g} CPUs, {node.get('GPU', 0):g} GPUs" for node in nodes)
    message = f"cpus = {cpus:g}, gpus = {gpus:g}: no node has as many; there are {there}"
    if firm:
        raise ConfigError(message)
    warnings.warn(message, stacklevel=3)


def environment(gpus: float) -> dict[str, str]:
    """Environment variables of a task."""
    passed = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}
    if gpus == 0:
        return {"JAX_PLATFORMS": "cpu"} | passed
    return ({"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} if gpus < 1 else {}) | passed  # tasks that share a device


def call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    try:
        return function(*arguments)
    except Exception as error:
        return Raised(f"{type(error).__name__}: {error}", traceback.format_exc())


def fetch(ray: Any, reference: Any, retries: int) -> Any:
    try:
        return unwrap(ray.get(reference))
    except ray.exceptions.RayTaskError as error:  # before `call` could: what cannot be imported there, for example
        return TaskError(str(error).strip().splitlines()[-1])
    except ray.exceptions.RayError as error:
        return TaskError(f"lost {retries + 1} times, the last time by {type(error).__name__}")


def unwrap(result: Any) -> Any:
    if not isinstance(result, Raised):
        return result
    error = TaskError(result.summary)
    error.add_note(result.details)
    return error


class Child(NamedTuple):
    """A task in a process of this machine."""

    task: Task
    process: Any
    losses: int  # how often it was lost before


def run_local(
    tasks: Sequence[Task],
    at_once: int = 1,
    gpus: float = 0,
    retries: int = 3,
    on_wait: Callable[[], Any] | None = None,
) -> Iterator[tuple[str, Any]]:
    """The same in processes of this machine, `at_once` of them at a time, without Ray."""
    waiting = collections.deque((task, 0) for task in tasks)
    running: dict[Any, Child] = {}
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                task, losses = waiting.popleft()
                pipe, process = start(task, gpus)
                running[pipe] = Child(task, process, losses)
            ready: list[Any] = multiprocessing.connection.wait(list(running), timeout=LOOK_EVERY)
            for pipe in ready:
                task, process, losses = running.pop(pipe)
                try:
                    result = unwrap(pipe.recv())
                except EOFError:  # it ended without an answer
                    process.join()
                    if losses < retries:
                        waiting.append((task, losses + 1))
                        continue
                    result = TaskError(f"lost {losses + 1} times, the last time with status {process.exitcode}")
                process.join()
                yield task[0], result
            if on_wait is not None:
                on_wait()
    finally:
        call_off([child.process for child in running.values()])


def start(task: Task, gpus: float) -> tuple[Any, Any]:
    """A process for a task, and where its answer will come from."""
    context = multiprocessing.get_context("spawn")  # JAX has threads, which a fork would lose
    ours, theirs = context.Pipe(duplex=False)
    _, function, arguments = task
    with environ(environment(gpus)):
        process = context.Process(target=answer, args=(theirs, function, arguments))
        process.start()
    theirs.close()  # so that its end is seen here
    return ours, process


def answer(pipe: Any, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    pipe.send(call(function, arguments))


@contextlib.contextmanager
def environ(changes: dict[str, str]) -> Iterator[None]:
    """Environment variables that a process started meanwhile is born with."""
    before = dict(os.environ)
    os.environ.update(changes)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def call_off(processes: Sequence[Any]) -> None:
    """SIGTERM, upon which a run saves itself; SIGKILL for those that do not end."""
    for process in processes:
        process.terminate()
    for process in processes:
        process.join(FAREWELL)
        if process.is_alive():
            process.kill()
            process.join()
