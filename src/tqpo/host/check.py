"""Whether someone's environment is fit for training: what `tqpo check-env` says."""

import dataclasses
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tqpo.errors import TqpoError
from tqpo.host.batch import ENDLESS, EnvBatch
from tqpo.host.probe import make_own
from tqpo.host.spec import HostOptions, HostSpec
from tqpo.host.transition import Transitions
from tqpo.types import UNLIMITED

COUNT = 2  # environments side by side: what two share by mistake shows
WIDE = 10_000  # numbers in an observation that is probably a picture
SLOW = 1000  # steps/s
EPISODES = 100  # of random actions, whose costs and returns are shown
PATIENCE = 10.0  # s for them
LEVELS = (0.5, 0.8, 0.9, 0.95)


class Finding(NamedTuple):
    level: str  # "ok", "warning" or "error"
    what: str
    text: str
    advice: str = ""


def finding(what: str, text: str, advice: str = "") -> Finding:
    """A warning if there is advice."""
    return Finding("warning" if advice else "ok", what, text, advice)


class Walk(NamedTuple):
    """Random actions in a batch, and what came of them."""

    first: np.ndarray  # [N, O]
    steps: list[Transitions]
    seconds: float

    def all(self, field: str) -> np.ndarray:
        """A field of every step that happened, [steps, …]."""
        return np.concatenate([getattr(step, field)[step.valid] for step in self.steps])

    def totals(self) -> np.ndarray:
        """Return and costs of every episode that ended, [E, 1 + C]."""
        ended, running = [], np.zeros((COUNT, 1 + self.steps[0].cost.shape[1]))
        for step in self.steps:
            running = np.where(step.valid[:, None], running + np.column_stack([step.reward, step.cost]), 0.0)
            ended.append(running[step.ended])
            running[step.ended] = 0.0
        return np.concatenate(ended)


def check_env(
    task: str, settings: Mapping[str, Any], cost_fn: str | None, options: HostOptions, steps: int = 1000
) -> list[Finding]:
    """Findings in the order of looking; the last is an error if it stopped there."""
    try:
        spec = make_own(task, settings, cost_fn, dataclasses.replace(options, restarts=0))
    except TqpoError as error:
        return [failure("first step", error)]
    if not isinstance(spec, HostSpec):
        return check_jax(spec, steps)
    findings = spaces(spec)
    try:
        walk, again = take_walk(spec, steps, EPISODES), take_walk(spec, min(steps, 200))
    except TqpoError as error:
        return [*findings, failure("random actions", error)]
    findings += [*costs(spec, walk), episodes(spec, walk), *totals(spec.cost_names, walk.totals())]
    findings += [repeats(walk, again), speed(spec, walk)]
    own = [finding("autoreset", f"{spec.autoreset}, by its own vector")]
    return findings + own if spec.autoreset else findings


def failure(what: str, error: TqpoError) -> Finding:
    """What happened, and what to do about it."""
    text, colon, advice = str(error).partition("\nIt failed")[0].partition(": give ")
    return Finding("error", what, text, f"give {advice}" if colon else "")


def spaces(spec: HostSpec) -> list[Finding]:
    picture = "if this is a picture, train with --set trunk=cnn"
    advice = picture if spec.obs_size > WIDE else ""
    kind = "a vector of" if not spec.discrete else f"{len(spec.choices)} choices, in all" if spec.choices else "one of"
    return [
        finding("observations", f"{spec.border.observation_space}: {spec.obs_size:,} numbers", advice),
        finding("actions", f"{spec.border.action_space}: {kind} {spec.action_size}"),
    ]


def take_walk(spec: HostSpec, steps: int, episodes: int = 0, seed: int = 0) -> Walk:
    """So many steps in all, and more until so many episodes have ended, if that does not take long.

    The same for the same seed if the environments are deterministic.
    """
    random = np.random.default_rng(seed)
    with EnvBatch(spec, COUNT, seed) as envs:
        first, seen, ended = envs.reset(), [], 0
        started = time.perf_counter()
        while COUNT * len(seen) < steps or (ended < episodes and time.perf_counter() - started < PATIENCE):
            if envs.ledger.t.max() + 1 == ENDLESS and spec.max_steps == UNLIMITED:
                break
            seen.append(envs.step(random.uniform(-1, 1, (COUNT, spec.action_size)).astype(np.float32)))
            ended += int(seen[-1].ended.sum())
        return Walk(first, seen, time.perf_counter() - started)


def costs(spec: HostSpec, walk: Walk) -> list[Finding]:
    """The walk came to its end, so a cost was there in every step, finite and not negative."""
    source = spec.cost_fn or "the environment"
    findings = []
    for name, cost in zip(spec.cost_names, walk.all("cost").T, strict=True):
        share = f"{np.mean(cost > 0):.0%} of them above 0, mean {cost.mean():.3g}"
        advice = "" if cost.any() else "it was 0 in every step of random actions: see that it can be more"
        what = "cost" if name == "cost" else f"cost {name!r}"
        findings.append(finding(what, f"from {source} in all of {len(cost):,} steps; {share}", advice))
    return findings


def episodes(spec: HostSpec, walk: Walk) -> Finding:
    """A constraint is about whole episodes, so they must end."""
    terminated, truncated = walk.all("terminated"), walk.all("truncated")
    text = f"{terminated.sum()} terminated and {truncated.sum()} truncated in {len(terminated):,} steps"
    if spec.max_steps < UNLIMITED:
        return finding("episodes", f"{text}; time-out after {spec.max_steps:,} steps")
    if not (terminated | truncated).any():
        return Finding("error", "episodes", f"{text}; no time limit is known", "truncate them, as in --max-steps 1000")
    advice = f"--max-steps, if one may last longer than {ENDLESS:,} steps, which is an error"
    return finding("episodes", f"{text}; no time limit is known", advice)


def totals(cost_names: tuple[str, ...], sums: np.ndarray) -> list[Finding]:
    """What whole episodes [E, 1 + C] of random actions come to: a limit is chosen by it."""
    if not len(sums):
        return []
    seen = f"{len(sums)} episodes of random actions"
    low, mean, high = sums[:, 0].min(), sums[:, 0].mean(), sums[:, 0].max()
    findings = [finding("return", f"{mean:.4g} on average, {low:.4g} to {high:.4g}, in {seen}")]
    for name, each in zip(cost_names, sums[:, 1:].T, strict=True):
        parts = [f"{level:.0%} cost at most {np.quantile(each, level, method='higher'):.4g}" for level in LEVELS]
        what = "episode cost" if name == "cost" else f"episode cost {name!r}"
        findings.append(finding(what, f"of {seen} {', '.join(parts)}, the worst {each.max():.4g}"))
    return findings


def repeats(one: Walk, two: Walk) -> Finding:
    names = {"obs": "observation", "reward": "reward", "cost": "cost", "terminated": "end", "truncated": "end"}
    pairs = [(0, "observation", one.first, two.first)]
    for t, (a, b) in enumerate(zip(one.steps, two.steps, strict=False), 1):
        pairs += [(t, name, getattr(a, field), getattr(b, field)) for field, name in names.items()]
    for t, name, a, b in pairs:
        if not np.array_equal(a, b):
            text = f"step {t}: another {name} with the same seed and the same actions"
            return finding("determinism", text, "draw randomness from self.np_random, which reset(seed) sets")
    return finding("determinism", f"same seed, same actions, same {len(two.steps)} steps")


def speed(spec: HostSpec, walk: Walk) -> Finding:
    rate = COUNT * len(walk.steps) / walk.seconds
    vector = "its own vector" if spec.autoreset else spec.options.vector
    slow = rate < SLOW and vector == "sync"
    advice = "--vector async runs each environment in a process of its own" if slow else ""
    return finding("throughput", f"{rate:,.0f} steps/s ({vector})", advice)


def check_jax(env: Any, steps: int) -> list[Finding]:
    """A pure JAX environment: its protocol, compiled and in a batch."""
    findings = [finding("kind", f"a JAX environment: {env.obs_size} observations, {env.action_size} actions")]
    try:
        seen, rate = walk_jax(env, min(steps, 200))
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        return [*findings, Finding("error", "step", text, "reset and step must be pure JAX")]
    shapes = {"obs": (env.obs_size,), "cost": (len(env.cost_names),), "reward": (), "terminated": (), "truncated": ()}
    shapes["reset's observation"] = shapes["obs"]
    wrong = [
        f"{name} of shape {np.shape(seen[name])[1:]}, expected {shape}"
        for name, shape in shapes.items()
        if np.shape(seen[name])[1:] != shape
    ]
    if wrong:
        return [*findings, Finding("error", "step", "; ".join(wrong), "one copy's arrays; batches come from vmap")]
    if env.cost_names[0] != "cost":
        return [*findings, Finding("error", "cost", f"cost_names = {env.cost_names}", 'the first must be "cost"')]
    if not all(np.all(np.isfinite(x)) for x in seen.values()) or np.any(seen["cost"] < 0):
        return [*findings, Finding("error", "numbers", "not finite, or a negative cost")]
    return [
        *findings,
        finding("numbers", "finite, costs not negative"),
        finding("costs", f"{', '.join(env.cost_names)}: these can be constrained"),
        finding("episodes", f"time-out after {env.max_steps:,} steps"),
        *totals(env.cost_names, jax_totals(env)),
        finding("throughput", f"{rate:,.0f} steps/s, one by one; a training batch is much faster"),
    ]


def jax_totals(env: Any) -> np.ndarray:
    """Return and costs [E, 1 + C] of episodes of random actions; one without an end is cut."""
    import jax
    import jax.numpy as jnp

    def episode(key):
        def step(carry, key):
            state, sums, alive = carry
            action = jax.random.uniform(key, (env.action_size,), minval=-1.0)
            action = jax.nn.one_hot(action.argmax(), env.action_size) if env.discrete else action
            state, seen = env.step(state, action)
            sums += alive * jnp.concatenate([seen.reward[None], seen.cost])
            return (state, sums, alive & ~(seen.terminated | seen.truncated)), None

        start, walk = jax.random.split(key)
        begun = env.reset(start)[0], jnp.zeros(1 + len(env.cost_names)), jnp.array(True)
        (_, sums, _), _ = jax.lax.scan(step, begun, jax.random.split(walk, min(env.max_steps, ENDLESS)))
        return sums

    return np.asarray(jax.jit(jax.vmap(episode))(jax.random.split(jax.random.key(0), EPISODES)))


def walk_jax(env: Any, steps: int) -> tuple[dict[str, np.ndarray], float]:
    """The fields of the last of so many steps, with reset's observation, and steps/s."""
    import jax

    hash(env)
    state, obs = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), COUNT))
    step, action = jax.jit(jax.vmap(env.step)), np.zeros((COUNT, env.action_size), np.float32)
    state, seen = step(state, action)
    started = time.perf_counter()
    for _ in range(steps):
        state, seen = step(state, action)
    fields = {name: np.asarray(x) for name, x in seen._asdict().items()} | {"reset's observation": np.asarray(obs)}
    return fields, COUNT * steps / (time.perf_counter() - started)
