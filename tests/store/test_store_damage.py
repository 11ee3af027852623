"""Random damage to a run folder: a typed error or a loud fall-back to a state that was really saved, nothing else."""

import json
import os
import pathlib
import random
import shutil

import numpy as np
import pytest
import stores
from stores import chunk_rows, identical, meta_of, small_state

from tqpo import provenance, store
from tqpo.errors import StoreError
from tqpo.store import sealed

LAST = 4  # checkpoints
ROUNDS = 30  # for each of four batches, finished and running: 240 in all


@pytest.fixture(scope="module", params=["finished", "running"])
def pristine(request, tmp_path_factory):
    """A run with four checkpoints, a policy, a plot; and another run to take files from."""
    folder = tmp_path_factory.mktemp("pristine")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(provenance, "provenance", lambda: dict(stores.PROVENANCE))
        patch.setattr(os, "fsync", lambda fd: None)
        for name, seed in (("run", 0), ("other", 50)):
            with store.create(folder / name, {"limit": 15.0, "seed": seed}) as run:
                for i in range(1, LAST + 1):
                    run.append_metrics(chunk_rows(i + seed))
                    run.save_checkpoint(small_state(i + seed), meta_of(i), keep=LAST)
                run.save_policy({"w": small_state(LAST + seed).values}, {"task": "Toy"})
                run.write_file("plots/curve.png", b"a picture" * 20)
                if request.param == "finished":
                    run.finish()
    return folder


def contents(folder: pathlib.Path) -> dict[str, bytes | None]:
    """Everything but the lock; None for what is not a plain file or folder."""
    paths = [p for p in folder.rglob("*") if p.name != "lock" and (p.is_symlink() or not p.is_dir())]
    return {
        p.relative_to(folder).as_posix(): None if p.is_symlink() or not p.is_file() else p.read_bytes() for p in paths
    }


def files(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file() and not p.is_symlink() and p.name != "lock")


def flip(rng, path, folder):
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice([1, 1, 1, 8])):
        if data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def truncate(rng, path, folder):
    os.truncate(path, rng.randrange(path.stat().st_size + 1))


def extend(rng, path, folder):
    path.write_bytes(path.read_bytes() + rng.randbytes(rng.randrange(1, 50)))


def delete(rng, path, folder):
    path.unlink()


def delete_folder(rng, path, folder):
    shutil.rmtree(rng.choice([p for p in folder.rglob("*") if p.is_dir()]))


def swap(rng, path, folder):
    """With any file, or with its namesake in another checkpoint."""
    alike = [p for p in files(folder) if p.name == path.name] if rng.random() < 0.7 else files(folder)
    other = rng.choice(alike)
    mine, theirs = path.read_bytes(), other.read_bytes()
    path.write_bytes(theirs)
    other.write_bytes(mine)


def copy_from_other_run(rng, path, folder):
    other = folder.parent / "other" / path.relative_to(folder)
    if other.exists():
        shutil.copy(other, path)


def swap_checkpoints(rng, path, folder):
    one, two = rng.sample(sorted((folder / "checkpoints").glob("step-*")), 2)
    aside = one.with_name("aside")
    one.rename(aside)
    two.rename(one)
    aside.rename(two)


def rename_checkpoint(rng, path, folder):
    one = rng.choice(sorted((folder / "checkpoints").glob("step-*")))
    one.rename(one.with_name(rng.choice(["step-000000099999", "step-x", "step-000000000100", "STEP-000000000200"])))


def link_out(rng, path, folder):
    outside = folder.parent / "other" / path.relative_to(folder)
    path.unlink()
    path.symlink_to(rng.choice([outside, folder.parent, "nowhere", path.name]))


def replace_by_folder(rng, path, folder):
    path.unlink()
    path.mkdir()


def garbage(rng, path, folder):
    nonsense = [b"", b"{}", b"[]", b"null", b"\xff\xfe", b"[" * 50_000, b'{"a": 1', b'{"sha256": "x"}', b"9" * 9999]
    path.write_bytes(rng.choice([*nonsense, rng.randbytes(300)]))


def edit_json(rng, path, folder):
    """As one who knows the format: a valid seal around wrong content (the caller's own content cannot be judged)."""
    path = rng.choice([p for p in files(folder) if p.suffix == ".json"])
    try:
        body = json.loads(path.read_bytes())
        body.pop("sha256", None)
        key = rng.choice(sorted(body.keys() - {"meta", "description", "steps"}))
    except (ValueError, AttributeError, IndexError):
        return
    names = ["../../other/config.json", "/etc/passwd", "checkpoints/../../other/config.json"]
    value = rng.choice([None, 3, "../x", [], {}, {rng.choice(names): {"size": 1, "sha256": "0"}}, -1, [[-1]], "\udcff"])
    if isinstance(body[key], dict) and isinstance(value, dict):
        body[key] |= value
    else:
        body[key] = value
    path.write_bytes(sealed.seal(body) if value != "\udcff" else json.dumps(body).encode())


DAMAGE = [
    flip, truncate, extend, delete, delete_folder, swap, copy_from_other_run, swap_checkpoints, rename_checkpoint,
    link_out, replace_by_folder, garbage, edit_json,
]  # fmt: skip


def probe_state(run: store.Run, heard: list[str], load) -> int | None:
    """The iteration that came back; its state must be the one saved then, and silence means that it is the last one."""
    try:
        found = load(small_state(0))
    except StoreError:
        return None
    assert found is not None, "checkpoints were saved"
    state, meta = found
    assert meta in [meta_of(i) for i in range(1, LAST + 1)]
    assert identical(state, small_state(meta["iteration"]))
    assert heard or meta["iteration"] == LAST
    return meta["iteration"]


def probe_policy(run: store.Run) -> None:
    try:
        arrays, description = run.load_policy()
    except StoreError:
        return
    assert identical(arrays, {"w": small_state(LAST).values})
    assert description == {"task": "Toy"}


def probe_verify(run: store.Run, changed: bool) -> None:
    """Of a finished run, `verify` sees any change to any file."""
    try:
        run.verify()
    except StoreError:
        assert changed
    else:
        assert not changed or not run.finished


def probe(folder: pathlib.Path, good: dict[str, bytes | None]) -> None:
    heard: list[str] = []
    now = contents(folder)
    try:
        reader = store.open_run(folder, on_warning=heard.append)
    except StoreError:
        return
    assert reader.config == {"limit": 15.0, "seed": 0}
    probe_state(reader, heard, reader.load_checkpoint)
    probe_policy(reader)
    probe_verify(reader, any(now.get(name) != good[name] for name in good))
    assert contents(folder) == now, "reading changes nothing"
    heard.clear()
    try:
        writer = store.open_run(folder, write=True, on_warning=heard.append)
    except StoreError:
        return
    with writer:
        iteration = probe_state(writer, heard, writer.resume)
        if iteration is not None:
            rows = (folder / "metrics.csv").read_bytes()
            assert good["metrics.csv"].startswith(rows)
            assert rows.count(b"\n") == 1 + 4 * iteration


@pytest.mark.parametrize("batch", range(4))
def test_random_damage(pristine, tmp_path, monkeypatch, batch):
    monkeypatch.setattr(provenance, "provenance", lambda: dict(stores.PROVENANCE))
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    good, others = contents(pristine / "run"), contents(pristine / "other")
    shutil.copytree(pristine / "other", tmp_path / "other")
    for trial in range(ROUNDS):
        rng = random.Random(1000 * batch + trial)
        folder = tmp_path / "run"
        shutil.copytree(pristine / "run", folder)
        damages = rng.choices(DAMAGE, k=rng.choice([1, 1, 2]))
        for damage in damages:
            if files(folder) and len(list((folder / "checkpoints").glob("step-*"))) > 1:
                damage(rng, rng.choice(files(folder)), folder)
        try:
            probe(folder, good)
        except Exception as error:
            raise AssertionError(f"batch {batch}, trial {trial}: {[d.__name__ for d in damages]}") from error
        assert contents(tmp_path / "other") == others, "nothing outside is touched"
        shutil.rmtree(folder)


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda d: d.__name__)
def test_each_damage_to_the_newest_checkpoint(pristine, tmp_path, monkeypatch, damage):
    """The kind that matters most, for each of its two files."""
    monkeypatch.setattr(provenance, "provenance", lambda: dict(stores.PROVENANCE))
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    shutil.copytree(pristine / "other", tmp_path / "other")
    good = contents(pristine / "run")
    for trial, name in enumerate(("state.safetensors", "checkpoint.json") * 3):
        folder = tmp_path / "run"
        shutil.copytree(pristine / "run", folder)
        damage(random.Random(trial), folder / f"checkpoints/step-{200 * LAST:012d}" / name, folder)
        probe(folder, good)
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("name", "bits"),  # every `bits`-th bit
    [
        ("checkpoints/step-000000000200/state.safetensors", 1),
        ("checkpoints/step-000000000200/checkpoint.json", 7),
        ("policy.safetensors", 1),
        ("policy.json", 7),
        ("manifest.json", 7),
        ("config.json", 1),
    ],
)
def test_flipped_bits_one_by_one(tmp_path, monkeypatch, name, bits):
    """Not a sample: every bit of the data, and one in every byte of the records."""
    monkeypatch.setattr(provenance, "provenance", lambda: {})
    template = {"w": np.float32(0)}
    with store.create(tmp_path / "run", {}) as run:
        run.save_checkpoint({"w": np.float32(1.5)}, meta_of(1))
        run.save_policy({"w": np.float32(2.5)}, {"task": "Toy"})

    def read():
        run = store.open_run(tmp_path / "run", on_warning=lambda text: None)
        return run.load_checkpoint(template)[0]["w"], run.load_policy(template)[0]["w"]

    good = (tmp_path / "run" / name).read_bytes()
    for bit in range(0, 8 * len(good), bits):
        data = bytearray(good)
        data[bit // 8] ^= 1 << bit % 8
        (tmp_path / "run" / name).write_bytes(data)
        with pytest.raises(StoreError):
            read()
    (tmp_path / "run" / name).write_bytes(good)
    assert read() == (1.5, 2.5)
