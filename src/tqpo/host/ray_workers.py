"""Workers on Ray actors, wherever the cluster has a core: for environments too slow for one machine."""

import contextlib
import functools
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from tqpo.errors import ConfigError
from tqpo.host.workers import Answer, Lost, Request, Unit, Worker, serve


class Actor:
    """Runs in the cluster."""

    def __init__(self, make_unit: Callable[[], Unit]):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.unit = make_unit()

    def serve(self, request: Request) -> Answer:
        return serve(self.unit, request)


class RayWorker(Worker):
    """Runs one environment in an actor."""

    kind = "actor"

    def __init__(self, ray: Any, cpus: float, make_unit: Callable[[], Unit]):
        self.ray = ray
        paths = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "JAX_PLATFORMS": "cpu"}
        options = {"num_cpus": cpus, "runtime_env": {"env_vars": paths}}
        self.actor = ray.remote(Actor).options(**options).remote(make_unit)

    def ask(self, request: Request) -> None:
        self.reference = self.actor.serve.remote(request)

    def answer(self, deadline: float) -> Answer:
        try:
            return self.ray.get(self.reference, timeout=max(0.1, deadline - time.monotonic()))
        except self.ray.exceptions.GetTimeoutError:
            return None
        except self.ray.exceptions.RayError as error:
            raise Lost(f"was lost: {type(error).__name__}") from error

    def end(self, deadline: float = 0.0) -> None:
        self.ray.kill(self.actor)


@contextlib.contextmanager
def connect(count: int) -> Iterator[Callable[[Callable[[], Unit]], Worker]]:
    """What starts workers on the cluster that Ray is connected to, or on a Ray of this machine's."""
    try:
        import ray
    except ImportError:
        raise ConfigError('--vector ray needs Ray: pip install ".[ray]" in the clone') from None
    own = not ray.is_initialized()
    if own:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(address=os.environ.get("RAY_ADDRESS"), log_to_driver=False, logging_level=logging.ERROR)
    cores = ray.cluster_resources().get("CPU", 1.0)
    try:
        yield functools.partial(RayWorker, ray, min(1.0, 0.99 * cores / count))  # where cores are too few, actors share
    finally:
        if own:
            ray.shutdown()
