"""`metrics.csv`: one whole row per run and iteration, appended between chunks.

A checkpoint holds a `Mark` of the file as it was then. A resumed run cuts the file back to the mark of its checkpoint,
so that rows are never repeated and the file ends as if nothing had happened.
"""

import hashlib
import math
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tqpo.errors import StoreError
from tqpo.store import disk
from tqpo.store.disk import DamagedError

LEADING = ("run", "seed", "iteration", "step")


class Mark(NamedTuple):
    """A prefix of the file."""

    rows: int
    size: int  # bytes
    sha256: str

    @classmethod
    def of(cls, stored: Any, path: pathlib.Path) -> "Mark":
        """From the JSON of a record."""
        if not isinstance(stored, dict) or stored.keys() != set(cls._fields) or not isinstance(stored["size"], int):
            raise DamagedError(f"{path} has no mark of metrics.csv")
        return cls(**stored)


EMPTY = Mark(0, 0, disk.digest(b""))


def rows_of_chunk(
    metrics: Mapping[str, np.ndarray], seeds: Sequence[int], start: int, steps: int
) -> list[dict[str, Any]]:
    """Rows from a chunk's arrays [iterations, R, …], after `start` iterations of `steps` environment steps each.

    A metric with more than one entry per run gets a column for each: `name.0`, `name.1`.
    """
    columns = {name: np.asarray(x).reshape(*x.shape[:2], -1) for name, x in metrics.items()}  # [iterations, R, entries]
    flat = {
        name if x.shape[-1] == 1 else f"{name}.{entry}": x[:, :, entry]
        for name, x in columns.items()
        for entry in range(x.shape[-1])
    }
    length = len(next(iter(flat.values()), ()))
    return [
        {"run": run, "seed": seed, "iteration": start + i + 1, "step": (start + i + 1) * steps}
        | {name: x[i, run] for name, x in flat.items()}
        for i in range(length)
        for run, seed in enumerate(seeds)
    ]


class MetricsFile:
    """`metrics.csv`, open for appending. Call `load` before the first use."""

    def __init__(self, path: pathlib.Path):
        self.path = path
        self.columns: tuple[str, ...] = ()
        self._set(b"")

    def _set(self, data: bytes) -> None:
        self.columns = columns_of(data, self.path)
        self.rows = max(0, data.count(b"\n") - 1)
        self.size = len(data)
        self._sha = hashlib.sha256(data)

    def load(self, repair: bool) -> None:
        """Goes to the end of the file; with `repair`, cuts off a row that a crash left unfinished."""
        data = disk.read_bytes(self.path) if os.path.lexists(self.path) else b""
        self._set(data[: data.rfind(b"\n") + 1])
        if repair and self.size < len(data):
            self._cut()

    def mark(self) -> Mark:
        return Mark(self.rows, self.size, self._sha.hexdigest())

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Adds rows: all of them, or none if the disk fails. A column that a row does not have is `nan` in it: a run of
        an earlier version may know more of them."""
        rows = list(rows)
        if not rows:
            return
        columns = self.columns or check_columns(tuple(rows[0]))
        text = [] if self.columns else [",".join(columns)]
        for row in rows:
            if unknown := row.keys() - set(columns):
                raise StoreError(f"{self.path}: a row's columns differ: {sorted(unknown)}")
            text.append(",".join(cell(row.get(name, math.nan)) for name in columns))
        data = ("\n".join(text) + "\n").encode()
        with disk.writing(self.path), disk.opened(self.path, os.O_WRONLY | os.O_CREAT) as fd:
            self._check_size(fd)
            disk.append_all(fd, data)
        self.columns = columns
        self.rows += len(rows)
        self.size += len(data)
        self._sha.update(data)

    def _check_size(self, fd: int) -> None:
        if os.fstat(fd).st_size != self.size:
            raise DamagedError(f"{self.path} was changed by someone else: resume the run")

    def check(self, mark: Mark) -> bytes:
        """The prefix that the mark describes, if the file still begins with it."""
        data = disk.read_bytes(self.path)[: mark.size] if mark.size else b""
        if disk.digest(data) != mark.sha256 or len(data) != mark.size:
            raise DamagedError(f"{self.path} is damaged before row {mark.rows}: its SHA-256 is not what was recorded")
        return data

    def rewind(self, mark: Mark) -> None:
        """Cuts the file back to the mark."""
        self._set(self.check(mark))
        self._cut()

    def _cut(self) -> None:
        if not os.path.lexists(self.path):
            return
        with disk.writing(self.path), disk.opened(self.path, os.O_WRONLY) as fd:
            os.ftruncate(fd, self.size)
            os.fsync(fd)

    def sync(self) -> None:
        """Flushes all rows to the disk; a mark in a checkpoint must not be ahead of them."""
        if self.size == 0:
            return
        with disk.writing(self.path), disk.opened(self.path, os.O_RDONLY) as fd:
            os.fsync(fd)
            self._check_size(fd)
            disk.sync_folder(self.path.parent)


def check_columns(columns: tuple[str, ...]) -> tuple[str, ...]:
    """The columns in order, those that name a row first."""
    bad = [name for name in columns if not name or not name.isprintable() or set(name) & set(',"')]
    if bad or set(LEADING) - set(columns):
        raise StoreError(f"columns {list(columns)} cannot be stored: {LEADING} are needed, and no commas or quotes")
    return LEADING + tuple(name for name in columns if name not in LEADING)


def columns_of(data: bytes, path: pathlib.Path) -> tuple[str, ...]:
    try:
        header = data[: data.find(b"\n")].decode()
    except UnicodeDecodeError:
        raise DamagedError(f"{path} is damaged: its header is not text") from None
    return tuple(header.split(",")) if header else ()


def cell(value: Any) -> str:
    """A number in the fewest digits that read back as the same bits of its type."""
    value = value[()] if isinstance(value, np.ndarray) else value
    if isinstance(value, bool | np.bool_ | int | np.integer):
        return str(int(value))
    if isinstance(value, float | np.floating):
        return str(value)
    raise StoreError(f"{value!r} is not a number: metrics.csv holds numbers")


def parse(data: bytes, path: pathlib.Path) -> dict[str, np.ndarray]:
    """Columns of whole rows; a last row without its end is still being written and is left out."""
    columns = columns_of(data, path)
    lines = data[: data.rfind(b"\n") + 1].split(b"\n")[1:-1]
    try:
        table = [tuple(map(float, line.split(b","))) for line in lines]
        cells = list(zip(columns, zip(*table, strict=True), strict=True)) if table else []
        return {name: np.array(column).astype(int if name in LEADING else float) for name, column in cells}
    except ValueError as error:
        raise DamagedError(f"{path} is damaged: {error}") from None
