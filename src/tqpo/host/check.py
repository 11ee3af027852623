"""Whether someone's environment is fit for training: what `tqpo check-env` says."""

import dataclasses
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tqpo.errors import TqpoError
from tqpo.host.batch import Hosts, Tick
from tqpo.host.spec import UNLIMITED, Hosting, HostSpec, border_of, make_own

COUNT = 2  # environments side by side: what two share by mistake shows
WIDE = 10_000  # numbers in an observation that is probably a picture
SLOW = 1000  # steps/s


class Finding(NamedTuple):
    level: str  # "ok", "warning" or "error"
    what: str
    text: str
    advice: str = ""


class Walk(NamedTuple):
    """Random actions in a batch, and what came of them."""

    ticks: list[Tick]
    seconds: float


def check_env(
    task: str, settings: Mapping[str, Any], cost_fn: str | None, hosting: Hosting, steps: int = 1000
) -> list[Finding]:
    """Findings in the order of looking; the last is an error if it stopped there."""
    try:
        spec = make_own(task, settings, cost_fn, dataclasses.replace(hosting, restarts=0))
    except TqpoError as error:
        return [Finding("error", "first step", *split(str(error)))]
    if not isinstance(spec, HostSpec):
        return check_jax(spec, steps)
    found = spaces(spec)
    try:
        walk = take_walk(spec, steps)
        again = take_walk(spec, min(steps, 200))
    except TqpoError as error:
        return [*found, Finding("error", "random actions", *split(str(error)))]
    return [*found, *costs(spec, walk), episodes(spec, walk), repeats(walk, again), mode(spec), speed(spec, walk)]


def split(message: str) -> tuple[str, str]:
    """What happened, and what to do about it, of an error's message."""
    text, colon, advice = message.partition("\nIt failed")[0].partition(": give ")
    return text, f"give {advice}" if colon else ""


def spaces(spec: HostSpec) -> list[Finding]:
    border = border_of(spec)
    wide = spec.obs_size > WIDE
    return [
        Finding(
            "warning" if wide else "ok",
            "observations",
            f"{border.observation_space}: {spec.obs_size:,} numbers",
            "this looks like a picture, and the networks here are for vectors: extract features first" if wide else "",
        ),
        Finding(
            "ok", "actions", f"{border.action_space}: {'one of' if spec.discrete else 'a vector of'} {spec.action_size}"
        ),
    ]


def take_walk(spec: HostSpec, steps: int, seed: int = 0) -> Walk:
    """So many steps in all; the same for the same seed if the environments are deterministic."""
    random = np.random.default_rng(seed)
    ticks = []
    with Hosts(spec, COUNT, seed) as hosts:
        first = hosts.reset()
        started = time.perf_counter()
        for _ in range(-(-steps // COUNT)):
            actions = random.uniform(-1, 1, (COUNT, spec.action_size)).astype(np.float32)
            ticks.append(hosts.tick(actions))
        seconds = time.perf_counter() - started
    ticks.insert(0, ticks[0]._replace(obs=first, valid=np.zeros(COUNT, bool)))
    return Walk(ticks, seconds)


def costs(spec: HostSpec, walk: Walk) -> list[Finding]:
    """The walk came to its end, so a cost was there in every step, finite and not negative."""
    cost = np.concatenate([t.cost[t.valid] for t in walk.ticks])  # [steps, C]
    source = spec.cost_fn or "the environment"
    found = []
    for k, name in enumerate(spec.cost_names):
        mine = cost[:, k]
        text = f"from {source} in all of {len(mine):,} steps; {np.mean(mine > 0):.0%} of them above 0, mean {mine.mean():.3g}"
        never = not mine.any()
        advice = "it was 0 in every step of random actions: see that it can be more" if never else ""
        found.append(Finding("warning" if never else "ok", f"cost {name!r}" if k else "cost", text, advice))
    return found


def episodes(spec: HostSpec, walk: Walk) -> Finding:
    """A constraint is about whole episodes, so they must end."""
    terminated = sum(int((t.terminated & t.valid).sum()) for t in walk.ticks)
    truncated = sum(int((t.truncated & t.valid).sum()) for t in walk.ticks)
    text = f"{terminated} terminated and {truncated} truncated in {sum(int(t.valid.sum()) for t in walk.ticks):,} steps"
    if spec.max_steps < UNLIMITED:
        return Finding("ok", "episodes", f"{text}; time-out after {spec.max_steps:,} steps")
    advice = "wrap it in gymnasium.wrappers.TimeLimit, or --task-set max_episode_steps=… of a gym:ID"
    if terminated + truncated == 0:
        return Finding("warning", "episodes", f"{text}, and no time limit is known", advice)
    return Finding("ok", "episodes", f"{text}; no time limit is known")


def repeats(one: Walk, two: Walk) -> Finding:
    names = {"obs": "observation", "reward": "reward", "cost": "cost", "terminated": "end", "truncated": "end"}
    for t, (a, b) in enumerate(zip(one.ticks, two.ticks, strict=False)):
        for field, name in names.items():
            if not np.array_equal(getattr(a, field), getattr(b, field)):
                text = f"step {t}: another {name} with the same seed and the same actions"
                return Finding(
                    "warning", "determinism", text, "draw randomness from self.np_random, which reset(seed) sets"
                )
    return Finding("ok", "determinism", f"same seed, same actions, same {len(two.ticks) - 1} steps")


def mode(spec: HostSpec) -> Finding:
    if not spec.own_vector:
        return Finding("ok", "autoreset", f"{spec.hosting.autoreset}, {spec.hosting.vector} vector of Gymnasium's")
    with Hosts(spec, COUNT, 0) as hosts:
        hosts.reset()
        assert hosts.vector is not None
        return Finding("ok", "autoreset", f"{hosts.vector.metadata['autoreset_mode'].value}, by its own vector")


def speed(spec: HostSpec, walk: Walk) -> Finding:
    rate = COUNT * (len(walk.ticks) - 1) / walk.seconds
    slow = rate < SLOW and spec.hosting.vector == "sync" and not spec.own_vector
    advice = "--vector async runs each environment in a process of its own" if slow else ""
    return Finding("warning" if slow else "ok", "throughput", f"{rate:,.0f} steps/s ({spec.hosting.vector})", advice)


def check_jax(env: Any, steps: int) -> list[Finding]:
    """A pure JAX environment: its protocol, compiled and in a batch."""
    import jax

    found = [Finding("ok", "kind", f"a JAX environment: {env.obs_size} observations, {env.action_size} actions")]
    try:
        hash(env)
        state, obs = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), COUNT))
        step = jax.jit(jax.vmap(env.step))
        shapes = {"obs": (COUNT, env.obs_size), "cost": (COUNT, len(env.cost_names))}
        shapes |= {"reward": (COUNT,), "terminated": (COUNT,), "truncated": (COUNT,)}
        action = np.zeros((COUNT, env.action_size), np.float32)
        state, seen = step(state, action)
        wrong = [
            f"{name} of shape {np.shape(getattr(seen, name))[1:]}, expected {shape[1:]}"
            for name, shape in shapes.items()
            if np.shape(getattr(seen, name)) != shape
        ]
        if np.shape(obs) != shapes["obs"]:
            wrong.append(f"reset's observation of shape {np.shape(obs)[1:]}, expected {shapes['obs'][1:]}")
        if wrong:
            return [*found, Finding("error", "step", "; ".join(wrong), "one copy's arrays; batches come from vmap")]
        if env.cost_names[0] != "cost":
            return [*found, Finding("error", "cost", f"cost_names = {env.cost_names}", 'the first must be "cost"')]
        started = time.perf_counter()
        for _ in range(min(steps, 200)):
            state, seen = step(state, action)
        finite = all(bool(np.all(np.isfinite(x))) for x in seen) and bool(np.all(np.asarray(seen.cost) >= 0))
        rate = COUNT * min(steps, 200) / (time.perf_counter() - started)
    except Exception as error:
        return [*found, Finding("error", "step", f"{type(error).__name__}: {error}", "reset and step must be pure JAX")]
    level = "ok" if finite else "error"
    found.append(
        Finding(level, "numbers", "finite, costs not negative" if finite else "not finite, or a negative cost")
    )
    found.append(Finding("ok", "costs", f"{', '.join(env.cost_names)}: these can be constrained"))
    found.append(Finding("ok", "episodes", f"time-out after {env.max_steps:,} steps"))
    return [*found, Finding("ok", "throughput", f"{rate:,.0f} steps/s, one by one; a training batch is much faster")]
