"""A run folder: what one training job writes, and what everything else reads.

    config.json                    the complete settings
    metrics.csv                    one row per run and iteration
    checkpoints/step-…/            the last few and the best, see `checkpoint`
    policy.safetensors, policy.json
    evaluation.json, plots/, …     whatever `write_json` and `write_file` are given
    manifest.json                  id, status, versions, hardware, commit; SHA-256 and size of the files it covers
    lock                           held by the one process that writes

The manifest covers `config.json` from the start and everything else once the run is finished. A file that is about to change
leaves the manifest first, so that a crash never leaves a checksum that is wrong.
"""

import os
import pathlib
import uuid
import warnings
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Self

from tqpo import provenance
from tqpo.errors import ConfigError, StoreError
from tqpo.store import checkpoint, disk, metrics, pytree
from tqpo.store.disk import DamagedError, StoreWarning
from tqpo.store.metrics import EMPTY, Mark, MetricsFile
from tqpo.types import PyTree

FORMAT = "tqpo-run-1"
POLICY_FORMAT = "tqpo-policy-1"
CONFIG, MANIFEST, LOCK, METRICS, CHECKPOINTS = "config.json", "manifest.json", "lock", "metrics.csv", "checkpoints"
POLICY, POLICY_RECORD = "policy.safetensors", "policy.json"
OWN = {CONFIG, MANIFEST, LOCK, METRICS, CHECKPOINTS, POLICY, POLICY_RECORD}

OnWarning = Callable[[str], Any]


def create(path: str | os.PathLike, config: Mapping[str, Any], on_warning: OnWarning | None = None) -> "Run":
    """Starts a run in a new or empty folder, and holds its lock."""
    folder = pathlib.Path(path)
    _refuse_used(folder)
    with disk.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    lock = disk.take_lock(folder / LOCK)
    try:
        _refuse_used(folder)  # someone may have been faster
        data = disk.encode(dict(config))
        disk.write_bytes(folder / CONFIG, data)
        manifest = {
            "format": FORMAT,
            "run": uuid.uuid4().hex,
            "status": "running",
            "sessions": [provenance.provenance()],
            "incidents": [],
            "files": {CONFIG: disk.fingerprint(data)},
        }
        disk.write_bytes(folder / MANIFEST, disk.seal(manifest))  # from here on it is a run
    except BaseException:
        lock.close()
        raise
    return Run(folder, manifest, disk.decode(data, folder / CONFIG), lock, on_warning)


def _refuse_used(folder: pathlib.Path) -> None:
    """Only a folder that is empty, or where `create` itself was cut short, may become a run."""
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"{folder} is a file: choose a folder that does not exist yet")
    names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if MANIFEST in names:
        raise StoreError(f"{folder} already holds a run: choose another folder, or resume that run")
    cut_short = LOCK in names and all(name in {LOCK, CONFIG} or name.startswith(disk.TEMPORARY) for name in names)
    if names and not cut_short:
        raise StoreError(f"{folder} exists and is not empty: choose a folder that does not exist yet")


def open_run(path: str | os.PathLike, write: bool = False, on_warning: OnWarning | None = None) -> "Run":
    """A run that is there. Reading changes nothing and needs no lock; writing takes it and tidies up after a crash."""
    folder = pathlib.Path(path)
    if not folder.is_dir():
        what = "is a file, not the folder of a run" if folder.exists() else "does not exist"
        raise StoreError(f"{folder} {what}: give the folder that training wrote")
    if not os.path.lexists(folder / MANIFEST):
        raise StoreError(f"{folder} is not a run: it has no {MANIFEST}; give the folder that training wrote")
    lock = disk.take_lock(folder / LOCK) if write else None
    try:
        if write:
            disk.tidy(folder)
        manifest = _read_manifest(folder)
        config = disk.check_fingerprint(folder / CONFIG, manifest["files"][CONFIG])
        run = Run(folder, manifest, disk.decode(config, folder / CONFIG), lock, on_warning)
        if write and manifest["status"] != "finished":
            run._metrics.load()
    except BaseException:
        if lock is not None:
            lock.close()
        raise
    return run


def _read_manifest(folder: pathlib.Path) -> dict[str, Any]:
    path = folder / MANIFEST
    manifest = disk.unseal(disk.read_bytes(path), path, FORMAT)
    types = {"run": str, "status": str, "sessions": list, "incidents": list, "files": dict}
    if any(not isinstance(manifest.get(name), kind) for name, kind in types.items()) or CONFIG not in manifest["files"]:
        raise DamagedError(f"{path} lacks what a manifest needs")
    for name in manifest["files"]:
        disk.inside(folder, name)
    return manifest


class Run:
    """A run folder, from `create` or `open_run`. A context manager: leaving it gives the lock back."""

    def __init__(
        self,
        folder: pathlib.Path,
        manifest: dict[str, Any],
        config: dict[str, Any],
        lock: Any,
        on_warning: OnWarning | None,
    ):
        self.folder = folder
        self.config = config
        self._manifest = manifest
        self._lock = lock
        self._on_warning = on_warning
        self._metrics = MetricsFile(folder / METRICS)

    @property
    def id(self) -> str:
        return self._manifest["run"]

    @property
    def finished(self) -> bool:
        return self._manifest["status"] == "finished"

    @property
    def incidents(self) -> list[dict[str, str]]:
        """What went wrong and was survived: time and text."""
        return list(self._manifest["incidents"])

    @property
    def manifest(self) -> dict[str, Any]:
        return dict(self._manifest)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives the lock back. Nothing is buffered, so nothing is lost without it."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def path(self, name: str) -> pathlib.Path:
        """The path of a file or folder in the run; an error for a name that leads out of it."""
        return disk.inside(self.folder, name)

    # Checkpoints

    @property
    def _checkpoints(self) -> pathlib.Path:
        return disk.inside(self.folder, CHECKPOINTS)

    def steps(self) -> list[int]:
        """Steps of the checkpoints that are there, in order."""
        return checkpoint.steps(self._checkpoints)

    def best_step(self) -> int | None:
        """The step of the best checkpoint, None if none had a score."""
        return checkpoint.best_of(checkpoint.records(self._checkpoints, self.id))

    def save_checkpoint(
        self, state: PyTree, meta: Mapping[str, Any], keep: int = 3, best: float | None = None
    ) -> pathlib.Path:
        """Saves everything a run needs at `meta["step"]`; keeps the last `keep` and the one with the highest `best`."""
        step = checkpoint.step_of(meta)
        if keep < 1:
            raise ConfigError(f"keep = {keep}: at least 1")
        if any(other > step for other in self.steps()):
            raise StoreError(f"{self._checkpoints} has a checkpoint later than step {step}: `resume` clears the way")
        self._change(CHECKPOINTS)
        with disk.writing(self._checkpoints):
            self._checkpoints.mkdir(exist_ok=True)
        self._metrics.sync()
        checkpoint.save(self._checkpoints, self.id, state, dict(meta), best, self._metrics.mark())
        checkpoint.prune(self._checkpoints, self.id, keep)
        return self._checkpoints / checkpoint.folder_name(step)

    def load_checkpoint(self, template: PyTree, step: int | None = None) -> tuple[PyTree, dict[str, Any]]:
        """State and meta of the latest good checkpoint, with a warning for each damaged one passed over; or of one step."""
        if step is not None:
            state, record = checkpoint.load(self._checkpoints, self.id, step, template)
        else:
            state, record = self._latest(template, lambda mark: None)
        return state, record.meta

    def resume(self, template: PyTree) -> tuple[PyTree, dict[str, Any]]:
        """State and meta to go on from; `metrics.csv` is cut back to that moment, damaged checkpoints are set aside."""
        self._require_lock()
        state, record = self._latest(template, self._metrics.check)
        self._change(METRICS)
        for step in self.steps():
            if step > record.step:
                aside = checkpoint.set_aside(self._checkpoints, self.id, step)
                self._warn(f"step {step} was moved to {aside}")
        self._metrics.rewind(record.metrics)
        self._manifest["sessions"].append(provenance.provenance())
        self._write_manifest()
        return state, record.meta

    def _latest(self, template: PyTree, check: Callable[[Mark], Any]) -> tuple[PyTree, checkpoint.Record]:
        self._warn_of_missing()
        problems = []
        for step in reversed(self.steps()):
            try:
                state, record = checkpoint.load(self._checkpoints, self.id, step, template)
                check(record.metrics)
            except DamagedError as error:
                problems.append(str(error))
                self._warn(f"checkpoint at step {step} is not used: {error}")
            else:
                return state, record
        raise StoreError(f"{self.folder} has no good checkpoint: " + ("; ".join(problems) or "none was saved"))

    def _warn_of_missing(self) -> None:
        try:
            missing = set(checkpoint.read_index(self._checkpoints, self.id)) - set(self.steps())
        except DamagedError as error:
            if self.steps():
                self._warn(f"missing checkpoints would go unseen: {error}")
            return
        if missing:
            self._warn(f"{self._checkpoints} has lost the checkpoints of steps {sorted(missing)}")

    # Metrics

    def append_metrics(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Adds rows to `metrics.csv`; see `metrics.rows_of_chunk`."""
        self._change(METRICS)
        self._metrics.append(rows)

    def rewind_metrics(self, mark: Mark = EMPTY) -> None:
        """Cuts `metrics.csv` back to a mark; without one, to nothing: to begin again before any checkpoint."""
        self._change(METRICS)
        self._metrics.rewind(mark)

    def metrics(self) -> dict[str, Any]:
        """Columns of `metrics.csv` as arrays."""
        return metrics.read(self.path(METRICS))

    # Policy

    def save_policy(self, arrays: PyTree, description: Mapping[str, Any]) -> None:
        """Writes what is needed to act. The arrays may be any pytree."""
        self._change(POLICY, POLICY_RECORD)
        data, leaves = pytree.pack(arrays)
        body = {
            "format": POLICY_FORMAT,
            "run": self.id,
            "description": dict(description),
            "state": disk.fingerprint(data),
            "leaves": leaves,
        }
        disk.write_bytes(self.path(POLICY), data)
        disk.write_bytes(self.path(POLICY_RECORD), disk.seal(body))

    def load_policy(self, template: PyTree | None = None) -> tuple[PyTree, dict[str, Any]]:
        """The policy as saved and its description; without a template, as a dict of NumPy arrays by name."""
        if not os.path.lexists(self.path(POLICY_RECORD)):
            raise StoreError(f"{self.folder} has no policy yet: let the run finish, or resume it")
        body = disk.unseal(disk.read_bytes(self.path(POLICY_RECORD)), self.path(POLICY_RECORD), POLICY_FORMAT)
        leaves, description = body.get("leaves"), body.get("description")
        if body.get("run") != self.id or not isinstance(leaves, dict) or not isinstance(description, dict):
            raise DamagedError(f"{self.path(POLICY_RECORD)} belongs to another run")
        data = disk.check_fingerprint(self.path(POLICY), body.get("state"))
        arrays = pytree.parse(data, leaves, self.path(POLICY))
        if template is None:
            return arrays, description
        return pytree.unpack(template, arrays, leaves, self.path(POLICY)), description

    # Other files

    def write_file(self, name: str, data: bytes) -> pathlib.Path:
        """Writes a file of the caller's (a plot, a page), at once or not at all."""
        path = self.path(name)
        if name.split("/")[0] in OWN:
            raise StoreError(f"{name} is the store's own: choose another name")
        self._change(name)
        with disk.writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        disk.write_bytes(path, data)
        return path

    def write_json(self, name: str, obj: Mapping[str, Any]) -> pathlib.Path:
        return self.write_file(name, disk.encode(obj))

    def read_json(self, name: str) -> dict[str, Any]:
        """A JSON file of the caller's, checked against the manifest if that covers it."""
        expected = self._manifest["files"].get(name)
        path = self.path(name)
        return disk.decode(disk.check_fingerprint(path, expected) if expected else disk.read_bytes(path), path)

    # Manifest

    def finish(self) -> None:
        """Marks the run as finished and covers every file that is not covered yet; those that are keep their checksums."""
        self._require_lock()
        self._metrics.sync()
        covered = self._manifest["files"]
        for name in self._names():
            if name not in covered:
                covered[name] = disk.fingerprint(disk.read_bytes(self.path(name)))
        self._manifest["status"] = "finished"
        self._write_manifest()

    def _names(self) -> list[str]:
        """Files of the folder that a manifest can cover."""
        found = []
        for parent, folders, files in os.walk(self.folder):
            folders[:] = [name for name in folders if not name.startswith((disk.TEMPORARY, disk.REPLACED))]
            found += [pathlib.Path(parent, name).relative_to(self.folder).as_posix() for name in files]
        return sorted(name for name in found if name not in {MANIFEST, LOCK})

    def verify(self) -> None:
        """Reads everything; raises an error that lists all that is not as it was written."""
        problems = []

        def attempt(check: Callable[[], Any]) -> Any:
            try:
                return check()
            except StoreError as error:
                problems.append(str(error))

        for name, expected in self._manifest["files"].items():
            attempt(lambda name=name, expected=expected: disk.check_fingerprint(self.path(name), expected))
        for step in self.steps():
            record = attempt(lambda step=step: checkpoint.read_record(self._checkpoints, self.id, step))
            if record is not None:
                attempt(lambda record=record: checkpoint.read_state(self._checkpoints, record))
                attempt(lambda record=record: self._metrics.check(record.metrics))
        if os.path.lexists(self.path(POLICY_RECORD)):
            attempt(self.load_policy)
        if problems:
            raise DamagedError(f"{self.folder} is damaged: " + "; ".join(dict.fromkeys(problems)))

    def _change(self, *names: str) -> None:
        """Takes files that are about to change out of the manifest."""
        self._require_lock()
        covered = self._manifest["files"]
        stale = [name for name in covered if name in names or name.split("/")[0] in names]
        if stale or self.finished:
            for name in stale:
                del covered[name]
            self._manifest["status"] = "running"
            self._write_manifest()

    def _require_lock(self) -> None:
        if self._lock is None:
            raise StoreError(f"{self.folder} is open for reading: `open_run(path, write=True)` opens it for writing")

    def _write_manifest(self) -> None:
        disk.write_bytes(self.folder / MANIFEST, disk.seal(self._manifest))

    def _warn(self, text: str) -> None:
        """Says it aloud, and notes it in the manifest."""
        time = datetime.now(UTC).isoformat(timespec="seconds")
        self._manifest["incidents"].append({"time": time, "text": text})
        if self._lock is not None:
            self._write_manifest()
        if self._on_warning is None:
            warnings.warn(text, StoreWarning, stacklevel=3)
        else:
            self._on_warning(text)
