"""MuJoCo as the judge: final policies in the twin, in processes that only need CPU cores, while others train."""

import concurrent.futures
import multiprocessing
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from tqpo import store
from tqpo.envs.budget import unwrapped
from tqpo.evaluation.episodes import Totals
from tqpo.evaluation.fresh import with_budget
from tqpo.evaluation.host_episodes import play_twin
from tqpo.reproduce.cells import Plan, policy_folder, read, summary, write
from tqpo.reproduce.paper import Cell
from tqpo.training.evaluations import evaluation_key
from tqpo.training.job import prepared_of
from tqpo.training.policies import load_policies

SIDE_BY_SIDE = 20  # episodes of one task
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


class Part(NamedTuple):
    """Some episodes of one policy."""

    cell: Cell
    seed: int
    indices: range


class Judge:
    """Takes cells whose policies are there; adds to their files what MuJoCo says of them."""

    def __init__(self, plan: Plan, workers: int):
        self.plan = plan
        self.played: dict[Cell, dict[Part, Totals]] = {}
        self.tasks: dict[concurrent.futures.Future, Part] = {}
        context = multiprocessing.get_context("spawn")
        self.pool = concurrent.futures.ProcessPoolExecutor(workers, context, begin_worker)

    def take(self, cells: Sequence[Cell]) -> None:
        """Begins with these cells."""
        for cell in cells:
            for seed in self.plan.judged(cell):
                for first in range(0, self.plan.judged_episodes, SIDE_BY_SIDE):
                    indices = range(first, min(first + SIDE_BY_SIDE, self.plan.judged_episodes))
                    part = Part(cell, seed, indices)
                    self.tasks[self.pool.submit(play, self.plan, part)] = part

    def gather(self, seconds: float) -> None:
        """Waits so long for some of it; writes the cells that are whole."""
        ended, _ = concurrent.futures.wait(self.tasks, timeout=seconds, return_when="FIRST_COMPLETED")
        for task in ended:
            part = self.tasks.pop(task)
            self.played.setdefault(part.cell, {})[part] = task.result()
            if all(other.cell != part.cell for other in self.tasks.values()):
                self.write(part.cell)

    def write(self, cell: Cell) -> None:
        parts = sorted(self.played.pop(cell).items(), key=lambda item: (item[0].seed, item[0].indices.start))
        episodes: dict[int, list[Totals]] = {}
        for part, totals in parts:
            episodes.setdefault(part.seed, []).append(totals)
        path = self.plan.path(cell)
        result: dict[str, Any] = read(path) or {}
        result["judge"]["mujoco"] = summary(
            self.plan, cell, {seed: Totals.join(played) for seed, played in episodes.items()}
        )
        write(path, result)

    def close(self) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)


def begin_worker() -> None:
    os.environ["XLA_FLAGS"] = ONE_THREAD
    jax.config.update("jax_platforms", "cpu")


def play(plan: Plan, part: Part) -> Totals:
    """Some episodes of a policy in the twin."""
    from tqpo.envs.mujoco import MujocoTask

    folder = store.open_run(policy_folder(plan.path(part.cell)))
    env, policy = prepared_of(folder.config).env, load_policies(folder)[part.seed]
    task: Any = unwrapped(env)
    make_twin = with_budget(env, lambda: MujocoTask(task.config))
    return play_twin(make_twin, policy, evaluation_key(part.seed), part.indices)
