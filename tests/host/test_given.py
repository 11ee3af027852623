"""Environments and trunks given as objects, of any kind and shape."""

import functools

import fakes
import gymnasium
import numpy as np
import pytest
import trunks
from probes import TwoArms

import tqpo
from tqpo import references, store
from tqpo.errors import ConfigError, EnvError
from tqpo.host.probe import make_own
from tqpo.host.reference import task_of
from tqpo.output import export
from tqpo.training.job import Job

SMALL = {"n_envs": 2, "n_steps": 32, "epochs": 1, "minibatches": 2, "hidden": (8, 8)}
FEW = {"steps": 128, "episodes": 4, "snapshots": 1, "quiet": True, "cost_limit": 2.0}


def local_class():
    class Mine(fakes.Counter):
        pass

    return Mine


@pytest.mark.parametrize(
    "env",
    [
        fakes.Counter,
        fakes.long,
        local_class(),
        lambda: fakes.long(7),
        functools.partial(fakes.long, limit=7),
        fakes.Counter(),
        gymnasium.wrappers.TimeLimit(fakes.Endless(), 9),
    ],
    ids=["class", "function", "local class", "lambda", "partial", "instance", "wrapped instance"],
)
def test_an_environment_is_given_as_itself(env):
    spec = make_own(task_of(env))
    assert spec.obs_size == 2
    made = spec.make(), spec.make()
    assert made[0] is not made[1] is not env  # an instance is copied


def test_what_has_a_name_is_called_by_it():
    assert task_of(fakes.Counter) == "fakes:Counter"
    assert (task_of("CartPole-v1"), task_of("SimpleEnv"), task_of("a:b")) == ("gym:CartPole-v1", "SimpleEnv", "a:b")
    name = task_of(local_class())
    assert references.is_local(name)
    assert (references.shown(name), references.shown("fakes:Counter")) == ("Mine", "fakes:Counter")


def test_an_environment_in_jax_is_given_as_itself():
    env = TwoArms()
    assert Job(task=task_of(env)).env() is env


def test_what_is_no_environment_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="a int is no environment"):
        task_of(3)
    with pytest.raises(ConfigError, match="is a vector of environments: give a function of num_envs"):
        task_of(gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync"))
    stuck = fakes.Counter()
    stuck.log = (x for x in ())  # a generator cannot be copied
    with pytest.raises(ConfigError, match=r"Counter cannot be copied .* give its class"):
        task_of(stuck)
    spec = {"vector": "async", "settings": SMALL} | FEW
    with pytest.raises(EnvError, match=r"cannot be sent to another process .* use vector = sync"):
        tqpo.train(lambda held=stuck: fakes.Counter(), out=tmp_path / "run", **spec)


@pytest.mark.slow
def test_another_program_must_be_given_what_has_no_name(tmp_path, monkeypatch):
    mine, out = local_class(), tmp_path / "run"

    def cost(obs, action, next_obs, info):
        return 1.0

    class Trunk(trunks.Features):
        pass

    tqpo.train(mine, cost_fn=cost, out=out, settings=SMALL | {"trunk": Trunk}, **FEW)
    needs = store.open_run(out).config["needs"]
    assert "tqpo.evaluate(run, env=Mine, cost_fn=cost, trunk=Trunk)" in needs
    assert "tqpo.load(run, trunk=Trunk)" in needs
    obs = np.zeros(2)
    expected = tqpo.load(out).act(obs, deterministic=True)
    monkeypatch.setattr(references, "_local", {})  # as in another program
    with pytest.raises(ConfigError, match="it lived in the program that trained"):
        tqpo.evaluate(out, episodes=2)
    policy = tqpo.load(out, trunk=Trunk)
    np.testing.assert_array_equal(policy.act(obs, deterministic=True), expected)
    assert tqpo.evaluate(out, episodes=2, env=mine(), cost_fn=cost)["pooled"]["episodes"] == 2
    assert tqpo.report(out).exists()
    with pytest.raises(TypeError, match="envv"):
        tqpo.load(out, envv=mine)


@pytest.mark.slow
def test_a_name_needs_nothing_in_its_place(tmp_path):
    tqpo.train("CartPole-v1", cost_fn=lambda *_: 1.0, out=tmp_path / "run", settings=SMALL, **FEW)
    with pytest.raises(ConfigError, match="was trained with gym:CartPole-v1, and needs nothing in its place"):
        tqpo.evaluate(tmp_path / "run", env=fakes.Counter)
    for same in ("CartPole-v1", "gym:CartPole-v1"):
        assert tqpo.evaluate(tmp_path / "run", env=same, episodes=2)["pooled"]["episodes"] == 2


@pytest.mark.slow
def test_what_has_no_name_may_be_given_by_one(tmp_path, monkeypatch):
    out, ones = tmp_path / "run", {"cost_fn": lambda *_: 1.0}
    tqpo.train(lambda **how: gymnasium.make("CartPole-v1", **how), out=out, settings=SMALL, **ones, **FEW)
    monkeypatch.setattr(references, "_local", {})  # as in another program
    for name in ("CartPole-v1", "gym:CartPole-v1"):
        assert tqpo.evaluate(out, episodes=2, env=name, **ones)["pooled"]["episodes"] == 2
    with pytest.raises(ConfigError, match="No module named 'nowhere'"):
        tqpo.evaluate(out, episodes=2, env="nowhere:make", **ones)


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["tqpo", "budget"])
def test_pictures_train_with_the_cnn(algo, tmp_path):
    settings = SMALL | {"trunk": "cnn", "activation": "relu"}
    tqpo.train(fakes.Picture, algo=algo, out=tmp_path / "run", settings=settings, **FEW)
    policy = tqpo.load(tmp_path / "run")
    picture = np.full((8, 8, 3), 40, np.uint8)
    action = policy.act(picture, deterministic=True)
    policy.reset()
    actions, _ = policy.predict(np.stack([picture, 0 * picture]), deterministic=True)
    assert (action.shape, actions.shape) == ((1,), (2, 1))
    np.testing.assert_allclose(actions[0], action, atol=1e-5)
    assert actions[1] != actions[0]
    assert export.export(tmp_path / "run", "stablehlo")[0].exists()


@pytest.mark.slow
def test_several_choices_are_learned(tmp_path):
    """Random dials earn 1/2 + 1/3 in a step; both at their best earn 2. The action space refuses any other number."""
    settings = SMALL | {"n_steps": 64, "epochs": 4, "learning_rate": 0.01}
    found = tqpo.train(fakes.Locks, algo="ppo", out=tmp_path / "run", settings=settings, **FEW | {"steps": 2560})
    seed = found["seeds"][0]
    assert sum(seed["returns"]) / sum(seed["lengths"]) > 1.6
    policy = tqpo.load(tmp_path / "run")
    np.testing.assert_array_equal(policy.act(np.zeros(2), deterministic=True), [1, 7])
    assert policy.predict(np.zeros((4, 2)))[0].shape == (4, 2)
