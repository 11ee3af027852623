"""What TensorBoard reads: the files of two sessions, by a reader of records written from the format's description."""

import math
import struct
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from tqpo.training.loggers import Loggers

SEEDS = (3, 4)


def loggers(tmp_path, step, said):
    """Both seeds' files of a session that begins after this step; messages go to `said`."""
    folder = SimpleNamespace(path=lambda name: tmp_path / name, id="run")
    prepared = SimpleNamespace(job=SimpleNamespace(seeds=SEEDS))
    return Loggers(folder, prepared, step, None, said.append)  # type: ignore[arg-type]


def events(path):
    """Length (uint64), its checksum (uint32), the message, its checksum."""
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2", reason="needs tensorboardX")
    data, at = path.read_bytes(), 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        yield event_pb2.Event.FromString(data[at + 12 : at + 12 + length])
        at += 16 + length


def scalars(event):
    return {value.tag: value.simple_value for value in event.summary.value}


def test_a_session_and_one_that_resumes(tmp_path):
    pytest.importorskip("tensorboardX", reason="needs tensorboardX")
    said = []
    first = loggers(tmp_path, 0, said)
    first.write(
        10**10, {"return": np.array([[0.0, 0.0], [1.5, -2.0]]), "cost": np.array([[[1.0, 2.0], [math.nan, 1e300]]])}
    )
    first.close()
    second = loggers(tmp_path, 10**10, said)
    second.write(10**10 + 5, {"return": np.array([[7.0, 8.0]])})
    second.close()
    assert not said
    for seed, value, costs in zip(SEEDS, (1.5, -2.0), ((1.0, 2.0), (math.nan, math.inf)), strict=True):
        earlier, later = sorted((tmp_path / f"events/seed-{seed}").iterdir())
        version, point = events(earlier)
        assert version.file_version == "brain.Event:2"
        assert point.step == 10**10
        np.testing.assert_equal(scalars(point), {"return": value, "cost/0": costs[0], "cost/1": costs[1]})
        _, start, point = events(later)
        assert start.step == 10**10 + 1  # TensorBoard drops this step and those after it
        assert start.session_log.status == start.session_log.START
        assert (point.step, scalars(point)) == (10**10 + 5, {"return": 7.0 if seed == 3 else 8.0})


@pytest.mark.parametrize("trouble", ["not installed", "full disk"])
def test_training_goes_on_without_tensorboard(tmp_path, monkeypatch, trouble):
    if trouble == "full disk":
        writer = pytest.importorskip("tensorboardX.record_writer", reason="needs tensorboardX")
        monkeypatch.setattr(writer, "open_file", lambda _: open("/dev/full", "wb"))  # noqa: SIM115
    else:
        monkeypatch.setitem(sys.modules, "tensorboardX.event_file_writer", None)
    said = []
    left_out = loggers(tmp_path, 0, said)
    for step in range(3):
        left_out.write(step, {"return": np.array([[1.0, 2.0]])})
    left_out.close()
    (message,) = said
    assert "TensorBoard failed and is left out" in message
    assert ("tensorboardX" if trouble == "not installed" else "No space left") in message
