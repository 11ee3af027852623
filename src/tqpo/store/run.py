"""A run folder: what one training job writes, and what everything else reads.

| name | holds |
|---|---|
| `config.json` | the complete settings; earlier ones in `history/` |
| `metrics.csv` | one row per run and iteration |
| `checkpoints/step-…/` | the last few, see `checkpoint` |
| `policy.safetensors`, `policy.json` | what is needed to act |
| `evaluation.json`, `plots/`, … | whatever `write_json` and `write_file` are given |
| `manifest.json` | id, status, versions, hardware, commit; SHA-256 and size of every file of a finished run |
| `lock` | who writes: one process at a time |
"""

import contextlib
import os
import pathlib
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

from tqpo.errors import ConfigError, StoreError
from tqpo.store import checkpoint, disk, lock, metrics, policy, sealed
from tqpo.store.disk import DamagedError, StoreWarning
from tqpo.store.manifest import CONFIG, Manifest
from tqpo.store.manifest import NAME as MANIFEST
from tqpo.store.metrics import EMPTY, Mark, MetricsFile
from tqpo.types import PyTree

LOCK, METRICS, CHECKPOINTS, SNAPSHOTS = "lock", "metrics.csv", "checkpoints", "snapshots"
HISTORY = "history"
OWN = {CONFIG, MANIFEST, LOCK, METRICS, CHECKPOINTS, SNAPSHOTS, policy.ARRAYS, policy.RECORD}

SHIPPED = pathlib.Path(__file__).parent.parent / "policies"  # finished runs that come with the package

OnWarning = Callable[[str], Any]


def create(path: str | os.PathLike, config: Mapping[str, Any], on_warning: OnWarning | None = None) -> "Run":
    """Starts a run in a new or empty folder, and holds its lock."""
    folder = pathlib.Path(path).absolute()
    settings = sealed.encode(dict(config))
    with disk.writing(folder):
        refuse_used(folder)
        folder.mkdir(parents=True, exist_ok=True)
    held = lock.take(folder / LOCK)
    try:
        refuse_used(folder)  # someone may have been faster
        disk.tidy(folder)
        manifest = Manifest.new(folder, settings)
        disk.write_bytes(folder / CONFIG, settings)
        checkpoint.start(folder / CHECKPOINTS, manifest.run)
        manifest.add_session()  # from here on it is a run
    except BaseException:
        held.close()
        raise
    return Run(folder, manifest, sealed.decode(settings, folder / CONFIG), held, on_warning)


def refuse_used(path: str | os.PathLike) -> None:
    """Only a folder that is empty, or where `create` itself was cut short, may become a run."""
    folder = pathlib.Path(path).absolute()
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"{folder} is a file: choose a folder that does not exist yet")
    names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if MANIFEST in names:
        raise StoreError(f"{folder} already holds a run: choose another folder, or resume that run")
    if names and not _cut_short(folder, names):
        raise StoreError(f"{folder} exists and is not empty: choose a folder that does not exist yet")


def _cut_short(folder: pathlib.Path, names: set[str]) -> bool:
    """Whether all that is there was left by a `create` that did not come to its end."""
    known = all(name in {LOCK, CONFIG, CHECKPOINTS} or name.startswith(disk.TEMPORARY) for name in names)
    if not known or not lock.is_lock(folder / LOCK) or checkpoint.steps(folder / CHECKPOINTS):
        return False
    return CONFIG not in names or sealed.is_encoded(folder / CONFIG)  # an empty lock may be anyone's


def shipped() -> list[str]:
    """Names of the policies that come with the package."""
    return sorted(p.name for p in SHIPPED.iterdir() if p.is_dir()) if SHIPPED.is_dir() else []


def is_shipped(path: str | os.PathLike) -> bool:
    """Whether this names a policy that comes with the package, and no folder of the user's."""
    return os.fspath(path) in shipped() and not os.path.exists(path)


def open_run(path: str | os.PathLike, write: bool = False, on_warning: OnWarning | None = None) -> "Run":
    """Opens an existing run. Reading changes nothing and needs no lock; writing takes it and tidies up after a crash.

    A name from `shipped` opens the policy of that name that came with the package, for reading.
    """
    folder = pathlib.Path(path).absolute()
    if is_shipped(path):
        if write:
            raise StoreError(f"{os.fspath(path)} comes with the package and stays as it is")
        folder = SHIPPED / path
    if not os.path.isdir(folder):
        what = "is a file, not the folder of a run" if os.path.exists(folder) else "does not exist"
        with_us = f", or one of {', '.join(shipped())}" if shipped() else ""
        raise StoreError(f"{folder} {what}: give the folder that training wrote{with_us}")
    if not os.path.lexists(folder / MANIFEST):
        raise StoreError(f"{folder} is not a run: it has no {MANIFEST}; give the folder that training wrote")
    held = lock.take(folder / LOCK) if write else None
    try:
        if write:
            disk.tidy(folder)
        manifest = Manifest.read(folder)
        if write:
            manifest.settle()
        config = manifest.config()
        run = Run(folder, manifest, sealed.decode(config, folder / CONFIG), held, on_warning)
        if write:
            run._metrics.load(repair=not run.finished)
    except BaseException:
        if held is not None:
            held.close()
        raise
    return run


class Run:
    """A run folder, from `create` or `open_run`. A context manager: leaving it releases the lock."""

    def __init__(
        self, folder: pathlib.Path, manifest: Manifest, config: dict[str, Any], held: Any, on_warning: OnWarning | None
    ):
        self.folder = folder
        self.config = config
        self._manifest = manifest
        self._lock = held  # None: open for reading
        self._on_warning = on_warning
        self._metrics = MetricsFile(folder / METRICS)

    @property
    def id(self) -> str:
        return self._manifest.run

    @property
    def finished(self) -> bool:
        return self._manifest.finished

    @property
    def manifest(self) -> dict[str, Any]:
        """Status, sessions (commit, versions, hardware), incidents (what went wrong and was survived), checksums."""
        return self._manifest.body

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Releases the lock. Nothing is buffered, so nothing is lost without it."""
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
        """Steps of the checkpoints in the folder, in order."""
        return checkpoint.steps(self._checkpoints)

    def save_checkpoint(self, state: PyTree, meta: Mapping[str, Any], keep: int = 3) -> pathlib.Path:
        """Saves everything a run needs at `meta["step"]`; keeps the last `keep`."""
        step = checkpoint.step_of(meta)
        if keep < 1:
            raise ConfigError(f"keep = {keep}: at least 1")
        if any(other > step for other in self.steps()):
            raise StoreError(f"{self._checkpoints} has a checkpoint later than step {step}: `resume` clears the way")
        self._change(CHECKPOINTS)
        self._metrics.sync()
        checkpoint.save(self._checkpoints, self.id, state, dict(meta), self._metrics.mark())
        checkpoint.prune(self._checkpoints, self.id, keep)
        return self._checkpoints / checkpoint.folder_name(step)

    def load_checkpoint(self, template: PyTree, step: int | None = None) -> tuple[PyTree, dict[str, Any]]:
        """State and meta of the latest good checkpoint, or of one step; warns of each damaged one that it skips."""
        if step is not None:
            state, record = checkpoint.load(self._checkpoints, self.id, step, template)
        else:
            state, record = self._latest(template, lambda mark: None)
        return state, record.meta

    def checkpoint_arrays(self) -> dict[str, Any]:
        """The arrays of the latest good checkpoint by name; none where there is none."""
        for record in reversed(checkpoint.records(self._checkpoints, self.id)):
            with contextlib.suppress(DamagedError):
                return checkpoint.read_state(self._checkpoints, record)
        return {}

    def resume(self, template: PyTree) -> tuple[PyTree, dict[str, Any]] | None:
        """State and meta to continue from; None, with a warning, if the run stopped before its first checkpoint.

        `metrics.csv` is cut back to that moment; damaged checkpoints are set aside.
        """
        self._require_lock()
        if not self.steps() and not checkpoint.read_index(self._checkpoints, self.id):
            self._warn(f"{self.folder} stopped before its first checkpoint: it begins again")
            self._change(METRICS)
            self._metrics.rewind(EMPTY)
            return None
        state, record = self._latest(template, self._metrics.check)
        self._change(METRICS, CHECKPOINTS)
        for step in self.steps():
            if step > record.step:
                aside = checkpoint.set_aside(self._checkpoints, self.id, step)
                self._warn(f"the checkpoint at step {step} was moved to {aside}")
        self._metrics.rewind(record.metrics)
        self._manifest.add_session()
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
                self._warn(f"the checkpoint at step {step} is not used: {error}")
            else:
                return state, record
        raise StoreError(f"{self.folder} has no good checkpoint: " + ("; ".join(problems) or "there is none"))

    def _warn_of_missing(self) -> None:
        try:  # twice: a run that is being written may have moved on between index and folder
            lost = self._missing() & self._missing()
        except DamagedError as error:
            self._warn(f"lost checkpoints would go unseen: {error}")
        else:
            if lost:
                self._warn(f"{self._checkpoints} has lost its checkpoints of steps {sorted(lost)}")

    def _missing(self) -> set[int]:
        return set(checkpoint.read_index(self._checkpoints, self.id)) - set(self.steps())

    # Metrics

    def append_metrics(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Adds rows to `metrics.csv`; see `metrics.rows_of_chunk`."""
        self._change(METRICS)
        self._metrics.append(rows)

    def metrics(self) -> dict[str, Any]:
        """Columns of `metrics.csv` as arrays; empty before the first row."""
        if not os.path.lexists(self.path(METRICS)):
            return {}
        return metrics.parse(self._read(METRICS), self.path(METRICS))

    # Policy

    def save_policy(self, arrays: PyTree, description: Mapping[str, Any]) -> None:
        """Writes what is needed to act. The arrays may be any pytree."""
        self._change(policy.ARRAYS, policy.RECORD)
        policy.save(self.folder, self.id, arrays, description)

    def load_policy(self, template: PyTree | None = None) -> tuple[PyTree, dict[str, Any]]:
        """The policy as saved and its description; without a template, as a dict of NumPy arrays by name."""
        return policy.load(self.folder, self.id, template)

    def policy_sha256(self) -> str:
        return disk.digest(disk.read_bytes(self.path(policy.ARRAYS)))

    def save_snapshot(self, iteration: int, arrays: PyTree) -> None:
        """Keeps the policies of one iteration beside the final one."""
        folder = self.path(f"{SNAPSHOTS}/iteration-{iteration:06d}")
        self._change(SNAPSHOTS)
        with disk.writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        policy.save(folder, self.id, arrays, {"iteration": iteration})

    def snapshots(self) -> list[int]:
        """The iterations whose policies were kept, in order."""
        names = os.listdir(self.path(SNAPSHOTS)) if self.path(SNAPSHOTS).is_dir() else []
        return sorted(int(name.removeprefix("iteration-")) for name in names if name.startswith("iteration-"))

    def load_snapshot(self, iteration: int, template: PyTree) -> PyTree:
        folder = self.path(f"{SNAPSHOTS}/iteration-{iteration:06d}")
        arrays, description = policy.load(folder, self.id, template)
        if description.get("iteration") != iteration:
            raise DamagedError(f"{folder} holds the policy of iteration {description.get('iteration')}")
        return arrays

    # Other files

    def write_file(self, name: str, data: bytes) -> pathlib.Path:
        """Writes a file of the caller's (a plot, a page), at once or not at all."""
        path = self.path(name)
        if name.split("/", maxsplit=1)[0] in OWN:
            raise StoreError(f"{name} is the store's own: choose another name")
        self._change(name)
        with disk.writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        disk.write_bytes(path, data)
        return path

    def write_json(self, name: str, obj: Mapping[str, Any]) -> pathlib.Path:
        return self.write_file(name, sealed.encode(obj))

    def read_json(self, name: str) -> dict[str, Any]:
        """A JSON file of the caller's."""
        return sealed.decode(self._read(name), self.path(name))

    def _read(self, name: str) -> bytes:
        """A file's content, checked if the manifest covers it."""
        expected = self._manifest.files.get(name)
        return disk.check_fingerprint(self.path(name), expected) if expected else disk.read_bytes(self.path(name))

    # Manifest

    def amend(self, config: Mapping[str, Any], text: str) -> None:
        """Replaces the run's configuration. The one before is kept in `history/`; the manifest says why, under `changes`."""
        before = len(self._manifest.body.get("changes", []))
        self.write_file(f"{HISTORY}/config-{before + 1}.json", sealed.encode(self.config))
        data = sealed.encode(dict(config))
        self._manifest.amend(data, text)
        self.config = sealed.decode(data, self.folder / CONFIG)

    def finish(self) -> None:
        """Marks the run as finished and adds the checksum of every file that has none in the manifest yet."""
        self._require_lock()
        self._metrics.sync()
        new = [name for name in self._names() if name not in self._manifest.files]
        self._manifest.finish({name: disk.fingerprint(disk.read_bytes(self.path(name))) for name in new})

    def _names(self) -> list[str]:
        """Files of the folder that a manifest can cover."""
        names = []
        for parent, folders, files in os.walk(self.folder):
            folders[:] = [name for name in folders if not name.startswith((disk.TEMPORARY, disk.REPLACED))]
            paths = [pathlib.Path(parent, name) for name in files]
            names += [path.relative_to(self.folder).as_posix() for path in paths if not path.is_symlink()]
        return sorted(name for name in names if name not in {MANIFEST, LOCK})

    def verify(self) -> None:
        """Reads everything; raises an error that lists all that is damaged."""
        problems = []

        def attempt(check: Callable, *arguments: Any) -> Any:
            try:
                return check(*arguments)
            except StoreError as error:
                problems.append(str(error))

        for name, expected in self._manifest.files.items():
            attempt(lambda name, expected: disk.check_fingerprint(self.path(name), expected), name, expected)
        attempt(checkpoint.read_index, self._checkpoints, self.id)
        for step in self.steps():
            record = attempt(checkpoint.read_record, self._checkpoints, self.id, step)
            if record is not None:
                attempt(checkpoint.read_state, self._checkpoints, record)
                attempt(self._metrics.check, record.metrics)
        if policy.exists(self.folder):
            attempt(self.load_policy)
        if problems:
            raise DamagedError(f"{self.folder} is damaged: " + "; ".join(dict.fromkeys(problems)))

    def _change(self, *names: str) -> None:
        """Before files change: requires the lock, and takes them out of the manifest."""
        self._require_lock()
        self._manifest.uncover(*names)

    def _require_lock(self) -> None:
        if self._lock is None:
            raise StoreError(f"{self.folder} is open for reading: `open_run(path, write=True)` opens it for writing")

    def _warn(self, text: str) -> None:
        """Warns, and notes it in the manifest."""
        if self._on_warning is None:
            warnings.warn(text, StoreWarning, stacklevel=4)
        else:
            self._on_warning(text)
        with contextlib.suppress(StoreError):  # a full disk must not keep a run from being read
            self._manifest.add_incident(text, write=self._lock is not None)
