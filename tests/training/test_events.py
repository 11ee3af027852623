"""Event files, read by a small reader of our own; the layout was checked against TensorBoard's reader too."""

import math
import os
import struct

import pytest

from tqpo.errors import StoreError
from tqpo.training.events import EventWriter, crc32c, varint


def slow_crc32c(data: bytes) -> int:
    """Bit by bit, from the definition."""
    crc = 0xFFFFFFFF
    for byte in data:
        for i in range(8):
            bit = (crc ^ (byte >> i)) & 1
            crc = (crc >> 1) ^ (0x82F63B78 * bit)
    return crc ^ 0xFFFFFFFF


def unmask(masked: int) -> int:
    rotated = (masked - 0xA282EAD8) % 2**32
    return (rotated << 15 | rotated >> 17) % 2**32


def records(path):
    data, at = path.read_bytes(), 0
    while at < len(data):
        length, check = struct.unpack_from("<QI", data, at)
        assert unmask(check) == slow_crc32c(data[at : at + 8])
        body = data[at + 12 : at + 12 + length]
        assert unmask(*struct.unpack_from("<I", data, at + 12 + length)) == slow_crc32c(body)
        yield parse(body)
        at += 16 + length


def parse(message: bytes) -> list[tuple[int, object]]:
    """(field number, value) of a protobuf message."""
    fields, at = [], 0

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def take(n):
        nonlocal at
        at += n
        return message[at - n : at]

    while at < len(message):
        tag = number()
        kinds = {0: number, 1: lambda: struct.unpack("<d", take(8))[0], 5: lambda: struct.unpack("<f", take(4))[0]}
        fields.append((tag >> 3, kinds.get(tag & 7, lambda: take(number()))()))
    return fields


def scalars(event) -> dict[str, float]:
    values = [dict(parse(value)) for _, value in parse(dict(event)[5])]
    return {value[1].decode(): value[2] for value in values}


def test_crc_of_known_strings():
    assert crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C
    assert crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, B.4


def test_varint():
    assert [varint(n) for n in (0, 127, 128, 300)] == [b"\0", b"\x7f", b"\x80\x01", b"\xac\x02"]
    assert varint(-1) == b"\xff" * 9 + b"\x01"


def test_scalars_come_back(tmp_path):
    with EventWriter(tmp_path / "seed-0") as writer:
        writer.scalars(5, {"return": 1.5, "λ": 0.25}, wall_time=12.0)
        writer.scalars(10**10, {"return": math.nan, "big": 1e300})
    version, first, second = records(writer.path)
    assert dict(version)[3] == b"brain.Event:2"
    assert dict(first)[1] == 12.0
    assert dict(first)[2] == 5
    assert scalars(first) == {"return": 1.5, "λ": 0.25}
    assert dict(second)[2] == 10**10
    assert math.isnan(scalars(second)["return"])
    assert scalars(second)["big"] == math.inf


def test_a_resumed_session_has_its_own_later_file_and_purges(tmp_path):
    first = EventWriter(tmp_path)
    first.scalars(1, {"x": 1.0})
    first.flush()
    second = EventWriter(tmp_path, purge_step=1)
    second.close()
    first.close()
    assert [p.name for p in sorted(tmp_path.iterdir())] == [first.path.name, second.path.name]
    start = dict(list(records(second.path))[1])
    assert start[2] == 1
    assert parse(start[7]) == [(1, 1)]  # SessionLog: status = START


def test_nothing_is_written_before_flush_and_nothing_after_close(tmp_path):
    writer = EventWriter(tmp_path)
    size = writer.path.stat().st_size
    writer.scalars(1, {"x": 1.0})
    assert writer.path.stat().st_size == size
    writer.close()
    assert len(list(records(writer.path))) == 2
    eager = EventWriter(tmp_path, flush_every=0)
    eager.scalars(1, {"x": 1.0})
    assert len(list(records(eager.path))) == 2
    eager.close()
    writer.close()
    with pytest.raises(StoreError, match="is closed"):
        writer.flush()


def test_a_full_disk_leaves_whole_records_and_nothing_is_lost(tmp_path, monkeypatch):
    writer = EventWriter(tmp_path)
    writer.scalars(1, {"x": 1.0})
    write = os.write

    def full(fd, data):
        write(fd, data[:3])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(StoreError, match=r"No space left on device .* MB free"):
            writer.flush()
    assert len(list(records(writer.path))) == 1
    writer.close()
    assert len(list(records(writer.path))) == 2
