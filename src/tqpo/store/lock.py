"""One writer per run folder: a lock that the system releases however its holder ends."""

import contextlib
import fcntl
import os
import pathlib
import socket
import warnings
from typing import Any, NoReturn

from tqpo.errors import StoreError
from tqpo.store import disk, sealed
from tqpo.store.disk import DamagedError, StoreWarning

MARK = {"lock": "tqpo run"}
HEAD = sealed.encode(MARK).removesuffix(b"\n}\n")  # what every lock begins with


class LockedError(StoreError):
    """Another process writes here. One on a lost machine counts until the file server releases its lock."""


def take(path: pathlib.Path) -> Any:
    """An open file that holds the lock until it is closed or the process ends, however it ends."""
    with disk.writing(path):
        file = open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644), "r+b", buffering=0)  # noqa: SIM115
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _refuse(path, file)
    except OSError as error:
        warnings.warn(f"{path}: this disk has no locks ({error}); start one writer only", StoreWarning, stacklevel=3)
    with contextlib.suppress(OSError):  # who holds it is only a courtesy
        holder = sealed.encode({**MARK, "pid": os.getpid(), "host": socket.gethostname()})
        os.write(file.fileno(), holder)  # over the last holder's, so that the head is never gone
        os.ftruncate(file.fileno(), len(holder))
    return file


def is_lock(path: pathlib.Path) -> bool:
    """Whether this is a lock of ours, or what a crash left of the first one: a part of its head, or nothing."""
    try:
        return HEAD.startswith(disk.read_bytes(path)[: len(HEAD)])
    except DamagedError:
        return False


def _refuse(path: pathlib.Path, file: Any) -> NoReturn:
    with file:
        try:
            holder = sealed.decode(file.read(1000), path)
            who = f"process {holder['pid']} on {holder['host']}"
        except (StoreError, KeyError):
            who = "another process"
    raise LockedError(f"{path.parent} is being written to by {who}: wait for it or stop it, then try again")
