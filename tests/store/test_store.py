"""Runs on disk: round trips, refusals, locks, the run folder."""

import csv
import os
import pathlib
import socket

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
import stores
from stores import chunk_rows, identical, leftovers, meta_of, rich_state, small_state

from tqpo import provenance, store
from tqpo.errors import ConfigError, StoreError
from tqpo.store import disk, sealed


@pytest.fixture(autouse=True)
def _quick_provenance(monkeypatch):
    monkeypatch.setattr(provenance, "provenance", lambda: dict(stores.PROVENANCE))


@pytest.fixture
def run(tmp_path):
    with store.create(tmp_path / "run", {"task": "Toy"}) as made:
        yield made


def reseal(path: pathlib.Path, **changes) -> None:
    """Edits sealed JSON as someone who knows the format could."""
    body = sealed.decode(path.read_bytes(), path)
    del body["sha256"]
    path.write_bytes(sealed.seal(body | changes))


def test_state_comes_back_bit_for_bit(run):
    state = rich_state(3)
    run.save_checkpoint(state, {"step": 12000, "best": 0.1, "note": "λ"})
    assert (run.folder / "checkpoints/step-000000012000/state.safetensors").is_file()
    found, meta = store.open_run(run.folder).load_checkpoint(rich_state(4))
    assert identical(found, state)
    assert meta == {"step": 12000, "best": 0.1, "note": "λ"}


def test_template_may_be_shapes_only(run):
    state = {"key": jax.random.split(jax.random.key(0), 3), "x": jnp.arange(3.0)}
    run.save_checkpoint(state, meta_of(1))
    found, _ = run.load_checkpoint(jax.eval_shape(lambda: state))
    assert identical(found, state)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"flags": jnp.zeros(8, bool)}, "flags"),
        ({"flags": jnp.zeros(7, jnp.int32)}, "flags"),
        ({"key": jax.random.key(0, impl="rbg")}, "key"),
        ({"key": jnp.zeros(2, jnp.uint32)}, "key"),
        ({"new": jnp.zeros(1)}, "new"),
        ({"window": None}, "window.count"),
    ],
)
def test_another_template_is_refused_without_falling_back(run, change, named):
    run.save_checkpoint(rich_state(1), meta_of(1))
    run.save_checkpoint(rich_state(2), meta_of(2))
    with pytest.raises(StoreError, match=named):
        run.load_checkpoint(rich_state(1) | change)
    assert not run.manifest["incidents"]


@pytest.mark.parametrize(
    "leaf",
    [
        "text",
        3,
        jnp.zeros(2, jnp.bfloat16),
        np.array(["a"]),
        np.zeros(2, ">f4"),
        np.zeros(2, "m8[s]"),
        np.zeros(2, complex),
        object(),
    ],
)
def test_what_cannot_be_stored_is_refused_before_anything_is_written(run, leaf):
    with pytest.raises(StoreError, match="cannot be stored"):
        run.save_checkpoint({"x": leaf}, meta_of(1))
    assert run.steps() == []


def test_names_that_would_collide_are_refused(run):
    with pytest.raises(StoreError, match="one name"):
        run.save_checkpoint({"a": {"b": jnp.ones(1)}, "a.b": jnp.ones(1)}, meta_of(1))


def test_the_last_few_are_kept(run):
    for iteration in range(1, 7):
        run.save_checkpoint(small_state(iteration), meta_of(iteration), keep=2)
    assert run.steps() == [1000, 1200]
    assert identical(run.load_checkpoint(small_state(0), step=1000)[0], small_state(5))
    with pytest.raises(StoreError, match=r"\[1000, 1200\]"):
        run.load_checkpoint(small_state(0), step=600)


def test_wrong_arguments_of_save(run):
    with pytest.raises(ConfigError, match="step"):
        run.save_checkpoint(small_state(1), {"iteration": 1})
    with pytest.raises(ConfigError, match="keep = 0"):
        run.save_checkpoint(small_state(1), meta_of(1), keep=0)
    run.save_checkpoint(small_state(2), meta_of(2))
    with pytest.raises(StoreError, match="later than step 200"):
        run.save_checkpoint(small_state(1), meta_of(1))


def test_a_step_may_be_saved_again(run):
    run.save_checkpoint(small_state(1), meta_of(1))
    run.save_checkpoint(small_state(2), meta_of(1) | {"again": True})
    state, meta = run.load_checkpoint(small_state(0))
    assert identical(state, small_state(2))
    assert meta["again"]
    assert not leftovers(run.folder)


def test_metrics_have_a_row_per_run_and_iteration(run):
    metrics = {
        "return": np.array([[0.1, 2.0], [np.nan, 1e-8]], np.float32),
        "λ": np.ones((2, 2, 2)),
        "n": np.eye(2) > 0,
    }
    run.append_metrics(store.rows_of_chunk(metrics, seeds=(5, 6), start=10, steps=100))
    with open(run.folder / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["run", "seed", "iteration", "step", "return", "λ.0", "λ.1", "n"]
    assert rows[0] == {
        "run": "0", "seed": "5", "iteration": "11", "step": "1100",
        "return": "0.1", "λ.0": "1.0", "λ.1": "1.0", "n": "1",
    }  # fmt: skip
    found = run.metrics()
    np.testing.assert_array_equal(found["run"], [0, 1, 0, 1])
    np.testing.assert_array_equal(found["return"].astype(np.float32), metrics["return"].ravel())


def test_metrics_refuse_what_would_tear_the_table(run):
    run.append_metrics(chunk_rows(1))
    with pytest.raises(StoreError, match="columns differ"):
        run.append_metrics([{"run": 0, "seed": 0, "iteration": 1, "step": 1, "other": 1.0}])
    with pytest.raises(StoreError, match="not a number"):
        run.append_metrics([chunk_rows(2)[0] | {"return": "1\n2"}])
    assert len(run.metrics()["run"]) == 4
    with open(run.folder / "metrics.csv", "a") as file:
        file.write("0,7,")
    assert len(run.metrics()["run"]) == 4, "a row that is being written is left out"
    with pytest.raises(StoreError, match="changed by someone else"):
        run.append_metrics(chunk_rows(2))


def test_resume_cuts_metrics_back_to_the_checkpoint(run):
    run.append_metrics(chunk_rows(1))
    run.save_checkpoint(small_state(1), meta_of(1))
    then = (run.folder / "metrics.csv").read_bytes()
    run.append_metrics(chunk_rows(2))
    run.close()
    with store.open_run(run.folder, write=True) as again:
        assert again.resume(small_state(0))[1] == meta_of(1)
        assert (run.folder / "metrics.csv").read_bytes() == then
        again.append_metrics(chunk_rows(2))
        assert len(again.metrics()["run"]) == 8
        assert len(again.manifest["sessions"]) == 2


def test_resume_before_the_first_checkpoint_begins_again(run):
    run.append_metrics(chunk_rows(1))
    run.close()
    with store.open_run(run.folder, write=True) as again:
        with pytest.warns(store.StoreWarning, match="begins again"):
            assert again.resume(small_state(0)) is None
        assert again.metrics() == {}


def test_a_damaged_checkpoint_is_passed_over_aloud(run):
    for iteration in (1, 2, 3):
        run.append_metrics(chunk_rows(iteration))
        run.save_checkpoint(small_state(iteration), meta_of(iteration))
    path = run.folder / "checkpoints/step-000000000600/state.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x55")
    run.close()
    with pytest.warns(store.StoreWarning, match="step 600 is not used.*SHA-256"):
        state, meta = store.open_run(run.folder).load_checkpoint(small_state(0))
    assert meta["iteration"] == 2
    heard = []
    with store.open_run(run.folder, write=True, on_warning=heard.append) as again:
        assert identical(again.resume(small_state(0))[0], state)
        assert len(again.metrics()["run"]) == 8
        again.append_metrics(chunk_rows(3))
        again.save_checkpoint(small_state(3), meta_of(3))
        assert identical(again.load_checkpoint(small_state(0))[0], small_state(3))
    assert len(heard) == 2  # not used; moved aside
    assert [x["text"] for x in store.open_run(run.folder).manifest["incidents"]] == heard
    assert (run.folder / "checkpoints/damaged-step-000000000600-1").is_dir()


def test_a_lost_checkpoint_is_noticed(run):
    for iteration in (1, 2):
        run.save_checkpoint(small_state(iteration), meta_of(iteration))
    (run.folder / "checkpoints/step-000000000400").rename(run.folder.parent / "elsewhere")
    with pytest.warns(store.StoreWarning, match=r"lost its checkpoints of steps \[400\]"):
        assert run.load_checkpoint(small_state(0))[1] == meta_of(1)


def test_no_good_checkpoint_is_an_error(run):
    with pytest.raises(StoreError, match="there is none"):
        run.load_checkpoint(small_state(0))
    run.save_checkpoint(small_state(1), meta_of(1))
    (run.folder / "checkpoints/step-000000000200/checkpoint.json").unlink()
    with pytest.warns(store.StoreWarning), pytest.raises(StoreError, match="no good checkpoint"):
        run.load_checkpoint(small_state(0))


def test_damaged_metrics_fall_back_to_where_they_were_good(run):
    for iteration in (1, 2):
        run.append_metrics(chunk_rows(iteration))
        run.save_checkpoint(small_state(iteration), meta_of(iteration))
    run.close()
    os.truncate(run.folder / "metrics.csv", (run.folder / "metrics.csv").stat().st_size - 3)
    heard = []
    with store.open_run(run.folder, write=True, on_warning=heard.append) as again:
        assert again.resume(small_state(0))[1] == meta_of(1)
        assert len(again.metrics()["run"]) == 4
    assert "metrics.csv is damaged before row 8" in heard[0]


def test_policy_round_trip(run):
    with pytest.raises(StoreError, match="no policy yet"):
        run.load_policy()
    layer = rich_state(1)["layers"][0]
    run.save_policy(layer, {"task": "Toy", "obs_size": np.int64(3)})
    arrays, description = store.open_run(run.folder).load_policy()
    assert description == {"task": "Toy", "obs_size": 3}
    assert arrays.keys() == {"weight"}
    assert identical(run.load_policy(layer)[0], layer)


def test_policy_of_another_run_is_refused(run, tmp_path):
    with store.create(tmp_path / "other", {}) as other:
        for each, value in ((run, 1.0), (other, 2.0)):
            each.save_policy({"w": np.full(3, value)}, {})
    (run.folder / "policy.safetensors").write_bytes((other.folder / "policy.safetensors").read_bytes())
    with pytest.raises(StoreError, match="damaged"):
        run.load_policy()
    (run.folder / "policy.json").write_bytes((other.folder / "policy.json").read_bytes())
    with pytest.raises(StoreError, match="belongs to run"):
        run.load_policy()


def test_files_swapped_between_checkpoints_are_noticed(run):
    for iteration in (1, 2):
        run.save_checkpoint(small_state(iteration), meta_of(iteration))
    one, two = (run.folder / "checkpoints" / f"step-{step:012d}" for step in (200, 400))
    one.rename(one.with_name("x"))
    two.rename(one)
    one.with_name("x").rename(two)
    with pytest.warns(store.StoreWarning), pytest.raises(StoreError, match="belongs to step 200"):
        run.load_checkpoint(small_state(0))


def test_finish_covers_everything_and_verify_reads_it(run):
    run.append_metrics(chunk_rows(1))
    run.save_checkpoint(small_state(1), meta_of(1))
    run.save_policy({"w": np.ones(3)}, {})
    run.write_file("plots/a.png", b"picture")
    run.write_json("evaluation.json", {"x": [1.5, float("inf")]})
    run.finish()
    assert set(run.manifest["files"]) == {
        "checkpoints/index.json", "checkpoints/step-000000000200/checkpoint.json",
        "checkpoints/step-000000000200/state.safetensors", "config.json", "evaluation.json", "metrics.csv",
        "plots/a.png", "policy.json", "policy.safetensors",
    }  # fmt: skip
    run.verify()
    assert run.finished
    assert run.read_json("evaluation.json") == {"x": [1.5, float("inf")]}
    (run.folder / "plots/a.png").write_bytes(b"Picture")
    run.finish()
    with pytest.raises(StoreError, match=r"plots/a\.png is damaged"):
        run.verify()


def test_a_finished_run_can_be_added_to(run):
    run.append_metrics(chunk_rows(1))
    run.save_checkpoint(small_state(1), meta_of(1))
    run.finish()
    run.close()
    with store.open_run(run.folder, write=True) as again:
        again.write_json("evaluation.json", {"x": 1})
        assert not store.open_run(run.folder).finished
        again.finish()
        again.verify()
        assert again.resume(small_state(0))[1] == meta_of(1)
        again.append_metrics(chunk_rows(2))
        again.save_checkpoint(small_state(2), meta_of(2))
        again.finish()
        again.verify()
    store.open_run(run.folder).verify()


def test_the_manifest_says_where_it_comes_from(tmp_path, monkeypatch):
    monkeypatch.undo()
    with store.create(tmp_path / "run", {}) as run:
        session = run.manifest["sessions"][0]
    assert session["versions"]["jax"] == jax.__version__
    assert session["hardware"]["platform"] == "cpu"


def test_config_is_reloadable(tmp_path):
    config = {"task": "Toy", "limit": float("inf"), "sizes": [1, 2], "λ": None, "x": 0.1}
    store.create(tmp_path / "run", config).close()
    assert store.open_run(tmp_path / "run").config == config


def test_an_existing_folder_is_refused_and_left_alone(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/config.json").write_text("mine")
    (tmp_path / "full/lock").write_text("mine too")
    with pytest.raises(StoreError, match="full exists and is not empty: choose"):
        store.create(tmp_path / "full", {})
    assert (tmp_path / "full/config.json").read_text() == "mine"
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StoreError, match="is a file"):
        store.create(tmp_path / "file", {})
    store.create(tmp_path / "run", {}).close()
    with pytest.raises(StoreError, match=r"already holds a run.*resume"):
        store.create(tmp_path / "run", {})
    (tmp_path / "empty").mkdir()
    store.create(tmp_path / "empty", {}).close()


def test_a_config_that_is_not_json_leaves_no_folder(tmp_path):
    with pytest.raises(StoreError, match="JSON"):
        store.create(tmp_path / "run", {"f": print})
    assert not (tmp_path / "run").exists()


def test_what_is_not_a_run_is_refused(tmp_path):
    with pytest.raises(StoreError, match="does not exist"):
        store.open_run(tmp_path / "nothing")
    (tmp_path / "file").write_text("text")
    with pytest.raises(StoreError, match="is a file"):
        store.open_run(tmp_path / "file")
    with pytest.raises(StoreError, match="not a run"):
        store.open_run(tmp_path)
    (tmp_path / "manifest.json").write_text("[" * 100_000)
    with pytest.raises(StoreError, match="not readable as JSON"):
        store.open_run(tmp_path)
    (tmp_path / "manifest.json").write_bytes(sealed.seal({"format": "tqpo-run-99"}))
    with pytest.raises(StoreError, match="tqpo-run-99"):
        store.open_run(tmp_path)


def test_one_writer_at_a_time(run):
    with pytest.raises(StoreError, match=f"written to by process {os.getpid()} on {socket.gethostname()}"):
        store.open_run(run.folder, write=True)
    reader = store.open_run(run.folder)
    for change in (
        lambda: reader.append_metrics(chunk_rows(1)),
        lambda: reader.save_checkpoint(small_state(1), meta_of(1)),
        lambda: reader.resume(small_state(0)),
        reader.finish,
    ):
        with pytest.raises(StoreError, match="open for reading"):
            change()
    run.close()
    store.open_run(run.folder, write=True).close()


def test_names_stay_inside_the_folder(run, tmp_path):
    for name in ("../x.json", "/etc/x.json", "a/../../x", "", "a//b", ".", "a\\b", "a\0b", ".tmp-x", "x" * 300, None):
        with pytest.raises(StoreError, match="does not name a file inside"):
            run.write_json(name, {})
    for name in ("config.json", "manifest.json", "checkpoints/x.json", "lock"):
        with pytest.raises(StoreError, match="store's own"):
            run.write_json(name, {})
    (run.folder / "out").symlink_to(tmp_path)
    with pytest.raises(StoreError, match="is a link"):
        run.write_json("out/x.json", {})


def test_names_in_a_manifest_stay_inside_the_folder(run, tmp_path):
    (tmp_path / "secret").write_text("secret")
    run.close()
    files = store.open_run(run.folder).manifest["files"]
    for name in ("../secret", str(tmp_path / "secret"), "plots/../../secret"):
        reseal(run.folder / "manifest.json", files=files | {name: files["config.json"]})
        with pytest.raises(StoreError, match="does not name a file"):
            store.open_run(run.folder)


def test_a_link_out_of_the_folder_is_not_followed(run, tmp_path):
    run.save_checkpoint(small_state(1), meta_of(1))
    folder = run.folder / "checkpoints/step-000000000200"
    (folder / "state.safetensors").rename(tmp_path / "state")
    (folder / "state.safetensors").symlink_to(tmp_path / "state")
    with pytest.warns(store.StoreWarning, match="not a plain file"), pytest.raises(StoreError):
        run.load_checkpoint(small_state(0))


@pytest.mark.parametrize(
    "changes",
    [
        {"leaves": {}}, {"leaves": None}, {"leaves": {"values": 3}}, {"metrics": {"size": -1}}, {"metrics": None},
        {"meta": 3}, {"state": None}, {"step": 400}, {"run": "other"}, {"format": "pickle"},
    ],
)  # fmt: skip
def test_records_that_are_sealed_but_wrong_are_refused(run, changes):
    run.save_checkpoint(small_state(1), meta_of(1))
    reseal(run.folder / "checkpoints/step-000000000200/checkpoint.json", **changes)
    with pytest.raises(StoreError):
        store.open_run(run.folder, on_warning=lambda text: None).load_checkpoint(small_state(0))


@pytest.mark.parametrize(
    "arrays",
    [
        {"values": np.zeros(2, np.float32)},
        {"values": np.zeros(2, np.float32), "count": np.int32(1), "more": np.zeros(1)},
        {"values": np.zeros(3, np.float32), "count": np.int32(1)},
        {"values": np.zeros(2, np.float64), "count": np.int32(1)},
        {"values": np.zeros(2, np.float32), "count": np.int64(1)},
    ],
)
def test_tensors_other_than_recorded_are_refused(run, arrays):
    """Even with a checksum that fits."""
    template = stores.Window(np.ones(2, np.float32), np.int32(3))
    folder = run.save_checkpoint(template, meta_of(1))
    data = safetensors.numpy.save({name: np.asarray(x) for name, x in arrays.items()})
    (folder / "state.safetensors").write_bytes(data)
    reseal(folder / "checkpoint.json", state=disk.fingerprint(data))
    with pytest.warns(store.StoreWarning, match="tensor"), pytest.raises(StoreError):
        run.load_checkpoint(template)


def test_open_for_writing_tidies_up(run):
    run.save_checkpoint(small_state(1), meta_of(1))
    run.close()
    checkpoints = run.folder / "checkpoints"
    (checkpoints / "step-000000000200").rename(checkpoints / ".old-step-000000000200")
    (checkpoints / ".tmp-step-000000000400").mkdir()
    (checkpoints / ".tmp-step-000000000400/state.safetensors").write_bytes(b"half")
    (run.folder / ".tmp-manifest.json").write_bytes(b"half")
    with store.open_run(run.folder, write=True) as again:
        assert not leftovers(run.folder)
        assert identical(again.load_checkpoint(small_state(0))[0], small_state(1))


def test_nothing_that_runs_code_is_in_a_load_path():
    for path in pathlib.Path(store.__file__).parent.glob("*.py"):
        source = path.read_text()
        assert not [word for word in ("pickle", "eval(", "exec(", "np.load(", "__import__") if word in source], path


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_change_of_the_configuration_may_be_cut_short(run, moment, monkeypatch):
    """The manifest is told first. Until it has been told again, both the old and the new one are right."""
    write = disk.write_bytes

    def cut(path, data):
        if path.name == "config.json" and moment == "before":
            raise KeyboardInterrupt
        write(path, data)
        if path.name == "config.json":
            raise KeyboardInterrupt

    monkeypatch.setattr(disk, "write_bytes", cut)
    with pytest.raises(KeyboardInterrupt):
        run.amend({"task": "Longer"}, "longer")
    monkeypatch.undo()
    run.close()
    expected = {"task": "Toy" if moment == "before" else "Longer"}
    assert store.open_run(run.folder).config == expected
    with store.open_run(run.folder, write=True) as again:
        assert again.config == expected
        again.finish()
    store.open_run(run.folder).verify()
    assert store.open_run(run.folder).read_json("history/config-1.json") == {"task": "Toy"}
