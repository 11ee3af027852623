"""A run folder after a crash, a power cut or a full disk at every point where it is written to."""

import errno
import gc
import os
import pathlib
import resource
import signal
import subprocess
import sys

import numpy as np
import pytest
import stores
from stores import chunk_rows, identical, leftovers, meta_of, small_state, work

from tqpo import provenance, store
from tqpo.errors import StoreError

CALLS = ("write", "fsync", "replace", "rename", "mkdir", "unlink", "rmdir", "ftruncate")  # what changes a disk


@pytest.fixture(autouse=True)
def _quick_provenance(monkeypatch):
    monkeypatch.setattr(provenance, "provenance", lambda: dict(stores.PROVENANCE))


class Crash(BaseException):
    """The process is dead: no handler for errors may run to any effect."""


class Disk:
    """Counts the calls that change the disk and fails at one of them.

    `kill`: at call `at` the process dies; a write gets half of its data out. `cut`: the power fails too, and whatever
    was not synced is gone. `full`: from call `at` on, writes fail as on a full disk, until `room` is made.
    """

    def __init__(self, patch: pytest.MonkeyPatch, mode: str = "count", at: int = 0):
        self.mode, self.at, self.calls, self.room = mode, at, 0, True
        self.unsynced: dict[pathlib.Path, int] = {}  # path → bytes that are safe
        for name in CALLS:
            patch.setattr(os, name, self.wrap(name, getattr(os, name)))

    def wrap(self, name, real):
        def call(*args, **kwargs):
            self.calls += 1
            reached = self.mode != "count" and self.calls >= self.at
            if reached and self.mode == "full":
                if self.room and self.calls > self.at:
                    return self.track(name, real, args, kwargs)
                self.room = False
                if name == "write":
                    real(args[0], args[1][: len(args[1]) // 2])
                if name in ("write", "fsync", "mkdir"):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            elif reached:
                if self.calls == self.at:
                    self.die(name, args)
                raise Crash
            return self.track(name, real, args, kwargs)

        return call

    def track(self, name, real, args, kwargs):
        path = pathlib.Path(os.readlink(f"/proc/self/fd/{args[0]}")) if name in ("write", "fsync") else None
        if name == "fsync":
            self.unsynced.pop(path, None)
            return None  # the real one takes milliseconds
        if name == "write":
            self.unsynced.setdefault(path, path.stat().st_size)
        if name in ("rename", "replace"):
            for p in [p for p in self.unsynced if p.is_relative_to(args[0])]:
                self.unsynced[pathlib.Path(args[1]) / p.relative_to(args[0])] = self.unsynced.pop(p)
        return real(*args, **kwargs)

    def die(self, name, args):
        if name == "write":
            real = os.pwrite  # not one of the calls above
            size = os.fstat(args[0]).st_size
            self.unsynced.setdefault(pathlib.Path(os.readlink(f"/proc/self/fd/{args[0]}")), size)
            real(args[0], args[1][: len(args[1]) // 2], size)
        if self.mode == "cut":
            for path, size in self.unsynced.items():
                if path.exists():
                    os.truncate(path, size)


def finished_as(folder: pathlib.Path, reference: pathlib.Path) -> None:
    assert (folder / "metrics.csv").read_bytes() == (reference / "metrics.csv").read_bytes()
    for name in ("policy.safetensors", "checkpoints/step-000000000600/state.safetensors"):
        assert (folder / name).read_bytes() == (reference / name).read_bytes()
    with store.open_run(folder, write=True) as run:
        run.verify()
        assert run.finished
        assert run.steps() == [400, 600]
    assert not leftovers(folder)


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """A run that was never interrupted, and how many calls it took."""
    folder = tmp_path_factory.mktemp("reference") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(provenance, "provenance", lambda: dict(stores.PROVENANCE))
        disk = Disk(patch)
        work(folder)
    return folder, disk.calls


def check_interrupted(folder: pathlib.Path, saved: list[int], reference: pathlib.Path) -> None:
    """Nothing that was saved is lost, `metrics.csv` is a prefix in whole rows, and no damage is reported."""
    heard = []
    with store.open_run(folder, write=True, on_warning=heard.append) as run:
        assert not leftovers(folder)
        rows = (folder / "metrics.csv").read_bytes() if (folder / "metrics.csv").exists() else b""
        assert (reference / "metrics.csv").read_bytes().startswith(rows)
        assert rows[-1:] in (b"", b"\n")
        if saved:
            state, meta = run.load_checkpoint(small_state(0))
            assert meta["iteration"] in (saved[-1], saved[-1] + 1)
            assert identical(state, small_state(meta["iteration"]))
    assert not heard


@pytest.mark.parametrize("mode", ["kill", "cut"])
def test_a_crash_at_every_point(tmp_path, reference, mode):
    whole, calls = reference
    for at in range(1, calls + 1):
        folder, saved = tmp_path / f"{at}", []
        with pytest.MonkeyPatch.context() as patch:
            Disk(patch, mode, at)
            with pytest.raises(Crash):
                work(folder, saved=saved)
        with pytest.MonkeyPatch.context() as patch:
            Disk(patch)
            if (folder / "manifest.json").exists():
                check_interrupted(folder, saved, whole)
            work(folder, on_warning=lambda text: None if "begins again" in text else pytest.fail(text))
            finished_as(folder, whole)


def cut_short(folder: pathlib.Path) -> None:
    """A `create` that did not come to its last step."""
    store.create(folder, {"cost_limit": 15.0}).close()
    (folder / "manifest.json").unlink()


@pytest.mark.parametrize("mode", ["kill", "cut"])
def test_a_create_may_be_cut_short_twice(tmp_path, mode):
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(patch)
        store.create(tmp_path / "run", {}).close()
    for at in range(1, disk.calls):
        folder = tmp_path / f"{at}"
        cut_short(folder)
        with pytest.MonkeyPatch.context() as patch:
            Disk(patch, mode, at)
            with pytest.raises(Crash):
                store.create(folder, {})
        gc.collect()  # the traceback may still hold the lock
        if not (folder / "manifest.json").exists():
            store.create(folder, {}).close()


def test_an_empty_lock_beside_our_settings_is_left_by_a_create(tmp_path):
    cut_short(tmp_path / "ours")
    os.truncate(tmp_path / "ours/lock", 0)
    store.create(tmp_path / "ours", {}).close()
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/lock").touch()
    (tmp_path / "theirs/config.json").write_text('{"mine": 1}')
    with pytest.raises(StoreError, match="theirs exists and is not empty"):
        store.create(tmp_path / "theirs", {})
    assert (tmp_path / "theirs/config.json").read_text() == '{"mine": 1}'


@pytest.fixture
def little_garbage():
    """What is there already is none: collecting then takes no time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def test_a_crash_while_resuming(tmp_path, reference, little_garbage):
    whole, calls = reference
    for at in range(1, calls // 2):
        folder = tmp_path / f"{at}"
        for mode, moment in (("kill", calls // 3), ("cut", at)):
            with pytest.MonkeyPatch.context() as patch:
                Disk(patch, mode, moment)
                with pytest.raises(Crash):
                    work(folder)
            gc.collect()  # a process that dies drops its lock; here the traceback of the crash may still hold it
        with pytest.MonkeyPatch.context() as patch:
            Disk(patch)
            work(folder, on_warning=pytest.fail)
            finished_as(folder, whole)


def test_a_full_disk_at_every_point(tmp_path, reference):
    whole, calls = reference
    failures = 0
    for at in range(1, calls + 1):
        folder, saved = tmp_path / f"{at}", []
        with pytest.MonkeyPatch.context() as patch:
            disk = Disk(patch, "full", at)
            disk.room = False
            message = None
            try:
                work(folder, saved=saved)
            except StoreError as error:
                message = str(error)
            if message:  # not where only a rename or a removal was left to do
                failures += 1
                assert str(folder) in message
                assert "No space left on device" in message
                assert "MB free" in message
                assert not [name for name in leftovers(folder) if name.startswith(".tmp-")]
            disk.room = True
            if (folder / "manifest.json").exists():
                check_interrupted(folder, saved, whole)
            work(folder, on_warning=lambda text: None if "begins again" in text else pytest.fail(text))
            finished_as(folder, whole)
    assert failures > calls / 2


def test_training_goes_on_after_a_full_disk(tmp_path, monkeypatch):
    """In the same process: rows and checkpoints that did not fit are written once there is room."""
    with store.create(tmp_path / "run", {}) as run:
        run.append_metrics(chunk_rows(1))
        run.save_checkpoint(small_state(1), meta_of(1))
        with monkeypatch.context() as patch:
            disk = Disk(patch, "full", 1)
            disk.room = False
            with pytest.raises(StoreError, match="No space"):
                run.append_metrics(chunk_rows(2))
            with pytest.raises(StoreError, match="No space"):
                run.save_checkpoint(small_state(2), meta_of(2))
        assert run.load_checkpoint(small_state(0))[1] == meta_of(1)
        run.append_metrics(chunk_rows(2))
        run.save_checkpoint(small_state(2), meta_of(2))
        run.finish()
        run.verify()
        assert len(run.metrics()["run"]) == 8


@pytest.fixture
def tiny_disk(tmp_path):
    """A real file system of half a megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", folder], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("mounting a tmpfs needs root")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_really_full_disk(tiny_disk):
    """Saves checkpoints of 100 kB until one does not fit; the last that did must load."""
    state = {"x": np.arange(25_000, dtype=np.float32)}
    with store.create(tiny_disk / "run", {}) as run:
        for iteration in range(1, 5):
            run.save_checkpoint({"x": state["x"] * iteration}, meta_of(iteration), keep=9)
        with pytest.raises(StoreError, match=r"cannot write .*run/checkpoints/step-000000001000.* MB free.* intact"):
            run.save_checkpoint({"x": state["x"] * 5}, meta_of(5), keep=9)
    assert not leftovers(tiny_disk)
    found, meta = store.open_run(tiny_disk / "run").load_checkpoint(state)
    assert identical(found, {"x": state["x"] * 4})
    assert meta == meta_of(4)


def test_a_limit_on_file_sizes(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with store.create(tmp_path / "run", {}) as run:
        run.save_checkpoint({"x": np.zeros(1000)}, meta_of(1))
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
        try:
            with pytest.raises(StoreError, match=r"File too large .* intact"):
                run.save_checkpoint({"x": np.zeros(1_000_000)}, meta_of(2))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert run.steps() == [200]
        assert not leftovers(run.folder)


KILLER = """
import os, pathlib, random, shutil, signal, sys, time
sys.path.insert(0, sys.argv[1])
import numpy as np, stores
from tqpo import provenance
provenance.provenance = lambda: dict(stores.PROVENANCE)
big = np.random.default_rng(0).normal(size=(2, 200_000)).astype(np.float32)
stores.small_state = lambda i: stores.Window(big + i, np.array([i], np.int32))
folder, choose, kills = pathlib.Path(sys.argv[2]), random.Random(int(sys.argv[3])), 0
begin = time.monotonic()
stores.work(folder.with_name("reference"))
usual = time.monotonic() - begin
while True:
    child = os.fork()
    if child == 0:
        stores.work(folder)
        os._exit(0)
    if kills < 12:
        time.sleep(choose.uniform(0, 0.6 * usual))
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        kills += 1
    elif kills >= 12 or status:
        break
    else:
        shutil.rmtree(folder)  # it was faster: once more
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_kill_9_at_random_moments(tmp_path):
    """Processes that die for real, a dozen times, some while they write; the last one ends the run."""
    here = str(pathlib.Path(__file__).parents[1] / "support")
    command = [sys.executable, "-W", "ignore", "-c", KILLER, here, str(tmp_path / "run"), "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    finished_as(tmp_path / "run", tmp_path / "reference")


def test_a_killed_writer_gives_its_lock_back(tmp_path):
    store.create(tmp_path / "run", {}).close()
    script = (
        "import fcntl, sys, time; f = open(sys.argv[1], 'r+'); fcntl.flock(f, fcntl.LOCK_EX); "
        "f.truncate(0); f.write('garbage'); f.flush(); print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", script, tmp_path / "run/lock"], stdout=subprocess.PIPE)
    try:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(StoreError, match="written to by another process"):
            store.open_run(tmp_path / "run", write=True)
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        holder.stdout.close()
    store.open_run(tmp_path / "run", write=True).close()
