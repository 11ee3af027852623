"""Workers on Ray actors, wherever the cluster has a core: for environments so slow that one machine's cores are too few."""

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from tqpo.errors import ConfigError
from tqpo.host.guard import Guard
from tqpo.host.spec import HostSpec
from tqpo.host.workers import Answer, Lost, Request, Worker, Workers, serve


class Actor:
    """Runs in the cluster."""

    def __init__(self, make_guard: Callable[[], Guard]):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.guard = make_guard()

    def serve(self, request: Request) -> Answer:
        return serve(self.guard, request)


class RayWorker(Worker):
    """A guarded environment in an actor."""

    kind = "actor"

    def __init__(self, ray: Any, cpus: float, make_guard: Callable[[], Guard]):
        self.ray = ray
        paths = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "JAX_PLATFORMS": "cpu"}
        options = {"num_cpus": cpus, "runtime_env": {"env_vars": paths}}
        self.actor = ray.remote(Actor).options(**options).remote(make_guard)

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


class RayWorkers(Workers):
    """On actors of the cluster that Ray is connected to, or of a Ray of this machine's."""

    def __init__(self, spec: HostSpec, count: int):
        try:
            import ray
        except ImportError:
            raise ConfigError('--vector ray needs Ray: pip install "tqpo[ray]"') from None
        self.ray, self.own = ray, not ray.is_initialized()
        if self.own:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            ray.init(address=os.environ.get("RAY_ADDRESS"), log_to_driver=False, logging_level=logging.ERROR)
        cores = ray.cluster_resources().get("CPU", 1.0)
        cpus = min(1.0, 0.99 * cores / count)  # where cores are too few, actors share them
        super().__init__(spec, count, lambda make_guard: RayWorker(ray, cpus, make_guard))

    def close(self) -> None:
        super().close()
        if self.own:
            self.ray.shutdown()
