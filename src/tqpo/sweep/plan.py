"""A sweep's TOML file: lists make a grid.

    cpus = 2                       # of each job; also gpus, episodes, report, retries, checkpoint_every, seeds_per_job
    [defaults]                     # for all runs below
    steps = 5e6
    [[runs]]                       # the fields of `Job`
    task = ["SimpleEnv", "DynamicEnv"]
    safety = [0.8, 0.9, 0.95]
    seeds = 5                      # 0 … 4, or a list; they train together in one program
    settings = { learning_rate = [3e-4, 1e-3], hidden = [[64, 64], [128, 128]] }

A job is one setting with its seeds: one program, one task, one folder. A folder's name follows from its job alone, so a
finished job is recognised when the file has grown.
"""

import dataclasses
import hashlib
import itertools
import json
import pathlib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tqpo.errors import ConfigError
from tqpo.training.job import Job, frozen, seeds_of

WHOLE = ("seeds", "constraints")  # fields that are lists themselves: a list of lists makes a grid of them
NESTED = ("settings", "task_settings")


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Jobs by the names of their folders, and what each needs."""

    jobs: Mapping[str, Job]
    cpus: float = 1
    gpus: float = 0
    episodes: int = 1000  # of the evaluation of each seed
    report: bool = False  # whether each run gets figures, a video and a page as well
    retries: int = 3  # after a lost process or machine
    checkpoint_every: int = 20  # iterations

    def __post_init__(self) -> None:
        for name, least in {"cpus": 0, "gpus": 0, "episodes": 1, "retries": 0, "checkpoint_every": 1}.items():
            value = getattr(self, name)
            if not isinstance(value, int | float) or value < least:
                raise ConfigError(f"{name} = {value!r}: a number, at least {least}")
        if not isinstance(self.report, bool):
            raise ConfigError(f"report = {self.report!r}: true or false")


def read(path: pathlib.Path) -> Sweep:
    """The sweep of a file. Every job is prepared once: a wrong setting is an error before anything starts."""
    try:
        content = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist: give the TOML file of a sweep") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as TOML: {error}") from None
    options = {field.name for field in dataclasses.fields(Sweep)} - {"jobs"}
    check_names(content, options | {"defaults", "runs", "seeds_per_job"}, str(path))
    blocks, defaults = content.pop("runs", []), content.pop("defaults", {})
    if not isinstance(blocks, list) or not blocks:
        raise ConfigError(f"{path} has no runs: write at least one [[runs]]")
    size = content.pop("seeds_per_job", None)
    jobs = {}
    for block in blocks:
        for job in itertools.chain.from_iterable(split(job, size) for job in expand(merge(defaults, block))):
            job.prepare()
            jobs[name_of(job)] = job
    return Sweep(jobs, **content)


def merge(defaults: Mapping[str, Any], block: Mapping[str, Any]) -> dict[str, Any]:
    nested = {name: {**defaults.get(name, {}), **block.get(name, {})} for name in NESTED}
    return {**defaults, **block, **{name: value for name, value in nested.items() if value}}


def expand(block: Mapping[str, Any]) -> Iterator[Job]:
    """Every job of a block's grid."""
    check_names(block, {field.name for field in dataclasses.fields(Job)}, "[[runs]]")
    axes: dict[tuple[str, ...], list[Any]] = {}
    for name, value in block.items():
        if name in NESTED:
            axes |= {(name, key): choices(x) for key, x in value.items()}
        elif name in WHOLE:
            axes[name,] = value if isinstance(value, list) and value and isinstance(value[0], list) else [value]
        else:
            axes[name,] = choices(value)
    for values in itertools.product(*axes.values()):
        fields: dict[str, Any] = {}
        for place, value in zip(axes, values, strict=True):
            if len(place) == 1:
                fields[place[0]] = frozen(value)
            else:
                fields.setdefault(place[0], {})[place[1]] = frozen(value)
        yield make_job(fields)


def make_job(fields: dict[str, Any]) -> Job:
    try:
        steps = int(fields.get("steps", Job.steps))
        return Job(**fields | {"seeds": seeds_of(fields.get("seeds", 1)), "steps": steps})
    except (TypeError, ValueError) as error:
        raise ConfigError(str(error)) from None


def choices(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def split(job: Job, size: int | None) -> Iterator[Job]:
    """The job with so many seeds at a time."""
    if size is not None and (not isinstance(size, int) or size < 1):
        raise ConfigError(f"seeds_per_job = {size!r}: at least 1")
    for first in range(0, len(job.seeds), size or len(job.seeds)):
        yield dataclasses.replace(job, seeds=job.seeds[first : first + (size or len(job.seeds))])


def name_of(job: Job) -> str:
    """What it is in words, and a checksum of all fields that are not as usual."""
    usual, given = vars(Job()), vars(job)
    given = {name: value for name, value in given.items() if value != usual[name]}
    digest = hashlib.sha256(json.dumps(given, sort_keys=True, default=str).encode()).hexdigest()
    seeds = "s" + "_".join(map(str, dict.fromkeys((min(job.seeds), max(job.seeds)))))
    words = (job.task, job.algo, f"{100 * job.safety:g}", f"{job.cost_limit:g}", seeds, digest[:8])
    return re.sub(r"[^\w.-]+", "_", "-".join(words))


def varying(jobs: Iterable[Job]) -> dict[str, list[Any]]:
    """The fields and settings in which jobs differ, with the value of each job."""
    flat = [
        {field.name: getattr(job, field.name) for field in dataclasses.fields(job) if field.name not in NESTED}
        | {name: value for nested in NESTED for name, value in getattr(job, nested).items()}
        for job in jobs
    ]
    names = dict.fromkeys(name for fields in flat for name in fields)
    columns = {name: [fields.get(name, "") for fields in flat] for name in names}
    return {name: values for name, values in columns.items() if any(value != values[0] for value in values)}


def check_names(given: Mapping[str, Any], known: set[str], where: str) -> None:
    if unknown := set(given) - known:
        there = ", ".join(sorted(known))
        raise ConfigError(f"{where}: nothing is called {', '.join(sorted(unknown))}; there are {there}")
