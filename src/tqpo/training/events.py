"""TensorBoard event files for scalars, without TensorFlow or protobuf.

A file is a sequence of records: length (uint64), its masked CRC-32C, an `Event` message, its masked CRC-32C. Of the
messages (tensorboard/compat/proto/{event,summary}.proto) these fields are written:

| message | field | number | type |
|---|---|---|---|
| Event | wall_time, step | 1, 2 | double, int64 |
| Event | file_version, summary, session_log | 3, 5, 7 | string, Summary, SessionLog |
| Summary | value: tag, simple_value | 1: 1, 2 | string, float |
| SessionLog | status (START = 1) | 1 | enum |

Every session writes a file of its own, so a record torn by a crash is never written after. A session that resumes begins
with START at its first step, which makes TensorBoard drop what earlier files say of that step and later ones.
"""

import os
import pathlib
import re
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from tqpo.errors import StoreError
from tqpo.store import disk

PREFIX = "events.out.tfevents."
VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5  # wire types of protobuf


def _crc_table() -> tuple[int, ...]:
    """CRC-32C (Castagnoli, reflected polynomial 0x82F63B78) of every byte."""
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return tuple(table)


CRC_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = CRC_TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def masked_crc(data: bytes) -> int:
    """Rotated by 15 bits and shifted, so that a CRC of data with CRCs in it stays meaningful."""
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", masked_crc(data))


def varint(value: int) -> bytes:
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, wire_type: int, payload: bytes) -> bytes:
    length = varint(len(payload)) if wire_type == LENGTH else b""
    return varint(number << 3 | wire_type) + length + payload


def event(wall_time: float, step: int, *content: bytes) -> bytes:
    return field(1, FIXED64, struct.pack("<d", wall_time)) + field(2, VARINT, varint(step)) + b"".join(content)


def summary(scalars: Mapping[str, Any]) -> bytes:
    values = []
    for name, value in scalars.items():
        with np.errstate(over="ignore"):
            number = np.asarray(value, np.float32).reshape(()).tobytes()
        values.append(field(1, LENGTH, field(1, LENGTH, name.encode()) + field(2, FIXED32, number)))
    return field(5, LENGTH, b"".join(values))


class EventWriter:
    """Writes one event file. `purge_step`: the first step that a resumed session may write again."""

    def __init__(self, folder: str | os.PathLike, purge_step: int | None = None, flush_every: float = 10.0):  # s
        folder = pathlib.Path(folder)
        self._flush_every = flush_every
        with disk.writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self.path = folder / f"{PREFIX}{_stamp(folder):010d}.{_host()}.{os.getpid()}.0"
            self._fd: int | None = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        self._buffer = record(event(time.time(), 0, field(3, LENGTH, b"brain.Event:2")))
        if purge_step is not None:
            start = field(7, LENGTH, field(1, VARINT, varint(1)))
            self._buffer += record(event(time.time(), purge_step, start))
        self.flush()

    def scalars(self, step: int, values: Mapping[str, Any], wall_time: float | None = None) -> None:
        """Notes values for a step; they are written when `flush_every` seconds have passed, or by `flush`."""
        self._buffer += record(event(time.time() if wall_time is None else wall_time, int(step), summary(values)))
        if time.monotonic() - self._flushed > self._flush_every:
            self.flush()

    def flush(self) -> None:
        """Writes what is waiting, in whole records; on failure it keeps waiting."""
        if self._fd is None:
            raise StoreError(f"{self.path} is closed: a new session needs a new EventWriter")
        with disk.writing(self.path):
            disk.append_all(self._fd, self._buffer)
        self._buffer = b""
        self._flushed = time.monotonic()

    def close(self) -> None:
        if self._fd is None:
            return
        try:
            self.flush()
        finally:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> "EventWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _stamp(folder: pathlib.Path) -> int:
    """Seconds, later than those of every file there: TensorBoard reads files in the order of their names."""
    stamps = [int(match[1]) for p in folder.iterdir() if (match := re.match(re.escape(PREFIX) + r"(\d{10})\.", p.name))]
    return max([int(time.time()), *(stamp + 1 for stamp in stamps)])


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname()) or "host"
