"""Files that are either whole or absent: atomic writes, checksums, names that stay inside a folder.

A file or folder becomes visible by one rename, after its content is on the disk. Whatever a crash leaves behind starts
with `TEMPORARY` or `REPLACED`; `tidy` clears it away. POSIX only (rename, flock).
"""

import contextlib
import errno
import hashlib
import os
import pathlib
import shutil
import stat
from collections.abc import Iterator
from typing import Any

from tqpo.errors import StoreError

TEMPORARY = ".tmp-"  # not yet or no longer visible
REPLACED = ".old-"  # a folder that another is about to replace
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class DamagedError(StoreError):
    """A file whose content is not what was written."""


class StoreWarning(UserWarning):
    """Something in a run folder was not as it should be, and the work went on without it."""


@contextlib.contextmanager
def writing(path: pathlib.Path) -> Iterator[None]:
    """Turns an `OSError` into a `StoreError` that names the path and the space left."""
    try:
        yield
    except OSError as error:
        message = f"cannot write {path}: {error.strerror or error} ({free_space(path)})"
        if error.errno in FULL:
            message += "; what was saved before is intact: make room and resume"
        raise StoreError(message) from error


def free_space(path: pathlib.Path) -> str:
    with contextlib.suppress(OSError, StopIteration):
        folder = next(parent for parent in path.absolute().parents if parent.exists())
        return f"{shutil.disk_usage(folder).free / 1e6:.1f} MB free on its disk"
    return "free space unknown"


def write_bytes(path: pathlib.Path, data: bytes) -> None:
    """Replaces a file at once; on failure the old one stays."""
    temporary = path.with_name(TEMPORARY + path.name)
    with writing(path), removing(temporary):
        write_synced(temporary, data)
        os.replace(temporary, path)
        sync_folder(path.parent)


def write_folder(path: pathlib.Path, files: dict[str, bytes]) -> None:
    """Makes a folder of files visible at once, in place of an old one if there is one."""
    temporary = path.with_name(TEMPORARY + path.name)
    with writing(path), removing(temporary):
        remove(temporary)
        os.mkdir(temporary)
        for name, data in files.items():
            write_synced(temporary / name, data)
        sync_folder(temporary)
        _swap_in(temporary, path)


def _swap_in(temporary: pathlib.Path, path: pathlib.Path) -> None:
    """A folder with files cannot be renamed over: the old one is moved aside, and `tidy` restores it after a crash."""
    aside = path.with_name(REPLACED + path.name)
    replaces = os.path.lexists(path)
    if replaces:
        remove(aside)
        os.rename(path, aside)
    try:
        os.rename(temporary, path)
    except OSError:
        if replaces:
            os.rename(aside, path)
        raise
    sync_folder(path.parent)
    remove(aside)


def drop_folder(path: pathlib.Path) -> None:
    """Makes a folder invisible at once, then removes it."""
    aside = path.with_name(TEMPORARY + path.name)
    with writing(path):
        remove(aside)
        os.rename(path, aside)
        remove(aside)


@contextlib.contextmanager
def removing(temporary: pathlib.Path) -> Iterator[None]:
    """Leaves no temporary behind when the body fails."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            remove(temporary)
        raise


def remove(path: pathlib.Path) -> None:
    """Removes a file, link or folder; never follows a link."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def opened(path: pathlib.Path, flags: int) -> Iterator[int]:
    """A descriptor of a file or folder; never follows a link."""
    fd = os.open(path, flags | os.O_NOFOLLOW, 0o644)
    try:
        yield fd
    finally:
        os.close(fd)


def write_synced(path: pathlib.Path, data: bytes) -> None:
    with opened(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as fd:
        write_all(fd, data)
        os.fsync(fd)


def write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def append_all(fd: int, data: bytes) -> None:
    """Adds to the end of a file: all of it or nothing, as long as the process lives."""
    size = os.lseek(fd, 0, os.SEEK_END)
    try:
        write_all(fd, data)
    except BaseException:
        os.ftruncate(fd, size)
        raise


def sync_folder(path: pathlib.Path) -> None:
    """Flushes the names in a folder to the disk."""
    with opened(path.resolve(), os.O_RDONLY | os.O_DIRECTORY) as fd:
        os.fsync(fd)


def tidy(folder: pathlib.Path) -> None:
    """Clears away what a crash left behind. Only for the holder of the lock."""
    with writing(folder):
        for parent, folders, files in os.walk(folder):
            for name in [*folders, *files]:
                path = pathlib.Path(parent, name)
                if name.startswith(REPLACED) and not os.path.lexists(whole := path.with_name(name[len(REPLACED) :])):
                    os.rename(path, whole)
                elif name.startswith((TEMPORARY, REPLACED)):
                    remove(path)
            folders[:] = [name for name in folders if not name.startswith((TEMPORARY, REPLACED))]


def read_bytes(path: pathlib.Path) -> bytes:
    """A plain file's content; a link, a pipe or a folder in its place is damage."""
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise DamagedError(f"{path} is not a plain file")
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            return file.read()
    except FileNotFoundError:
        raise DamagedError(f"{path} is missing") from None
    except OSError as error:
        raise DamagedError(f"cannot read {path}: {error.strerror or error}") from error


def inside(root: pathlib.Path, name: Any) -> pathlib.Path:
    """The path of `name` below `root`, or an error for any name or link that could lead elsewhere."""
    parts = name.split("/") if isinstance(name, str) and name.isprintable() and "\\" not in name else [""]
    if any(part in {"", ".", ".."} or part.startswith((TEMPORARY, REPLACED)) or len(part) > 200 for part in parts):
        raise StoreError(f"{name!r} does not name a file inside {root}: use a relative name without '..'")
    path = root
    for part in parts:
        path = path / part
        if path.is_symlink():
            raise StoreError(f"{path} is a link: a run folder holds plain files and folders only")
    return path


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def fingerprint(data: bytes) -> dict[str, Any]:
    return {"size": len(data), "sha256": digest(data)}


def check_fingerprint(path: pathlib.Path, expected: Any) -> bytes:
    """The file's content if it is what was written."""
    data = read_bytes(path)
    if fingerprint(data) != expected:
        raise DamagedError(f"{path} is damaged: its SHA-256 or size is not what was recorded when it was written")
    return data
