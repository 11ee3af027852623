"""A training job that takes seconds, from Python and from the command line."""

import os
import pathlib
import subprocess
import sys

from tqpo import cli
from tqpo.training.job import Job

CACHE = pathlib.Path(__file__).parents[2] / ".jax_cache"
SETTINGS = {"n_envs": 4, "n_steps": 50, "minibatches": 2, "epochs": 2}
TASK = {"max_steps": 50}
ITERATIONS = 12
STEPS = ITERATIONS * SETTINGS["n_envs"] * SETTINGS["n_steps"]


def small_job(**changes) -> Job:
    fields = {"steps": STEPS, "settings": SETTINGS, "task_settings": TASK, "seeds": (0, 1), "snapshots": 2}
    return Job(**{**fields, **changes})


def arguments(out: pathlib.Path) -> list[str]:
    """`tqpo train` of the same job."""
    settings = [f"{k}={v}" for k, v in SETTINGS.items()]
    task = [f"{k}={v}" for k, v in TASK.items()]
    numbers = ["--steps", str(STEPS), "--seeds", "2", "--snapshots", "2", "--checkpoint-every", "1", "--episodes", "0"]
    return ["train", "SimpleEnv", *numbers, "--set", *settings, "--task-set", *task, "--out", str(out)]


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "tqpo.cli", *words]


def environment() -> dict[str, str]:
    """With a compilation cache, so that a second process starts in seconds."""
    cache = {"JAX_COMPILATION_CACHE_DIR": str(CACHE), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    return {**os.environ, "JAX_PLATFORMS": "cpu", **cache}


def tqpo(*words: str, timeout: float = 300) -> subprocess.CompletedProcess:
    """Runs the command line to its end."""
    return subprocess.run(
        command(*words), env=environment(), capture_output=True, text=True, timeout=timeout, check=False
    )


def call(monkeypatch, capsys, *words: object) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of `tqpo words…`."""
    monkeypatch.setattr(sys, "argv", ["tqpo", *map(str, words)])
    code = 0
    try:
        cli.main()
    except SystemExit as stop:
        code = int(stop.code or 0)
    return code, *capsys.readouterr()
