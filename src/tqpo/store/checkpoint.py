"""Checkpoints: `step-000000012000/{state.safetensors,checkpoint.json}`, each tied to its run, step and content.

`checkpoint.json` carries its own SHA-256, that of the state, the run's id and the step, so a flipped bit, a truncated
file, a file from another checkpoint and a renamed folder are all detected before anything is used. `index.json` beside
them lists the steps that must be there, so a missing one is detected too.
"""

import contextlib
import pathlib
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from tqpo.errors import ConfigError
from tqpo.store import disk, pytree, sealed
from tqpo.store.disk import DamagedError
from tqpo.store.metrics import Mark
from tqpo.types import PyTree

FORMAT = "tqpo-checkpoint-1"
INDEX_FORMAT = "tqpo-checkpoint-index-1"
STATE, RECORD, INDEX = "state.safetensors", "checkpoint.json", "index.json"
FOLDER = re.compile(r"step-(\d{12,18})")


class Record(NamedTuple):
    """What `checkpoint.json` says."""

    step: int
    meta: dict[str, Any]
    metrics: Mark
    leaves: pytree.Leaves
    state: dict[str, Any]  # fingerprint of the state's file


def folder_name(step: int) -> str:
    return f"step-{step:012d}"


def steps(folder: pathlib.Path) -> list[int]:
    """Steps of the checkpoints in the folder, in order, damaged or not."""
    try:
        names = [path.name for path in folder.iterdir()]
    except OSError:
        return []
    numbers = [int(match[1]) for name in names if (match := FOLDER.fullmatch(name))]
    return sorted(step for step in set(numbers) if folder_name(step) in names)


def step_of(meta: Mapping[str, Any]) -> int:
    step = meta.get("step")
    if not isinstance(step, int) or not 0 <= step < 10**18:
        raise ConfigError(f"meta['step'] = {step!r}: the environment steps done so far, as an int")
    return step


def save(folder: pathlib.Path, run: str, state: PyTree, meta: dict[str, Any], metrics: Mark) -> None:
    """Writes a checkpoint; it becomes visible at once, when all of it is on the disk."""
    step = step_of(meta)
    data, leaves = pytree.pack(state)
    body = {
        "format": FORMAT,
        "run": run,
        "step": step,
        "meta": meta,
        "metrics": metrics._asdict(),
        "state": disk.fingerprint(data),
        "leaves": leaves,
    }
    disk.write_folder(folder / folder_name(step), {STATE: data, RECORD: sealed.seal(body)})


def read_record(folder: pathlib.Path, run: str, step: int) -> Record:
    """The verified record of a checkpoint, without its state."""
    path = folder / folder_name(step)
    if path.is_symlink() or not path.is_dir():
        raise DamagedError(
            f"{path} is not there; steps {steps(folder)} are"
            if step not in steps(folder)
            else f"{path} is not a folder"
        )
    body = sealed.unseal(disk.read_bytes(path / RECORD), path / RECORD, FORMAT)
    if body.get("run") != run or body.get("step") != step:
        raise DamagedError(
            f"{path / RECORD} belongs to step {body.get('step')} of run {body.get('run')}, "
            f"not to step {step} of run {run}"
        )
    meta, state = body.get("meta"), body.get("state")
    if not isinstance(meta, dict) or not isinstance(state, dict):
        raise DamagedError(f"{path / RECORD} lacks what a checkpoint needs")
    mark = Mark.of(body.get("metrics"), path / RECORD)
    return Record(step, meta, mark, pytree.check_leaves(body.get("leaves"), path / RECORD), state)


def records(folder: pathlib.Path, run: str) -> list[Record]:
    """Records of the undamaged checkpoints, oldest first; their states are not read."""
    good = []
    for step in steps(folder):
        with contextlib.suppress(DamagedError):  # loading it warns
            good.append(read_record(folder, run, step))
    return good


def load(folder: pathlib.Path, run: str, step: int, template: PyTree) -> tuple[PyTree, Record]:
    """State and record. `DamagedError` if they are not what was saved, `StoreError` if the template does not fit."""
    record = read_record(folder, run, step)
    pytree.check_fit(template, record.leaves, folder / folder_name(step))
    return pytree.unpack(template, read_state(folder, record), record.leaves, folder / folder_name(step)), record


def read_state(folder: pathlib.Path, record: Record) -> dict[str, Any]:
    """The verified arrays of a checkpoint."""
    path = folder / folder_name(record.step) / STATE
    return pytree.parse(disk.check_fingerprint(path, record.state), record.leaves, path)


def start(folder: pathlib.Path, run: str) -> None:
    """An empty folder of checkpoints."""
    with disk.writing(folder):
        folder.mkdir(exist_ok=True)
    write_index(folder, run, [])


def write_index(folder: pathlib.Path, run: str, kept: list[int]) -> None:
    disk.write_bytes(folder / INDEX, sealed.seal({"format": INDEX_FORMAT, "run": run, "steps": sorted(kept)}))


def read_index(folder: pathlib.Path, run: str) -> list[int]:
    """Steps that must be there."""
    body = sealed.unseal(disk.read_bytes(folder / INDEX), folder / INDEX, INDEX_FORMAT)
    listed = body.get("steps")
    if body.get("run") != run or not isinstance(listed, list) or not all(isinstance(step, int) for step in listed):
        raise DamagedError(f"{folder / INDEX} belongs to another run")
    return listed


def prune(folder: pathlib.Path, run: str, keep: int) -> None:
    """Drops all but the last `keep` good checkpoints.

    They leave the index first, then each disappears by one rename. A crash in between leaves more than needed, never
    less.
    """
    good = records(folder, run)
    write_index(folder, run, [record.step for record in good[-keep:]])
    for record in good[:-keep]:
        disk.drop_folder(folder / folder_name(record.step))


def set_aside(folder: pathlib.Path, run: str, step: int) -> pathlib.Path:
    """Takes a damaged checkpoint out of the way, under a name that says so."""
    write_index(folder, run, [other for other in steps(folder) if other != step])
    path, number = folder / folder_name(step), 1
    while (aside := folder / f"damaged-{path.name}-{number}").exists():
        number += 1
    with disk.writing(path):
        path.rename(aside)
        disk.sync_folder(folder)
    return aside
