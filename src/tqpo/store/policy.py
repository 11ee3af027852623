"""`policy.safetensors` with `policy.json`: what is needed to act, without what is needed to train."""

import os
import pathlib
from collections.abc import Mapping
from typing import Any

from tqpo.errors import StoreError
from tqpo.store import disk, pytree, sealed
from tqpo.store.disk import DamagedError
from tqpo.types import PyTree

FORMAT = "tqpo-policy-1"
ARRAYS, RECORD = "policy.safetensors", "policy.json"


def save(folder: pathlib.Path, run: str, arrays: PyTree, description: Mapping[str, Any]) -> None:
    """Two files, two renames: a crash in between leaves a pair that `load` refuses; a resumed run writes it again."""
    data, leaves = pytree.pack(arrays)
    body = {
        "format": FORMAT,
        "run": run,
        "description": dict(description),
        "state": disk.fingerprint(data),
        "leaves": leaves,
    }
    record = sealed.seal(body)
    disk.write_bytes(disk.inside(folder, ARRAYS), data)
    disk.write_bytes(disk.inside(folder, RECORD), record)


def exists(folder: pathlib.Path) -> bool:
    return os.path.lexists(folder / RECORD) or os.path.lexists(folder / ARRAYS)


def load(folder: pathlib.Path, run: str, template: PyTree | None = None) -> tuple[PyTree, dict[str, Any]]:
    """The policy as saved and its description; without a template, as a dict of NumPy arrays by name."""
    if not exists(folder):
        raise StoreError(f"{folder} has no policy yet: let the run finish, or resume it")
    path = disk.inside(folder, RECORD)
    body = sealed.unseal(disk.read_bytes(path), path, FORMAT)
    if body.get("run") != run:
        raise DamagedError(f"{path} belongs to run {body.get('run')}, not to {run}")
    leaves, description = pytree.check_leaves(body.get("leaves"), path), body.get("description")
    if not isinstance(description, dict):
        raise DamagedError(f"{path} has no description")
    path = disk.inside(folder, ARRAYS)
    arrays = pytree.parse(disk.check_fingerprint(path, body.get("state")), leaves, path)
    return (arrays if template is None else pytree.unpack(template, arrays, leaves, path)), description
