"""Whether someone's environment is fit for training: what `tqpo check-env` says."""

import dataclasses
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tqpo.errors import TqpoError
from tqpo.host.batch import EnvBatch
from tqpo.host.own_vector import mode_of
from tqpo.host.spec import UNLIMITED, HostOptions, HostSpec, make_own
from tqpo.host.transition import Transitions

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

    first: np.ndarray  # [N, O]
    steps: list[Transitions]
    seconds: float

    def all(self, field: str) -> np.ndarray:
        """A field of every step that happened, [steps, …]."""
        return np.concatenate([getattr(step, field)[step.valid] for step in self.steps])


def check_env(
    task: str, settings: Mapping[str, Any], cost_fn: str | None, options: HostOptions, steps: int = 1000
) -> list[Finding]:
    """Findings in the order of looking; the last is an error if it stopped there."""
    try:
        spec = make_own(task, settings, cost_fn, dataclasses.replace(options, restarts=0))
    except TqpoError as error:
        return [Finding("error", "first step", *split(str(error)))]
    if not isinstance(spec, HostSpec):
        return check_jax(spec, steps)
    findings = spaces(spec)
    try:
        walk = take_walk(spec, steps)
        again = take_walk(spec, min(steps, 200))
    except TqpoError as error:
        return [*findings, Finding("error", "random actions", *split(str(error)))]
    findings += [*costs(spec, walk), episodes(spec, walk), repeats(walk, again), speed(spec, walk)]
    return [*findings, mode(spec)] if spec.own_vector else findings


def split(message: str) -> tuple[str, str]:
    """What happened, and what to do about it, of an error's message."""
    text, colon, advice = message.partition("\nIt failed")[0].partition(": give ")
    return text, f"give {advice}" if colon else ""


def spaces(spec: HostSpec) -> list[Finding]:
    border = spec.border
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
    with EnvBatch(spec, COUNT, seed) as envs:
        first, seen = envs.reset(), []
        started = time.perf_counter()
        for _ in range(-(-steps // COUNT)):
            seen.append(envs.step(random.uniform(-1, 1, (COUNT, spec.action_size)).astype(np.float32)))
        return Walk(first, seen, time.perf_counter() - started)


def costs(spec: HostSpec, walk: Walk) -> list[Finding]:
    """The walk came to its end, so a cost was there in every step, finite and not negative."""
    cost = walk.all("cost")  # [steps, C]
    source = spec.cost_fn or "the environment"
    findings = []
    for k, name in enumerate(spec.cost_names):
        mine = cost[:, k]
        text = f"from {source} in all of {len(mine):,} steps; {np.mean(mine > 0):.0%} of them above 0, mean {mine.mean():.3g}"
        never = not mine.any()
        advice = "it was 0 in every step of random actions: see that it can be more" if never else ""
        findings.append(Finding("warning" if never else "ok", f"cost {name!r}" if k else "cost", text, advice))
    return findings


def episodes(spec: HostSpec, walk: Walk) -> Finding:
    """A constraint is about whole episodes, so they must end."""
    terminated, truncated = walk.all("terminated"), walk.all("truncated")
    text = f"{terminated.sum()} terminated and {truncated.sum()} truncated in {len(terminated):,} steps"
    if spec.max_steps < UNLIMITED:
        return Finding("ok", "episodes", f"{text}; time-out after {spec.max_steps:,} steps")
    advice = "wrap it in gymnasium.wrappers.TimeLimit, or --task-set max_episode_steps=… of a gym:ID"
    if not (terminated | truncated).any():
        return Finding("warning", "episodes", f"{text}, and no time limit is known", advice)
    return Finding("ok", "episodes", f"{text}; no time limit is known")


def repeats(one: Walk, two: Walk) -> Finding:
    names = {"obs": "observation", "reward": "reward", "cost": "cost", "terminated": "end", "truncated": "end"}
    differing = [] if np.array_equal(one.first, two.first) else [(0, "observation")]
    for t, (a, b) in enumerate(zip(one.steps, two.steps, strict=False), 1):
        differing += [
            (t, name) for field, name in names.items() if not np.array_equal(getattr(a, field), getattr(b, field))
        ]
    if not differing:
        return Finding("ok", "determinism", f"same seed, same actions, same {len(two.steps)} steps")
    t, name = differing[0]
    text = f"step {t}: another {name} with the same seed and the same actions"
    return Finding("warning", "determinism", text, "draw randomness from self.np_random, which reset(seed) sets")


def mode(spec: HostSpec) -> Finding:
    vector = spec.worker().make(num_envs=COUNT)
    try:
        return Finding("ok", "autoreset", f"{mode_of(vector).value}, by its own vector")
    finally:
        vector.close()


def speed(spec: HostSpec, walk: Walk) -> Finding:
    rate = COUNT * len(walk.steps) / walk.seconds
    vector = "its own vector" if spec.own_vector else spec.options.vector
    slow = rate < SLOW and vector == "sync"
    advice = "--vector async runs each environment in a process of its own" if slow else ""
    return Finding("warning" if slow else "ok", "throughput", f"{rate:,.0f} steps/s ({vector})", advice)


def check_jax(env: Any, steps: int) -> list[Finding]:
    """A pure JAX environment: its protocol, compiled and in a batch."""
    import jax

    findings = [Finding("ok", "kind", f"a JAX environment: {env.obs_size} observations, {env.action_size} actions")]
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
            return [*findings, Finding("error", "step", "; ".join(wrong), "one copy's arrays; batches come from vmap")]
        if env.cost_names[0] != "cost":
            return [*findings, Finding("error", "cost", f"cost_names = {env.cost_names}", 'the first must be "cost"')]
        started = time.perf_counter()
        for _ in range(min(steps, 200)):
            state, seen = step(state, action)
        finite = all(bool(np.all(np.isfinite(x))) for x in seen) and bool(np.all(np.asarray(seen.cost) >= 0))
        rate = COUNT * min(steps, 200) / (time.perf_counter() - started)
    except Exception as error:
        return [
            *findings,
            Finding("error", "step", f"{type(error).__name__}: {error}", "reset and step must be pure JAX"),
        ]
    level = "ok" if finite else "error"
    findings.append(
        Finding(level, "numbers", "finite, costs not negative" if finite else "not finite, or a negative cost")
    )
    findings.append(Finding("ok", "costs", f"{', '.join(env.cost_names)}: these can be constrained"))
    findings.append(Finding("ok", "episodes", f"time-out after {env.max_steps:,} steps"))
    return [*findings, Finding("ok", "throughput", f"{rate:,.0f} steps/s, one by one; a training batch is much faster")]
