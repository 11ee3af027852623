"""The bridge to environments of another Python: they run, they fail, and nobody who speaks nonsense does any harm."""

import ast
import contextlib
import json
import os
import pathlib
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time

import bridged
import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tqpo.errors import ActionError, ConfigError, EnvError, TqpoError
from tqpo.host import bridge
from tqpo.host.batch import EnvBatch
from tqpo.host.bridge import client, server
from tqpo.host.bridge import errors as trouble
from tqpo.host.bridge.environments import BridgeVectorEnv, Options
from tqpo.host.bridge.server import Channel, Frame, Hangup, Violation
from tqpo.host.probe import make_own
from tqpo.host.spec import HostOptions, HostSpec
from tqpo.output import digest
from tqpo.training import loop
from tqpo.training.evaluations import add_evaluation
from tqpo.training.job import Job

pytestmark = pytest.mark.slow  # processes, sockets and training: `make test-slow`

SOON = 20.0  # s: longer than anything here may take on a busy machine
HERE = pathlib.Path(__file__).parents[1] / "support"
SRC = pathlib.Path(server.__file__).parent


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """An interpreter that can import NumPy and nothing else that is installed."""
    folder = tmp_path_factory.mktemp("bare")
    site = pathlib.Path(np.__file__).parent.parent
    (folder / "site").mkdir()
    for name in ("numpy", "numpy.libs"):
        if (site / name).exists():
            (folder / "site" / name).symlink_to(site / name)
    script = folder / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH="{folder}/site" exec "{sys.executable}" -S "$@"\n')
    script.chmod(0o755)
    return str(script)


def options(**changes):
    return Options(**{"folder": HERE, "timeout": SOON, "start_timeout": SOON, **changes})


def gone(pid: int, within: float = SOON) -> bool:
    """Whether no process has this number any more; a zombie has."""
    end = time.monotonic() + within
    while time.monotonic() < end:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


class TestEnvironments:
    def test_the_interpreter_of_these_tests_is_bare(self, python):
        for module in ("tqpo", "gymnasium", "jax"):
            assert subprocess.call([python, "-c", f"import {module}"], stderr=subprocess.DEVNULL) == 1
        assert subprocess.call([python, "-c", "import numpy"]) == 0

    def test_one_environment_as_if_it_were_here(self, python):
        here = bridged.Line.__new__(bridged.Line)
        here.start = 1.5
        with contextlib.closing(bridge.make_env(python, "bridged:Line", options=options(), start=1.5)) as env:
            assert env.observation_space == gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
            assert env.action_space == gymnasium.spaces.Box(-1, 1, (1,), np.float32)
            obs, info = env.reset(seed=3)
            np.testing.assert_array_equal(obs, here.reset(seed=3)[0])
            assert info == {}
            for action in (0.5, 0.25, 1.0):
                obs, reward, terminated, truncated, info = env.step(np.array([action], np.float32))
                *expected, _ = here.step(np.array([action], np.float32))
                np.testing.assert_array_equal(obs, expected[0])
                assert (reward, info["cost"], terminated, truncated) == tuple(expected[1:])
                assert info == {"cost": expected[2], "cost_line": expected[2]}
            assert terminated
            with pytest.raises(gymnasium.error.ResetNeeded):
                env.step([0.0])
            env.reset()
            with pytest.raises(ActionError, match="shape"):
                env.step([0.0, 1.0])
            with pytest.raises(ActionError, match="finite"):
                env.step([np.nan])

    @pytest.mark.filterwarnings("ignore:.*A Box observation space m")
    def test_gymnasium_finds_nothing_wrong(self, python):
        with contextlib.closing(bridge.make_env(python, "bridged:FiveValues", options=options())) as env:
            check_env(env, skip_render_check=True, skip_close_check=True)

    def test_five_values_and_a_discrete_action(self, python):
        with contextlib.closing(bridge.make_env(python, "bridged:FiveValues", options=options(info=("x_",)))) as env:
            assert env.action_space == gymnasium.spaces.Discrete(3)
            env.reset(seed=0)
            assert env.step(2)[4] == {"x_velocity": 1.0}
            with pytest.raises(ActionError):
                env.step(3)

    def test_four_values_and_a_dict_of_observations(self, python):
        with contextlib.closing(bridge.make_env(python, "bridged:FourValues", options=options())) as env:
            assert env.observation_space == gymnasium.spaces.Box(
                np.array([-5, 0, 0], np.float32), np.array([5, 1, 1], np.float32)
            )
            obs, _ = env.reset(seed=3)
            x = np.random.default_rng(3).uniform(-0.1, 0.1)
            np.testing.assert_array_equal(obs, np.array([x, 1, 0], np.float32))
            for t in range(10):
                *_, terminated, truncated, info = env.step([0.0])
                assert (terminated, truncated, info) == (False, t == 9, {"cost": 0.0})

    @pytest.mark.parametrize("processes", [1, 3])
    def test_a_batch_resets_in_the_same_step(self, python, processes):
        envs = bridge.make_vec(python, "bridged:Line", 4, processes=processes, options=options())
        with contextlib.closing(envs):
            assert envs.metadata["autoreset_mode"] == gymnasium.vector.AutoresetMode.SAME_STEP
            obs, _ = envs.reset(seed=5)
            for i in range(4):  # copy i under seed s is the single environment under seed s + i
                assert obs[i, 0] == np.random.default_rng(5 + i).uniform(-0.1, 0.1)
            actions = np.array([[0.0], [1.0], [0.0], [1.0]], np.float32)
            for _ in range(3):
                obs, _, terminated, truncated, info = envs.step(actions)
            over = obs[:, 1] == 0  # copies that passed 3 have begun anew
            np.testing.assert_array_equal(terminated, over)
            assert not truncated.any()
            np.testing.assert_array_equal(info["_cost"], ~over)
            if over.any():
                np.testing.assert_array_equal(info["final_info"]["cost"], over)
                np.testing.assert_array_equal(info["_final_obs"], over)
            for _ in range(7):
                *_, truncated, info = envs.step(np.zeros((4, 1)))
            assert truncated[0]
            assert info["final_obs"][0][1] == 10
            assert info["final_info"]["cost"].shape == (4,)

    def test_a_picture(self, python):
        with contextlib.closing(bridge.make_env(python, "bridged:Faulty", options=options(), fault="none")) as env:
            np.testing.assert_array_equal(env.render(), np.full((4, 6, 3), 7, np.uint8))

    def test_a_server_on_a_port(self, python):
        """Started by hand, from a copy of the one file, in a folder of its own; reached at its announced address."""
        words = [python, server.__file__, "--env", "bridged:Line", "--envs", "2"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, cwd=HERE) as process:
            assert process.stdout is not None
            said = json.loads(process.stdout.readline())
            connection = client.connect(said["address"], said["token"], "same_step", options())
            envs = BridgeVectorEnv([connection])
            assert envs.reset(seed=0)[0].shape == (2, 2)
            envs.close()
            assert process.wait(SOON) == 0

    def test_one_file_is_enough(self, python, tmp_path):
        (tmp_path / "server.py").write_text(pathlib.Path(server.__file__).read_text())
        (tmp_path / "bridged.py").write_text(pathlib.Path(bridged.__file__).read_text())
        words = [python, "server.py", "--env", "bridged:Line"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, cwd=tmp_path) as process:
            assert process.stdout is not None
            said = json.loads(process.stdout.readline())
            client.connect(said["address"], said["token"], "disabled", options()).close()

    def test_the_one_file_is_stdlib_and_numpy_in_the_syntax_of_3_8(self):
        tree = ast.parse(pathlib.Path(server.__file__).read_text(), feature_version=(3, 8))
        imported = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
        imported |= {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
        assert imported - {"numpy"} <= sys.stdlib_module_names

    def test_nothing_is_evaluated(self):
        for path in SRC.glob("*.py"):
            names = {n.id for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Name)}
            assert not names & {"eval", "exec", "compile", "pickle", "marshal", "shelve"}

    def test_as_a_task(self, python, monkeypatch):
        """`tqpo train bridge:PYTHON:MODULE:NAME` finds the module in the current folder."""
        monkeypatch.chdir(HERE)
        spec = make_own(f"bridge:{python}:bridged:Line", {"start": 2.5, "processes": 2})
        assert isinstance(spec, HostSpec)
        assert (spec.obs_size, spec.action_size, spec.cost_names) == (2, 1, ("cost", "line"))
        with EnvBatch(spec, 4, seed=0) as envs:
            assert envs.reset().shape == (4, 2)
            step = envs.step(np.ones((4, 1), np.float32))
        assert step.valid.all()
        assert step.terminated.all()
        np.testing.assert_array_equal(step.cost, np.ones((4, 2)))
        assert (step.next_obs[:, 0] > 3).all()  # where the episode ended
        assert (step.obs[:, 0] < 3).all()  # where the next one began

    def test_faults_of_a_task_restart_it_until_there_were_too_many(self, python, monkeypatch):
        monkeypatch.chdir(HERE)
        task, settings = f"bridge:{python}:bridged:Faulty", {"fault": "exit", "processes": 1}
        spec = make_own(task, settings, options=HostOptions(restarts=1))
        assert isinstance(spec, HostSpec)
        with EnvBatch(spec, 2, seed=0) as envs:
            envs.reset()
            lost = [envs.step(np.zeros((2, 1), np.float32)).lost.all() for _ in range(5)]
            assert lost == [False, False, True, False, False]
            assert "out of fuel" in envs.take_reports()[0]
            with pytest.raises(EnvError, match="out of fuel"):
                envs.step(np.zeros((2, 1), np.float32))

    @pytest.mark.slow
    def test_training_and_a_summary_of_it(self, python, monkeypatch, tmp_path):
        """A quantile constraint on an environment in another Python, from start to verdict."""
        monkeypatch.chdir(HERE)
        settings = {"n_envs": 4, "n_steps": 32, "minibatches": 2, "epochs": 2}
        job = Job(task=f"bridge:{python}:bridged:Line", cost_limit=2.0, steps=4 * 128, settings=settings, snapshots=1)
        with loop.train(job, tmp_path / "run", loop.Host(quiet=True)) as folder:
            add_evaluation(folder, 20, "jax", False)
            found = digest.summary(folder)
        assert found["job"]["task"] == job.task
        assert found["curves"]["step"] == [[128.0, 256.0, 384.0, 512.0]]
        assert found["evaluations"][0]["pooled"]["episodes"] == 20
        assert len(found["evaluations"][0]["seeds"][0]["episode_costs"]) == 20
        assert found["versions_in_the_other_python"]["numpy"] == np.__version__
        json.dumps(found, allow_nan=False)


class TestSpaces:
    SPACE = gymnasium.spaces.Dict(
        {
            "box": gymnasium.spaces.Box(-1, 2, (2, 3), np.float64),
            "byte": gymnasium.spaces.Box(0, 255, (2,), np.uint8),
            "choice": gymnasium.spaces.Discrete(4, start=2),
            "several": gymnasium.spaces.MultiDiscrete([2, 3]),
            "flags": gymnasium.spaces.MultiBinary(3),
            "pair": gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(2), gymnasium.spaces.Box(-9, 9, (1,))]),
        }
    )

    def test_flattened_as_gymnasium_does(self):
        flat = gymnasium.spaces.flatten_space(self.SPACE)
        ours = server.observation_space(self.SPACE)
        np.testing.assert_array_equal(ours.low, flat.low.astype(np.float32))
        np.testing.assert_array_equal(ours.high, flat.high.astype(np.float32))
        self.SPACE.seed(0)
        for _ in range(20):
            value = self.SPACE.sample()
            expected = gymnasium.spaces.flatten(self.SPACE, value).astype(np.float32)
            np.testing.assert_array_equal(server.flatten(self.SPACE, value), expected)

    def test_what_is_not_supported_is_said(self):
        with pytest.raises(TypeError, match="only Box and Discrete"):
            server.action_space(self.SPACE)
        with pytest.raises(TypeError, match="none of"):
            server.observation_space(gymnasium.spaces.Text(5))


class TestFaults:
    def test_no_such_interpreter(self, tmp_path, monkeypatch):
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        with pytest.raises(trouble.InterpreterError, match=r"python9\.9"):
            bridge.make_env("python9.9", "bridged:Line")
        assert list(tmp_path.iterdir()) == []

    def test_not_an_interpreter(self, tmp_path):
        (tmp_path / "python").write_text("nothing that runs")
        (tmp_path / "python").chmod(0o755)
        with pytest.raises(trouble.InterpreterError, match="cannot be started"):
            bridge.make_env(str(tmp_path / "python"), "bridged:Line")

    def test_not_a_server(self, tmp_path):
        (tmp_path / "python").write_text("#!/bin/sh\necho hello; exec sleep 1000\n")
        (tmp_path / "python").chmod(0o755)
        with pytest.raises(trouble.ProtocolError, match="hello"):
            bridge.make_env(str(tmp_path / "python"), "bridged:Line", options=options())

    def test_another_version_is_announced(self, tmp_path):
        (tmp_path / "python").write_text('#!/bin/sh\necho \'{"version": 2, "address": "", "token": ""}\'\n')
        (tmp_path / "python").chmod(0o755)
        with pytest.raises(trouble.VersionError, match="version 2"):
            bridge.make_env(str(tmp_path / "python"), "bridged:Line", options=options())

    @pytest.mark.parametrize(
        ("env", "words"),
        [("nowhere:Line", "nowhere"), ("bridged:Nothing", "neither Nothing nor make"), ("bridged:Faulty", "fault")],
    )
    def test_an_environment_that_cannot_be_built(self, python, env, words):
        with pytest.raises(trouble.ServerDiedError, match=words):
            bridge.make_vec(python, env, 2, processes=2, options=options())

    def test_an_environment_that_takes_too_long_to_build(self, python):
        with pytest.raises(trouble.BridgeTimeoutError, match="start_timeout"):
            bridge.make_env(python, "bridged:slow", options=options(start_timeout=1.0))

    @pytest.mark.parametrize(("fault", "words"), [("raise", "the wheel came off"), ("shape", r"shape \(5,\)")])
    def test_an_exception_names_the_environment_and_a_reset_goes_on(self, python, fault, words):
        envs = bridge.make_vec(python, "bridged:Faulty", 4, processes=2, options=options(), fault=fault)
        with contextlib.closing(envs):
            envs.reset(seed=0)
            for _ in range(2):
                envs.step(np.zeros((4, 1)))
            with pytest.raises(trouble.HostedEnvironmentError, match=words) as caught:
                envs.step(np.zeros((4, 1)))
            assert caught.value.index == 0
            assert "Traceback" in caught.value.traceback
            with pytest.raises(gymnasium.error.ResetNeeded):
                envs.step(np.zeros((4, 1)))
            assert envs.reset(seed=0)[0].shape == (4, 2)
            assert envs.step(np.zeros((4, 1)))[0][0, 1] == 1

    def test_death(self, python):
        envs = bridge.make_vec(python, "bridged:Faulty", 2, processes=2, options=options(), fault="exit")
        pids = [c.process.popen.pid for c in envs.connections]
        envs.reset()
        envs.step(np.zeros((2, 1)))
        envs.step(np.zeros((2, 1)))
        with pytest.raises(trouble.ServerDiedError, match=r"status 7.*\n(.*\n)*out of fuel"):
            envs.step(np.zeros((2, 1)))
        assert all(gone(pid) for pid in pids)
        with pytest.raises(TqpoError, match="closed"):
            envs.reset()

    def test_a_killed_server(self, python):
        env = bridge.make_env(python, "bridged:Line", options=options())
        os.kill(env.connection.process.popen.pid, signal.SIGKILL)
        with pytest.raises(trouble.ServerDiedError, match="SIGKILL"):
            env.reset()

    def test_a_hang(self, python):
        env = bridge.make_env(python, "bridged:Faulty", options=options(timeout=1.0), fault="hang")
        pid = env.connection.process.popen.pid
        env.reset()
        env.step([0.0])
        env.step([0.0])
        with pytest.raises(trouble.BridgeTimeoutError, match="no answer to step within 1 s"):
            env.step([0.0])
        assert gone(pid)

    def test_the_time_is_that_of_one_environment(self, python):
        """Four that take 0.6 s each are not late, for the server says that it is busy; one that hangs is named."""
        envs = bridge.make_vec(
            python, "bridged:Slow", 4, processes=1, options=options(timeout=2.0), seconds=0.6, hanging=3
        )
        with contextlib.closing(envs):
            envs.reset()
            for _ in range(2):
                envs.step(np.zeros((4, 1)))
            with pytest.raises(trouble.BridgeTimeoutError, match="environment 3: no answer"):
                envs.step(np.zeros((4, 1)))

    def test_no_process_and_no_folder_is_left(self, python, tmp_path, monkeypatch):
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        env = bridge.make_env(python, "bridged:Line", options=options())
        assert list(tmp_path.iterdir()) == []  # as soon as it is connected, so that even a killed client leaves nothing
        pid = env.connection.process.popen.pid
        env.close()
        env.close()
        assert gone(pid)
        env = bridge.make_env(python, "bridged:Line", options=options())
        pid = env.connection.process.popen.pid
        del env  # forgotten, not closed
        assert gone(pid)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("busy", [False, True])
    def test_a_server_leaves_when_its_client_is_killed(self, python, busy):
        """Whether it waits for a command or hangs in an environment."""
        code = (
            "import sys; from tqpo import bridge; from tqpo.host.bridge.environments import Options\n"
            f"env = bridge.make_env({python!r}, 'bridged:Faulty', options=Options(folder={str(HERE)!r}), fault='hang')\n"
            "print(env.connection.process.popen.pid, flush=True); env.reset()\n"
            f"for _ in range({3 if busy else 2}): print('step', flush=True); env.step([0.0])\n"
            "sys.stdin.read()"
        )
        words = [sys.executable, "-c", code]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            pid = int(process.stdout.readline())
            for _ in range(3 if busy else 2):
                process.stdout.readline()
            time.sleep(0.2)
            process.kill()
        assert gone(pid)

    def test_arguments_that_are_not_json(self, python):
        with pytest.raises(trouble.ProtocolError, match="JSON"):
            bridge.make_env(python, "bridged:Line", start=object())
        with pytest.raises(ConfigError, match="processes"):
            bridge.make_vec(python, "bridged:Line", 2, processes=3)


@pytest.mark.slow
def test_safety_gymnasium():
    """The real thing, in the interpreter that `make safety-gymnasium` sets up."""
    python = HERE.parents[1] / ".venv-safety-gymnasium" / "bin" / "python"
    if not python.exists():
        pytest.skip("run `make safety-gymnasium PYTHON310=python3.10` first")
    envs = bridge.make_vec(str(python), "safety_gymnasium:SafetyPointGoal1-v0", 2, processes=2)
    with contextlib.closing(envs):
        obs, _ = envs.reset(seed=0)
        assert obs.shape == (2, 60)
        assert envs.hello.max_steps == 1000
        random = np.random.default_rng(0)
        for t in range(1, 1001):
            *_, truncated, info = envs.step(random.uniform(-1, 1, (2, 2)))
            assert truncated.all() == (t == 1000)
            costs = info["final_info"] if t == 1000 else info
            assert costs["_cost"].all()
            assert set(np.unique(costs["cost"])) <= {0.0, 1.0}


def test_the_address_of_an_environment():
    full = "bridge:python3.10:safety_gymnasium:SafetyPointGoal1-v0"
    assert bridge.parse(full) == ("python3.10", "safety_gymnasium:SafetyPointGoal1-v0")
    for wrong in ("bridge:python3.10", "bridge:python3.10:module", "bridge::m:f", "gym:x:y:z", "bridge:python::f"):
        with pytest.raises(ConfigError, match="PYTHON:MODULE:NAME"):
            bridge.parse(wrong)


ARRAYS = st.dictionaries(
    st.text(max_size=8),
    st.sampled_from(sorted(server.DTYPES)).flatmap(
        lambda dtype: hnp.arrays(np.dtype(dtype), hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
    ),
    max_size=4,
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=12,
)
FINITE_JSON = st.dictionaries(st.text(max_size=9), st.integers() | st.text() | st.lists(st.booleans()), max_size=4)


def split(frame: bytes) -> tuple[bytes, bytes]:
    header, payload = server.decode_prefix(frame[: server.PREFIX.size])
    rest = frame[server.PREFIX.size :]
    assert len(rest) == header + payload
    return rest[:header], rest[header:]


class TestFrames:
    @given(st.sampled_from(sorted(server.KINDS)), st.integers(0, 2**53), FINITE_JSON, ARRAYS)
    def test_what_is_sent_arrives(self, kind, number, data, arrays):
        found = server.decode(*split(server.encode(Frame(kind, number, data, arrays))))
        assert (found.kind, found.id, found.data) == (kind, number, data)
        assert list(found.arrays) == list(arrays)
        for name, array in arrays.items():
            assert found.arrays[name].dtype == array.dtype
            assert found.arrays[name].shape == array.shape
            assert found.arrays[name].tobytes() == array.tobytes()  # every bit, of NaN too

    def test_big_endian_and_strided_arrays_arrive_too(self):
        array = np.arange(12, dtype=">f8").reshape(3, 4).T[::2]
        found = server.decode(*split(server.encode(Frame("step", 1, {}, {"a": array})))).arrays["a"]
        np.testing.assert_array_equal(found, array)

    @given(st.binary(max_size=64), st.binary(max_size=64))
    def test_bytes_are_a_frame_or_a_violation(self, header, payload):
        with contextlib.suppress(Violation):
            server.decode(header, payload)

    @settings(max_examples=300)
    @given(
        JSON | st.fixed_dictionaries({"kind": JSON, "id": JSON, "data": JSON, "arrays": JSON}), st.binary(max_size=32)
    )
    def test_json_is_a_frame_or_a_violation(self, header, payload):
        with contextlib.suppress(Violation):
            server.decode(json.dumps(header).encode(), payload)

    @settings(max_examples=300)
    @given(st.lists(st.lists(JSON, max_size=4) | JSON, max_size=3), st.binary(max_size=32))
    def test_arrays_are_arrays_or_a_violation(self, listed, payload):
        header = {"kind": "step", "id": 1, "data": {}, "arrays": listed}
        with contextlib.suppress(Violation):
            server.decode(json.dumps(header).encode(), payload)

    @pytest.mark.parametrize(
        ("arrays", "payload"),
        [
            ([["a", "<f8", [2]]], bytes(8)),  # fewer bytes than declared
            ([["a", "<f8", [1]]], bytes(9)),  # more
            ([["a", "|O", [1]]], bytes(8)),  # objects would need pickle
            ([["a", "<U4", [1]]], bytes(16)),
            ([["a", ">f8", [1]]], bytes(8)),
            ([["a", "<f8", [-1]]], bytes(8)),
            ([["a", "<f8", [True]]], bytes(8)),
            ([["a", "<f8", [1.0]]], bytes(8)),
            ([["a", "|u1", [2**28] * 8]], bytes(8)),  # more elements than a number of the machine holds
            ([["a", "|u1", [0, 2**80]]], b""),
            ([["a", "|u1", [1]], ["a", "|u1", [1]]], bytes(2)),
            ([["a", "|b1", [1]]], b"\x02"),
            ([["a", "|u1", [1] * 9]], bytes(1)),
            ([["a", "|u1", []]] * 17, bytes(17)),
            ([[["a"], "|u1", [1]]], bytes(1)),
            ({"a": 1}, b""),
        ],
    )
    def test_wrong_arrays(self, arrays, payload):
        header = {"kind": "step", "id": 1, "data": {}, "arrays": arrays}
        with pytest.raises(Violation):
            server.decode(json.dumps(header).encode(), payload)

    @pytest.mark.parametrize(
        "header",
        [
            b"",
            b"[" * 100_000,
            b'{"kind":"step","id":1,"data":{},"arrays":[]',
            b'{"kind":"step","id":NaN,"data":{},"arrays":[]}',
            b'{"kind":"step","id":true,"data":{},"arrays":[]}',
            b'{"kind":"step","id":-1,"data":{},"arrays":[]}',
            b'{"kind":"dance","id":1,"data":{},"arrays":[]}',
            b'{"kind":["step"],"id":1,"data":{},"arrays":[]}',
            b'{"kind":"step","id":1,"data":[],"arrays":[]}',
            b'{"kind":"step","id":1,"data":{},"arrays":[],"more":1}',
            b'{"kind":"step","id":' + b"9" * 9999 + b',"data":{},"arrays":[]}',
            b"\xff\xfe",
            pickle.dumps({"kind": "step"}),
        ],
    )
    def test_wrong_headers(self, header):
        with pytest.raises(Violation):
            server.decode(header, b"")

    def test_a_length_is_refused_before_it_is_read(self):
        for sizes in ((2**32 - 1, 0), (0, 2**32 - 1), (server.MAX_HEADER + 1, 0), (0, server.MAX_PAYLOAD + 1)):
            with pytest.raises(Violation, match="at most"):
                server.decode_prefix(server.PREFIX.pack(server.MAGIC, *sizes))


TOKEN = "0123456789abcdef"
HELLO = {"version": server.VERSION, "token": TOKEN, "autoreset": "same_step"}


def host(n: int = 2) -> server.Host:
    return server.Host([server.Slot(Quiet(), ("cost",)) for _ in range(n)], 10, {"python": "3"})


class Quiet(bridged.Line):
    def __init__(self):
        self.start, self.random = 0.0, np.random.default_rng(0)


class Visit:
    """A server in a thread and this end of its connection; whatever is said, the server must come to an end."""

    def __enter__(self):
        self.sock, other = socket.socketpair()
        self.result: list = []

        def serve():
            channel = Channel(other, frame_timeout=0.3)
            try:
                self.result.append(server.greet(channel, host(), TOKEN) and server.talk(channel, host()))
            except BaseException as error:
                self.result.append(error)
            other.close()

        self.thread = threading.Thread(target=serve, daemon=True)
        self.thread.start()
        self.channel = Channel(self.sock)
        return self

    def greet(self):
        self.channel.send(Frame("hello", 0, HELLO))
        assert self.channel.receive(SOON).kind == "hello"
        return self

    def __exit__(self, *_):
        self.sock.close()
        self.thread.join(SOON)
        assert not self.thread.is_alive()
        assert self.result[0] in (False, 0, 2), self.result

    def rest(self) -> list[Frame]:
        """What the server still says before it hangs up."""
        found = []
        with contextlib.suppress(Hangup):
            while True:
                found.append(self.channel.receive(SOON))
        return found


def step(number: int, action=None) -> Frame:
    return Frame("step", number, {}, {"action": np.zeros((2, 1), np.float32) if action is None else action})


def reset(number: int, **data) -> Frame:
    return Frame("reset", number, data or {"seeds": [1, None]}, {"mask": np.ones(2, bool)})


class TestServer:
    def test_a_conversation(self):
        with Visit() as visit:
            visit.greet()
            for frame in (reset(1), step(2), Frame("close", 3)):
                visit.channel.send(frame)
                answer = visit.channel.receive(SOON)
                assert (answer.kind, answer.id) == (frame.kind, frame.id)
            assert visit.rest() == []
        assert visit.result == [0]

    @pytest.mark.parametrize(
        ("hello", "code"),
        [
            (Frame("hello", 0, {**HELLO, "version": 2}), "version"),
            (Frame("hello", 0, {}), "version"),
            (Frame("hello", 0, {**HELLO, "token": "guess"}), "token"),
            (Frame("hello", 0, {**HELLO, "token": "gu\udc00ss"}), "protocol"),
            (Frame("hello", 0, {**HELLO, "token": None}), "token"),
            (Frame("hello", 0, {**HELLO, "autoreset": ["x"]}), "protocol"),
            (Frame("hello", 0, {**HELLO, "more": 1}), "protocol"),
            (Frame("hello", 0, {**HELLO, "more": "x" * 9999}), "protocol"),
            (Frame("hello", 1, HELLO), "protocol"),
            (Frame("hello", 0, HELLO, {"a": np.zeros(9)}), "protocol"),
            (reset(0), "protocol"),
        ],
    )
    def test_a_stranger_is_refused(self, hello, code):
        with Visit() as visit:
            visit.channel.send(hello)
            (answer,) = visit.rest()
            assert answer.data["code"] == code
        assert visit.result == [False]

    @pytest.mark.parametrize(
        "frames",
        [
            [step(1)],  # before a reset
            [reset(2)],  # out of order
            [reset(1), step(1)],
            [Frame("hello", 1, HELLO)],
            [Frame("error", 1)],
            [reset(1, seeds=[1])],
            [reset(1, seeds=[1, -1])],
            [reset(1, seeds=[1, 2.5])],
            [reset(1, seeds=[1, 2], more=1)],
            [Frame("reset", 1, {"seeds": [1, 2]}, {"mask": np.ones(3, bool)})],
            [Frame("reset", 1, {"seeds": [1, 2]}, {"mask": np.ones(2, np.uint8)})],
            [reset(1), step(2, np.zeros((3, 1), np.float32))],
            [reset(1), step(2, np.zeros((2, 1), np.float64))],
            [reset(1), step(2, np.full((2, 1), np.nan, np.float32))],
            [reset(1), Frame("step", 2)],
            [reset(1), Frame("render", 2, {"env": 2})],
        ],
    )
    def test_a_command_that_breaks_the_protocol_is_the_last(self, frames):
        with Visit() as visit:
            visit.greet()
            for frame in frames:
                visit.channel.send(frame)
            assert visit.rest()[-1].data["code"] == "protocol"
        assert visit.result == [2]

    @settings(max_examples=60, deadline=None)
    @given(st.booleans(), st.binary(max_size=200), st.booleans())
    def test_noise(self, greeted, noise, framed):
        """Bytes, bare or as the inside of a frame: refused, and the server ends without waiting for more."""
        with Visit() as visit:
            if greeted:
                visit.greet()
            if framed:
                half = len(noise) // 2
                noise = server.PREFIX.pack(server.MAGIC, half, len(noise) - half) + noise
            visit.sock.sendall(noise)
            visit.sock.shutdown(socket.SHUT_WR)
            assert all(frame.kind == "error" for frame in visit.rest())

    @settings(max_examples=60, deadline=None)
    @given(st.data())
    def test_changed_bytes(self, data):
        """Valid commands with bytes changed, cut off or added."""
        wire = bytearray(b"".join(map(server.encode, (reset(1), step(2), step(3)))))
        for _ in range(data.draw(st.integers(1, 4))):
            wire[data.draw(st.integers(0, len(wire) - 1))] = data.draw(st.integers(0, 255))
        wire = wire[: data.draw(st.integers(0, len(wire)))] + data.draw(st.binary(max_size=5))
        with Visit() as visit:
            visit.greet()
            with contextlib.suppress(ConnectionError):
                visit.sock.sendall(wire)
                visit.sock.shutdown(socket.SHUT_WR)
            visit.rest()

    def test_a_frame_that_never_ends(self):
        """The connection stays open, but the rest of the frame does not come."""
        for wire in (b"T", server.encode(reset(1))[:-1]):
            with Visit() as visit:
                visit.greet()
                visit.sock.sendall(wire)
                visit.thread.join(SOON)
                assert visit.result in ([0], [2])

    def test_a_huge_length(self):
        with Visit() as visit:
            visit.greet()
            visit.sock.sendall(server.PREFIX.pack(server.MAGIC, 10, 2**32 - 1))
            assert "at most" in visit.rest()[-1].data["message"]

    def test_strangers_at_the_door_of_a_real_server(self, python, tmp_path):
        """Noise, a pickle that would write a file, a wrong token; then the client that it waits for."""
        proof = tmp_path / "executed"

        class Bomb:
            def __reduce__(self):
                return pathlib.Path.touch, (proof,)

        words = [python, server.__file__, "--env", "bridged:Line", "--frame-timeout", "0.3"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, cwd=HERE) as process:
            assert process.stdout is not None
            said = json.loads(process.stdout.readline())
            name, port = said["address"].split(":")
            bomb = pickle.dumps(Bomb())
            random = np.random.default_rng(0)
            wires = [random.bytes(int(random.integers(1, 300))) for _ in range(20)]
            wires += [bomb, server.PREFIX.pack(server.MAGIC, len(bomb), 0) + bomb]
            for wire in wires:
                with socket.create_connection((name, int(port)), SOON) as sock:
                    sock.sendall(wire)
            with pytest.raises(trouble.ProtocolError, match="token"):
                client.connect(said["address"], TOKEN, "disabled", options())
            connection = client.connect(said["address"], said["token"], "disabled", options())
            connection.close()
            assert process.wait(SOON) == 0
        assert not proof.exists()


class Answers:
    """A server that says what a test tells it, whatever it is asked."""

    def __init__(self, *wires: bytes):
        self.sock, other = socket.socketpair()
        self.connection = client.Connection(Channel(self.sock, 2.0), 2.0)
        self.other = other
        self.thread = threading.Thread(target=self._say, args=(b"".join(wires),), daemon=True)
        self.thread.start()

    def _say(self, wire: bytes) -> None:
        with contextlib.suppress(ConnectionError):
            self.other.sendall(wire)
            self.other.shutdown(socket.SHUT_WR)

    def __enter__(self) -> client.Connection:
        return self.connection

    def __exit__(self, *_):
        self.connection.close()
        self.thread.join(SOON)
        self.other.close()


def welcome(**changes) -> Frame:
    data, arrays = host().hello()
    return Frame("hello", 0, {**data, **changes}, arrays)


def stepped() -> Frame:
    room = host()
    room.reset(reset(1))
    return Frame("step", 2, *room.step(step(2)))


def converse(connection: client.Connection) -> client.Steps:
    connection.greet(TOKEN, "same_step")
    connection.ask_reset([1, 2], np.ones(2, bool))
    connection.answer_reset()
    connection.ask_step(np.zeros((2, 1), np.float32))
    return connection.answer_step()


def wires(*, hello: Frame | None = None, first: Frame | None = None, second: Frame | None = None) -> list[bytes]:
    answer = Frame("reset", 1, {}, {"obs": np.zeros((2, 2))})
    return [server.encode(frame) for frame in (hello or welcome(), first or answer, second or stepped())]


def altered(frame: Frame, **arrays) -> Frame:
    return frame._replace(arrays={**frame.arrays, **arrays})


class TestClient:
    def test_a_conversation(self):
        with Answers(*wires()) as connection:
            found = converse(connection)
            np.testing.assert_array_equal(found.info["cost"][0], [0, 0])

    @pytest.mark.parametrize(
        "changes",
        [
            {"hello": welcome(num_envs=0)},
            {"hello": welcome(num_envs=10**9)},
            {"hello": welcome(more=1)},
            {"hello": welcome(max_steps=-5)},
            {"hello": welcome(versions={"python": 3})},
            {"hello": welcome(observation={"type": "box", "dtype": "<f4", "shape": [2]})},
            {"hello": welcome(observation={"type": "box", "dtype": "|O", "shape": [2]})},
            {"hello": welcome(action={"type": "discrete", "dtype": "<f4", "shape": [1]})},
            {"hello": altered(welcome(), obs_low=np.full(2, np.nan))},
            {"hello": altered(welcome(), more=np.zeros(1))},
            {"first": Frame("reset", 1, {}, {"obs": np.zeros((3, 2))})},
            {"first": Frame("reset", 1, {}, {"obs": np.zeros((2, 2), np.float32)})},
            {"first": Frame("reset", 1)},
            {"first": Frame("step", 1)},
            {"first": Frame("reset", 2, {}, {"obs": np.zeros((2, 2))})},
            {"first": Frame("error", 1, {"code": 5})},
            {"first": Frame("error", 1, {"code": "environment", "message": "", "traceback": "", "env": None})},
            {"first": stepped(), "second": Frame("reset", 1, {}, {"obs": np.zeros((2, 2))})},  # swapped
            {"first": Frame("busy", 1, {"env": 2})},
            {"first": Frame("busy", 2, {"env": 0})},
            {"first": Frame("busy", 1, {"env": 0}, {"a": np.zeros(1)})},
            {"hello": Frame("busy", 0, {"env": 0})},
            {"second": stepped()._replace(data={})},
            {"second": stepped()._replace(data={"info": ["cost", "cost"]})},
            {"second": stepped()._replace(data={"info": ["cost", 5]})},
            {"second": stepped()._replace(data={"info": ["cost"] * 99})},
            {"second": altered(stepped(), reward=np.zeros(3))},
            {"second": altered(stepped(), terminated=np.zeros(2, np.uint8))},
            {"second": altered(stepped(), final_obs=np.zeros((1, 2)))},
            {"second": altered(stepped(), final_obs=np.float64(3))},
            {"second": altered(stepped(), obs=np.zeros((2, 10**5)))},
        ],
    )
    def test_an_answer_that_breaks_the_protocol(self, changes):
        with Answers(*wires(**changes)) as connection, pytest.raises(trouble.ProtocolError):
            converse(connection)

    def test_signs_of_life_are_heard_but_not_for_ever(self):
        hello, first, second = wires()
        busy = server.encode(Frame("busy", 1, {"env": 1}))
        with Answers(hello, *[busy] * 4, first, second) as connection:
            assert converse(connection).obs.shape == (2, 2)
        with (
            Answers(hello, *[busy] * 5, first, second) as connection,
            pytest.raises(trouble.ProtocolError, match="4 signs"),
        ):
            converse(connection)

    def test_another_version(self):
        with Answers(*wires(hello=welcome(version=2))) as connection, pytest.raises(trouble.VersionError, match="2"):
            converse(connection)

    def test_silence_is_a_timeout(self):
        for wire in (b"", server.encode(welcome())[:40]):
            ours, other = socket.socketpair()
            connection = client.Connection(Channel(ours, 0.3), 0.3)
            other.sendall(wire)
            with pytest.raises(trouble.BridgeTimeoutError):
                connection.greet(TOKEN, "same_step")
            assert connection.closed
            other.close()

    def test_a_slow_drip_is_a_timeout(self):
        """One byte after another, each in time: the frame as a whole is late."""
        ours, other = socket.socketpair()
        connection = client.Connection(Channel(ours, 0.5), 0.5)

        def drip():
            with contextlib.suppress(OSError):
                for byte in server.encode(welcome()):
                    other.sendall(bytes([byte]))
                    time.sleep(0.05)

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        with pytest.raises(trouble.BridgeTimeoutError, match="incomplete"):
            connection.greet(TOKEN, "same_step")
        thread.join(SOON)
        other.close()

    @settings(max_examples=100, deadline=None)
    @given(st.binary(max_size=300), st.integers(0, 3), st.booleans())
    def test_noise(self, noise, after, framed):
        if framed:
            half = len(noise) // 2
            noise = server.PREFIX.pack(server.MAGIC, half, len(noise) - half) + noise
        with Answers(*wires()[:after], noise) as connection:
            try:
                converse(connection)
                assert after == 3
            except trouble.BridgeError:
                assert connection.closed

    @settings(max_examples=150, deadline=None)
    @given(st.data())
    def test_changed_bytes(self, data):
        wire = bytearray(b"".join(wires()))
        for _ in range(data.draw(st.integers(1, 4))):
            wire[data.draw(st.integers(0, len(wire) - 1))] = data.draw(st.integers(0, 255))
        wire = wire[: data.draw(st.integers(0, len(wire)))]
        with Answers(bytes(wire)) as connection, contextlib.suppress(trouble.BridgeError):
            found = converse(connection)
            assert found.obs.shape == (2, 2)

    @pytest.mark.parametrize("address", ["", "nowhere", "10.0.0.1:80", "127.0.0.1:http", "unix:/nowhere/at/all"])
    def test_an_address_that_leads_nowhere(self, address):
        with pytest.raises(trouble.BridgeError):
            client.connect(address, TOKEN, "same_step", options())
