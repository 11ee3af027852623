"""The bridge to environments of another Python: they run, they fail, and nobody who speaks nonsense does any harm."""

import ast
import contextlib
import itertools
import json
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

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
from tqpo.host.bridge import Options, server
from tqpo.host.bridge import errors as trouble
from tqpo.host.bridge.environments import BridgeVectorEnv
from tqpo.host.bridge.server import Channel, Frame, Violation
from tqpo.host.probe import make_own
from tqpo.host.spec import HostOptions, HostSpec
from tqpo.output import digest
from tqpo.training import loop
from tqpo.training.evaluations import add_evaluation
from tqpo.training.job import Job

pytestmark = pytest.mark.slow  # processes, pipes and training: `make test-slow`

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


def command(python: str, **changes) -> list[str]:
    asked = {"env": "bridged:Line", "envs": 1, "arguments": {}, "info": ["cost"]}
    return [python, server.__file__, json.dumps({**asked, **changes})]


@contextlib.contextmanager
def child(words: list[str], **more):
    """A server of our own, without the client: the process and a channel to it."""
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, bufsize=0, **more) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield process, Channel(process.stdout.fileno(), process.stdin.fileno(), SOON)
        process.stdin.close()
        process.wait(SOON)


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

    def test_one_file_is_enough(self, python, tmp_path):
        """A copy of it, in a folder of its own, spoken to by hand: it leaves when its stdin ends."""
        (tmp_path / "server.py").write_text(pathlib.Path(server.__file__).read_text())
        (tmp_path / "bridged.py").write_text(pathlib.Path(bridged.__file__).read_text())
        words = [python, "server.py", command(python, envs=2)[-1]]
        with child(words, cwd=tmp_path) as (process, channel):
            assert channel.receive(SOON).kind == "hello"
            channel.send(reset(1))
            assert channel.receive(SOON).arrays["obs"].shape == (2, 2)
        assert process.returncode == 0

    def test_what_an_environment_prints_cannot_reach_the_pipe(self, python):
        """Neither from Python, nor from below, nor from a process that it starts; and it reads nothing of ours."""
        with contextlib.closing(bridge.make_env(python, "bridged:Chatty", options=options())) as env:
            env.reset(seed=0)
            for t in range(1, 4):
                assert env.step([0.0])[0][1] == t

    def test_numbers_that_are_not_finite_arrive_as_they_are(self, python):
        with contextlib.closing(bridge.make_env(python, "bridged:Odd", options=options())) as env:
            np.testing.assert_array_equal(env.reset()[0], [np.nan, -np.inf])
            obs, reward, _, _, info = env.step([0.0])
            np.testing.assert_array_equal(obs, [np.inf, np.nan])
            assert reward == -np.inf
            np.testing.assert_equal(info, {"cost": np.nan, "cost_inf": np.inf})

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
        with loop.train(job, tmp_path / "run", loop.Options(quiet=True)) as folder:
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
        np.testing.assert_array_equal(server.flat_ends(self.SPACE), np.stack([flat.low, flat.high]).astype(np.float32))
        self.SPACE.seed(0)
        for _ in range(20):
            value = self.SPACE.sample()
            expected = gymnasium.spaces.flatten(self.SPACE, value).astype(np.float32)
            np.testing.assert_array_equal(server.flatten(self.SPACE, value), expected)

    def test_what_is_not_supported_is_said(self):
        with pytest.raises(TypeError, match="only Box and Discrete"):
            server.ends(self.SPACE)
        with pytest.raises(TypeError, match="none of"):
            server.flat_ends(gymnasium.spaces.Text(5))


def pipes() -> set[str]:
    """The pipes that this process has open."""
    links = set()
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):  # that of the listing itself is gone
            links.add(os.readlink(f"/dev/fd/{name}"))
    return {link for link in links if link.startswith(("pipe:", "socket:"))}


class TestFaults:
    def test_no_such_interpreter(self):
        with pytest.raises(trouble.InterpreterError, match=r"python9\.9"):
            bridge.make_env("python9.9", "bridged:Line")

    def test_not_an_interpreter(self, tmp_path):
        (tmp_path / "python").write_text("nothing that runs")
        (tmp_path / "python").chmod(0o755)
        with pytest.raises(trouble.InterpreterError, match="cannot be started"):
            bridge.make_env(str(tmp_path / "python"), "bridged:Line")

    def test_not_a_server(self, tmp_path):
        (tmp_path / "python").write_text("#!/bin/sh\necho hello, world; exec sleep 1000\n")
        (tmp_path / "python").chmod(0o755)
        with pytest.raises(trouble.ProtocolError, match="hello"):
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
        pids = [server.popen.pid for server in envs.servers]
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
        os.kill(env.batch.servers[0].popen.pid, signal.SIGKILL)
        with pytest.raises(trouble.ServerDiedError, match="SIGKILL"):
            env.reset()

    def test_a_hang(self, python):
        env = bridge.make_env(python, "bridged:Faulty", options=options(timeout=1.0), fault="hang")
        pid = env.batch.servers[0].popen.pid
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

    def test_no_process_and_no_pipe_is_left(self, python):
        before = pipes()
        env = bridge.make_env(python, "bridged:Line", options=options())
        pid = env.batch.servers[0].popen.pid
        env.close()
        env.close()
        assert gone(pid)
        env = bridge.make_env(python, "bridged:Line", options=options())
        pid = env.batch.servers[0].popen.pid
        del env  # forgotten, not closed
        assert gone(pid)
        assert pipes() == before

    @pytest.mark.parametrize("busy", [False, True])
    def test_a_server_leaves_when_its_client_is_killed(self, python, busy):
        """Whether it waits for a command or hangs in an environment."""
        code = (
            "import sys; from tqpo.host import bridge; options = bridge.Options(folder=sys.argv[2])\n"
            "env = bridge.make_env(sys.argv[1], 'bridged:Faulty', options=options, fault='hang')\n"
            "print(env.batch.servers[0].popen.pid, flush=True); env.reset()\n"
            f"for _ in range({3 if busy else 2}): print('step', flush=True); env.step([0.0])\n"
            "sys.stdin.read()"
        )
        words = [sys.executable, "-c", code, python, str(HERE)]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            pid = int(process.stdout.readline())
            for _ in range(3 if busy else 2):
                process.stdout.readline()
            time.sleep(0.2)
            process.kill()
        assert gone(pid)

    def test_a_server_leaves_when_its_client_is_killed_before_the_environments_are_built(self, python, tmp_path):
        code = (
            "import sys; from tqpo.host import bridge; options = bridge.Options(folder=sys.argv[2])\n"
            "bridge.make_env(sys.argv[1], 'bridged:slow', options=options, file=sys.argv[3])\n"
        )
        file = tmp_path / "pid"
        with subprocess.Popen([sys.executable, "-c", code, python, str(HERE), str(file)]) as process:
            end = time.monotonic() + SOON
            while not (file.exists() and file.read_text()) and time.monotonic() < end:
                time.sleep(0.02)
            process.kill()
        assert gone(int(file.read_text()))

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
    @given(st.dictionaries(st.text(max_size=3), st.lists(JSON, max_size=4) | JSON, max_size=3), st.binary(max_size=32))
    def test_arrays_are_arrays_or_a_violation(self, listed, payload):
        header = {"kind": "step", "id": 1, "data": {}, "arrays": listed}
        with contextlib.suppress(Violation):
            server.decode(json.dumps(header).encode(), payload)

    @pytest.mark.parametrize(
        ("arrays", "payload"),
        [
            ({"a": ["<f8", [2]]}, bytes(8)),  # fewer bytes than declared
            ({"a": ["<f8", [1]]}, bytes(9)),  # more
            ({"a": ["|O", [1]]}, bytes(8)),  # objects would need pickle
            ({"a": ["<U4", [1]]}, bytes(16)),
            ({"a": [">f8", [1]]}, bytes(8)),
            ({"a": [["<f8"], [1]]}, bytes(8)),
            ({"a": ["<f8", [-1]]}, bytes(8)),
            ({"a": ["<f8", [True]]}, bytes(8)),
            ({"a": ["<f8", [1.0]]}, bytes(8)),
            ({"a": ["<f8", 1]}, bytes(8)),
            ({"a": ["|u1", [2**28] * 8]}, bytes(8)),  # more elements than a number of the machine holds
            ({"a": ["|u1", [0, 2**80]]}, b""),
            ({"a": ["|u1", [1]], "b": ["|u1", [1]]}, bytes(1)),
            ({"a": ["|b1", [1]]}, b"\x02"),
            ({"a": ["|u1", [1] * 9]}, bytes(1)),
            ({"a": ["|u1", [1], 1]}, bytes(1)),
            ({"a": 1}, b""),
            (["a"], b""),
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


def host(channel: Channel | None = None, n: int = 2) -> server.Host:
    slots = [server.Slot(Quiet(), ("cost",)) for _ in range(n)]
    return server.Host(slots, channel or Channel(*os.pipe()))


class Quiet(bridged.Line):
    def __init__(self):
        self.start, self.random = 0.0, np.random.default_rng(0)


class Visit:
    """A server in a thread and this end of its pipes; whatever is said, the server must come to an end."""

    def __enter__(self):
        source, self.sink = os.pipe()
        self.source, sink = os.pipe()
        self.channel = Channel(self.source, self.sink, SOON)
        self.result: list = []

        def serve():
            try:
                self.result.append(host(Channel(source, sink, timeout=0.3)).talk())
            except BaseException as error:
                self.result.append(error)
            os.close(source)
            os.close(sink)

        self.thread = threading.Thread(target=serve, daemon=True)
        self.thread.start()
        return self

    def write(self, wire: bytes) -> None:
        """All of it, unless the server has left."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self.sink, wire)

    def rest(self) -> list[Frame]:
        """What the server still says after we hung up, before it does."""
        if self.sink is not None:
            os.close(self.sink)
            self.sink = None
        found = []
        with contextlib.suppress(EOFError):
            while True:
                found.append(self.channel.receive(SOON))
        return found

    def __exit__(self, *_):
        self.rest()
        self.thread.join(SOON)
        os.close(self.source)
        assert not self.thread.is_alive()
        assert self.result[0] in (0, 2), self.result


def step(number: int, action=None, **data) -> Frame:
    return Frame("step", number, data, {"action": np.zeros((2, 1), np.float32) if action is None else action})


def reset(number: int, **data) -> Frame:
    return Frame("reset", number, data or {"seeds": [[0, 1], [1, None]]})


class TestServer:
    def test_a_conversation(self):
        with Visit() as visit:
            for frame in (reset(1), step(2), reset(3, seeds=[[1, None]])):
                visit.channel.send(frame)
                answer = visit.channel.receive(SOON)
                assert (answer.kind, answer.id) == (frame.kind, frame.id)
            assert answer.arrays["obs"].shape == (1, 2)
            assert visit.rest() == []
        assert visit.result == [0]

    @pytest.mark.parametrize(
        "frames",
        [
            [reset(2)],  # out of order
            [reset(1), step(1)],
            [Frame("hello", 1)],
            [Frame("error", 1)],
            [Frame("reset", 1)],
            [reset(1, seeds=5)],
            [reset(1, seeds=[])],
            [reset(1, seeds=[1])],
            [reset(1, seeds=[[0, -1]])],
            [reset(1, seeds=[[0, 2.5]])],
            [reset(1, seeds=[[2, 1]])],
            [reset(1, seeds=[[-1, 1]])],
            [reset(1), step(2, np.zeros((3, 1), np.float32))],
            [reset(1), step(2, np.zeros((2, 1), np.float64))],
            [reset(1), step(2, np.full((2, 1), np.nan, np.float32))],
            [reset(1), step(2, more=1)],
            [reset(1), Frame("step", 2)],
        ],
    )
    def test_a_command_that_breaks_the_protocol_is_the_last(self, frames):
        with Visit() as visit:
            for frame in frames:
                visit.channel.send(frame)
            last = visit.rest()[-1]
            assert last.kind == "error"
            assert last.data["env"] is None
        assert visit.result == [2]

    @settings(max_examples=60, deadline=None)
    @given(st.booleans(), st.binary(max_size=200), st.booleans())
    def test_noise(self, begun, noise, framed):
        """Bytes, bare or as the inside of a frame: refused, and the server ends without waiting for more."""
        with Visit() as visit:
            if begun:
                visit.channel.send(reset(1))
                assert visit.channel.receive(SOON).kind == "reset"
            if framed:
                half = len(noise) // 2
                noise = server.PREFIX.pack(server.MAGIC, half, len(noise) - half) + noise
            visit.write(noise)
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
            visit.write(wire)
            visit.rest()

    def test_a_frame_that_never_ends(self):
        """The pipe stays open, but the rest of the frame does not come."""
        for wire in (b"T", server.encode(reset(1))[:-1]):
            with Visit() as visit:
                visit.write(wire)
                visit.thread.join(SOON)
                assert visit.result in ([0], [2])

    def test_a_learner_that_does_not_read(self):
        """Answers fill the pipe; the server does not wait for ever."""
        with Visit() as visit, contextlib.suppress(BrokenPipeError):
            for number in itertools.count(1):
                visit.channel.send(reset(number))
        assert visit.result == [0]

    def test_a_huge_length(self):
        with Visit() as visit:
            visit.write(server.PREFIX.pack(server.MAGIC, 10, 2**32 - 1))
            assert "at most" in visit.rest()[-1].data["message"]

    def test_noise_for_a_real_server(self, python, tmp_path):
        """Random bytes and a pickle that would write a file: the process leaves, and nothing was executed."""
        bomb, proof = bomb_and_proof(tmp_path)
        wires = [np.random.default_rng(0).bytes(300), b"", bomb]
        wires += [server.PREFIX.pack(server.MAGIC, len(bomb), 0) + bomb]
        for wire in wires:
            with child(command(python), cwd=HERE) as (process, channel):
                assert channel.receive(SOON).kind == "hello"
                os.write(channel.sink, wire)
            assert process.returncode == (2 if wire else 0)
        assert not proof.exists()


def bomb_and_proof(folder: pathlib.Path) -> tuple[bytes, pathlib.Path]:
    """A pickle that makes a file when it is loaded, and that file."""
    proof = folder / "executed"

    class Bomb:
        def __reduce__(self):
            return pathlib.Path.touch, (proof,)

    return pickle.dumps(Bomb()), proof


def welcome(**changes) -> Frame:
    hello = host().hello()
    return hello._replace(data={**hello.data, **changes})


def stepped() -> Frame:
    room = host()
    room.reset(reset(1))
    room.number = 2
    return room.step(step(2))


def wires(*, hello: Frame | None = None, first: Frame | None = None, second: Frame | None = None) -> list[bytes]:
    answer = Frame("reset", 1, {}, {"obs": np.zeros((2, 2))})
    return [server.encode(frame) for frame in (hello or welcome(), first or answer, second or stepped())]


def altered(frame: Frame, **arrays) -> Frame:
    return frame._replace(arrays={**frame.arrays, **arrays})


Answers = Callable[..., BridgeVectorEnv]


@pytest.fixture(scope="module")
def answers(tmp_path_factory) -> Answers:
    """A server of two environments that says what a test tells it, whatever it is asked; then `after` it runs on."""
    folder = tmp_path_factory.mktemp("answers")

    def start(*wires: bytes, after: str = "exit 0", timeout: float = 2.0):
        (folder / "wire").write_bytes(b"".join(wires))
        (folder / "after").write_text(after)
        return BridgeVectorEnv(str(folder / "python"), "m:f", [2], options(timeout=timeout, start_timeout=timeout), {})

    (folder / "python").write_text(f"#!/bin/sh\ncat {folder}/wire\n. {folder}/after\n")
    (folder / "python").chmod(0o755)
    return start


def converse(envs: BridgeVectorEnv):
    """A reset and a step. Whatever fails, the process is gone."""
    try:
        envs.reset(seed=1)
        return envs.step(np.zeros((2, 1)))
    except trouble.BridgeError:
        assert all(server.popen.returncode is not None for server in envs.servers)
        raise
    finally:
        envs.close()


class TestClient:
    def test_a_conversation(self, answers):
        *_, info = converse(answers(*wires()))
        np.testing.assert_array_equal(info["cost"], [0, 0])

    @pytest.mark.parametrize(
        "changes",
        [
            {"hello": welcome(more=1)},
            {"hello": welcome(max_steps=-5)},
            {"hello": welcome(max_steps=True)},
            {"hello": welcome(versions=[1])},
            {"hello": welcome(discrete=True)},  # but not integers
            {"hello": welcome()._replace(data={})},
            {"hello": welcome()._replace(arrays={})},
            {"hello": altered(welcome(), obs=np.full((2, 2), np.nan))},
            {"hello": altered(welcome(), obs=np.zeros((3, 2)))},
            {"hello": altered(welcome(), obs=np.float64(3))},
            {"hello": altered(welcome(), action=np.array([[1.0], [0.0]]))},
            {"hello": altered(welcome(discrete=True), action=np.array([1, 0]))},
            {"hello": altered(welcome(discrete=True), action=np.array([-(2**63), 2**63 - 1]))},
            {"hello": altered(welcome(), more=np.zeros(1))},
            {"hello": Frame("busy", 0, {"env": 0})},
            {"hello": Frame("error", 0, {"env": None, "message": "", "traceback": ""})},
            {"first": Frame("reset", 1, {}, {"obs": np.zeros((3, 2))})},
            {"first": Frame("reset", 1, {}, {"obs": np.zeros((2, 2), np.float32)})},
            {"first": Frame("reset", 1)},
            {"first": Frame("step", 1)},
            {"first": Frame("reset", 2, {}, {"obs": np.zeros((2, 2))})},
            {"first": Frame("error", 1, {"code": 5})},
            {"first": Frame("error", 1, {"env": None, "message": "", "traceback": ""})},
            {"first": Frame("error", 1, {"env": 2, "message": "", "traceback": ""})},
            {"first": Frame("error", 2, {"env": 0, "message": "", "traceback": ""})},
            {"first": stepped(), "second": Frame("reset", 1, {}, {"obs": np.zeros((2, 2))})},  # swapped
            {"first": Frame("busy", 1, {"env": 2})},
            {"first": Frame("busy", 2, {"env": 0})},
            {"first": Frame("busy", 1, {})},
            {"second": stepped()._replace(data={})},
            {"second": stepped()._replace(data={"info": 5})},
            {"second": stepped()._replace(data={"info": [{}]})},
            {"second": stepped()._replace(data={"info": ["cost", "cost"]})},
            {"second": stepped()._replace(data={"info": [{}, {"cost": "1"}]})},
            {"second": altered(stepped(), reward=np.zeros(3))},
            {"second": altered(stepped(), terminated=np.zeros(2, np.uint8))},
            {"second": altered(stepped(), more=np.zeros((1, 2)))},
            {"second": altered(stepped(), obs=np.float64(3))},
            {"second": altered(stepped(), obs=np.zeros((2, 10**5)))},
        ],
    )
    def test_an_answer_that_breaks_the_protocol(self, answers, changes):
        with pytest.raises(trouble.ProtocolError):
            converse(answers(*wires(**changes)))

    def test_signs_of_life_are_heard_but_not_for_ever(self, answers):
        hello, first, second = wires()
        busy = server.encode(Frame("busy", 1, {"env": 1}))
        assert converse(answers(hello, *[busy] * 2, first, second))[0].shape == (2, 2)
        with pytest.raises(trouble.ProtocolError, match="busy 1 came in answer to reset 1"):
            converse(answers(hello, *[busy] * 3, first, second))

    def test_another_version(self, answers):
        with pytest.raises(trouble.VersionError, match="version 99"):
            answers(*wires(hello=welcome(version=99)))

    def test_silence_is_a_timeout(self, answers):
        for wire in (b"", server.encode(welcome())[:40]):
            with pytest.raises(trouble.BridgeTimeoutError, match="start_timeout"):
                answers(wire, after="exec sleep 1000", timeout=0.3)
        for wire in (b"", wires()[1][:-1]):
            with pytest.raises(trouble.BridgeTimeoutError, match=r"no answer to reset within 0\.3 s"):
                converse(answers(wires()[0], wire, after="exec sleep 1000", timeout=0.3))

    def test_a_slow_drip_is_a_timeout(self, answers):
        """One byte after another, each in time: the frame as a whole is late."""
        drip = "while true; do printf x; sleep 0.05; done"
        with pytest.raises(trouble.BridgeTimeoutError):
            answers(server.PREFIX.pack(server.MAGIC, 1000, 0), after=drip, timeout=0.5)

    def test_a_server_that_does_not_read(self, answers):
        """A command that is larger than the pipe, to a process that hangs."""
        shape = np.zeros((2, 10**5), np.float32)
        envs = answers(*wires(hello=altered(welcome(), action=shape))[:2], after="exec sleep 1000", timeout=0.3)
        envs.reset(seed=1)
        with pytest.raises(trouble.BridgeTimeoutError, match="no answer to step"):
            envs.step(np.zeros((2, 10**5)))

    def test_a_pickle(self, answers, tmp_path):
        bomb, proof = bomb_and_proof(tmp_path)
        for wire in (bomb, server.PREFIX.pack(server.MAGIC, len(bomb), 0) + bomb):
            with pytest.raises(trouble.ProtocolError):
                answers(wire)
        assert not proof.exists()

    def test_a_pipe_that_is_closed_by_a_process_that_lives_on(self, answers):
        with pytest.raises(trouble.ServerDiedError, match="closed its pipe"):
            answers(after="exec >&- sleep 1000")

    @settings(max_examples=100, deadline=None)
    @given(noise=st.binary(max_size=300), after=st.integers(0, 3), framed=st.booleans())
    def test_noise(self, answers, noise, after, framed):
        if framed:
            half = len(noise) // 2
            noise = server.PREFIX.pack(server.MAGIC, half, len(noise) - half) + noise
        try:
            converse(answers(*wires()[:after], noise))
            assert after == 3
        except trouble.BridgeError:
            assert after < 3

    @settings(max_examples=150, deadline=None)
    @given(data=st.data())
    def test_changed_bytes(self, answers, data):
        wire = bytearray(b"".join(wires()))
        for _ in range(data.draw(st.integers(1, 4))):
            wire[data.draw(st.integers(0, len(wire) - 1))] = data.draw(st.integers(0, 255))
        wire = wire[: data.draw(st.integers(0, len(wire)))]
        with contextlib.suppress(trouble.BridgeError):
            assert converse(answers(bytes(wire)))[0].shape == (2, 2)
