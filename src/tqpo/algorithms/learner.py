"""What every algorithm here shares: a network that acts, its returns, and clipped-surrogate epochs on a batch.

An algorithm gives the heads it needs and a loss on the network's outputs; it never sees minibatches, segments, the
optimiser or the normaliser. An update that is not finite is skipped and counted.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from tqpo import networks
from tqpo.algorithms import episodes, rollout
from tqpo.algorithms.settings import require, settings, static
from tqpo.maths import distribution, normalize, returns, schedule
from tqpo.maths.normalize import Moments
from tqpo.networks import Actor, Head, Network, NetworkSpec, Outputs
from tqpo.types import Array, Batch, Env, Key, PyTree, Spec, choices, obs_shape


@settings
class LearnerConfig:
    """Batches, networks and PPO."""

    network: NetworkSpec = static(default=NetworkSpec())
    n_envs: int = static(default=64)  # B: environments that step together
    n_steps: int = static(default=1000)  # T: steps of each environment in an iteration
    epochs: int = static(default=4)  # times that each batch is learned from
    minibatches: int = static(default=4)  # gradient steps per epoch
    observe_budget: bool = static(default=False)  # the observation shows what is left of each limit (`envs.budget`)
    end_at_limit: bool = static(default=False)  # and an episode ends where a limit is reached
    restart_share: float = static(default=0.0)  # of the environments: these begin anew again and again (in JAX)
    restart_steps: int = static(default=100)  # after so many steps
    segment: int = static(default=100)  # steps of back-propagation through time (lstm)
    gae_segments: bool = static(
        default=False
    )  # GAE's sum stops at each segment's end and bootstraps there (as released)
    episode_window: int = static(default=100)  # finished episodes that statistics are taken over
    bootstrap_timeouts: bool = static(default=True)  # False: a time-out ends the return
    normalize_advantage: bool = static(default=False)  # of the reward; λ then weighs against standard deviations
    acting_average: int = static(default=0)  # iterations whose weights a kept policy averages; 0: the last alone
    matmul_precision: str | None = static(default="tensorfloat32")  # on a GPU; CPUs have one precision
    discount: float = 0.99  # γ of the reward
    gae_lambda: float = 0.97  # of the reward's advantages
    cost_discount: float = 0.99  # γ of the cost
    cost_gae_lambda: float = 0.97  # of the cost's advantages
    clip: float = 0.2  # r_clip: how far PPO lets a probability change
    learning_rate: float = 3e-4  # β, of Adam
    learning_rate_exponent: float = 0.0  # how fast it falls with the iteration; 0: constant
    decay_offset: float = 100.0  # iterations before an exponent bites
    adam_eps: float = 1e-8  # ε of Adam
    max_grad_norm: float = 1.0  # longer gradients are scaled down to it
    entropy_coef: float = 0.0  # weight of the entropy bonus
    value_coef: float = 1.0  # weight of the value loss
    cost_value_coef: float = 0.5  # weight of the cost value loss
    acting_noise: float = 1.0  # of the noise a policy learns with, the share that it acts with once it is kept


class LearnerState(NamedTuple):
    key: Key  # the run's; every draw folds the iteration into it
    iteration: Array  # [] int32
    network: Network
    opt_state: optax.OptState
    moments: Moments  # of observations
    runner: rollout.Runner | None  # None where environments live on the host
    episodes: episodes.Episodes
    skipped_in_a_row: Array  # [] int32 updates skipped since the last good one
    average: Actor | None = None  # of the actor's weights (`acting_average`); None: a policy is kept as it is


class Experience(NamedTuple):
    """A rollout with the heads' values at each step and after it, as the acting network saw them."""

    rollout: rollout.Rollout
    values: dict[str, Array]  # [T, B, …] at obs
    next_values: dict[str, Array]  # [T, B, …] at next_obs; meaningless at `ended`
    cut: Array  # [T, B] the last step of an episode, for whatever reason
    whole: Array  # [T, B] and not because it was made to begin anew
    ended: Array  # [T, B] where nothing follows: terminated, or any cut if time-outs count as ends
    finished: episodes.Finished
    episode_cost_before: Array  # [T, B, C] the episode's cost so far, before this step
    episode_cost: Array  # [T, B, C] and with it


class Sample(NamedTuple):
    """Steps as the loss sees them, [L, N, …]: N segments of L steps (L = 1 without memory)."""

    obs: Array  # normalised
    action: Array
    log_prob: Array
    context: networks.Context | None  # None without memory


# (outputs, log π(a|s), sample, targets) → loss to minimise, metrics: plain means over all steps (`_mean_loss` takes parts)
Loss = Callable[[Outputs, Array, Sample, Any], tuple[Array, dict[str, Array]]]


def check(config: LearnerConfig) -> None:
    """Raises for a structure that cannot work."""
    for name in ("n_envs", "n_steps", "epochs", "minibatches", "segment", "episode_window"):
        require(getattr(config, name) >= 1, f"{name} = {getattr(config, name)}: at least 1")
    unit, per = ("steps", 1)
    if config.network.kind == "lstm":
        unit, per = ("segments", config.segment)
        require(
            config.n_steps % config.segment == 0,
            f"n_steps = {config.n_steps}: a multiple of segment = {config.segment}",
        )
    total = config.n_envs * config.n_steps // per
    require(total % config.minibatches == 0, f"minibatches = {config.minibatches}: must divide {total} {unit} a batch")
    require(0 <= config.restart_share < 1, f"restart_share = {config.restart_share}: in [0, 1)")
    require(config.restart_steps >= 1, f"restart_steps = {config.restart_steps}: at least 1")
    require(config.acting_average >= 0, f"acting_average = {config.acting_average}: not negative")
    require(config.learning_rate > 0, f"learning_rate = {config.learning_rate}: positive")
    for name in ("clip", "acting_noise"):
        require(getattr(config, name) > 0, f"{name} = {getattr(config, name)}: positive")
    for name in ("discount", "gae_lambda", "cost_discount", "cost_gae_lambda"):
        require(0 <= getattr(config, name) <= 1, f"{name} = {getattr(config, name)}: in [0, 1]")


def init(key: Key, env: Spec, config: LearnerConfig, heads: Mapping[str, Head]) -> LearnerState:
    """Fresh weights, fresh environments, nothing seen."""
    network_key, start_key, run_key = jax.random.split(key, 3)
    sizes = env.obs_size, env.action_size
    spaces = {"discrete": env.discrete, "obs_shape": obs_shape(env), "choices": choices(env)}
    network = networks.make_network(network_key, config.network, *sizes, heads, **spaces)
    memory = networks.initial_memory(network.actor, (config.n_envs,))
    return LearnerState(
        key=run_key,
        iteration=jnp.zeros((), jnp.int32),
        network=network,
        opt_state=_adam(config).init(network),  # type: ignore[arg-type]
        moments=normalize.init(env.obs_size),
        runner=rollout.start(start_key, env, config.n_envs, memory) if isinstance(env, Env) else None,
        episodes=episodes.init(config.n_envs, len(env.cost_names), config.episode_window),
        skipped_in_a_row=jnp.zeros((), jnp.int32),
        average=network.actor if config.acting_average else None,
    )


def make_policy(network: Network, moments: Moments, record: bool = False) -> rollout.Policy:
    """The network as a policy; with `record` its decisions carry the heads' values. Zero noise acts greedily."""

    def decide(obs, memory, prev_action, prev_reward, noise):
        x = normalize.normalize(moments, obs)
        mean, log_std, memory, features = networks.act(network.actor, x, memory, prev_action, prev_reward)
        action = distribution.sample(mean, log_std, noise)
        outputs = networks.read_heads(network, x, features) if record else None
        return rollout.Decision(action, distribution.log_prob(mean, log_std, action), memory, outputs)

    return decide


def collect(state: LearnerState, env: Env, config: LearnerConfig) -> tuple[LearnerState, Experience]:
    """One batch: T steps of B environments under the present policy."""
    key = jax.random.fold_in(state.key, 2 * state.iteration)
    recurrent = state.network.actor.lstm is not None
    policy = make_policy(state.network, state.moments, record=recurrent)
    shape = config.n_envs, config.n_steps
    cut_off = rollout.cuts(state.iteration, env, *shape, config.restart_share, config.restart_steps)
    runner, seen = rollout.rollout(
        key,
        env,
        policy,
        state.runner,  # pyright: ignore[reportArgumentType]  (an environment that can be scanned has one)
        config.n_steps,
        segment=config.segment if recurrent else None,
        look_ahead=recurrent and (config.bootstrap_timeouts or cut_off.happen),
        cut_off=cut_off,
    )
    most = rollout.pool_size(*shape, env.min_steps)
    return examine(state._replace(runner=runner), seen, config, most, cut_off)


def examine(
    state: LearnerState, seen: rollout.Rollout, config: LearnerConfig, most: int, cut_off: rollout.Cuts
) -> tuple[LearnerState, Experience]:
    """A rollout, in which at most `most` episodes end besides those `cut_off`, with what the network says about it."""
    batch = seen.batch
    values, next_values = seen.outputs, seen.next_outputs
    if values is None:
        values, next_values = _values(state, batch, config.bootstrap_timeouts or cut_off.happen, most + cut_off.most)
    cut = batch.terminated | batch.truncated
    whole = batch.terminated | (batch.truncated & ~cut_off.after)
    # Where environments begin anew, short episodes are the likelier ones to be whole: none of theirs counts.
    counted = whole & ~cut_off.again
    now, finished, after = episodes.add(state.episodes, batch.reward, batch.cost, cut, most, counted)
    before = episodes.cost_before(state.episodes, after, cut)
    ended = batch.terminated if config.bootstrap_timeouts else whole
    experience = Experience(seen, values, next_values, cut, whole, ended, finished, before, after)
    return state._replace(episodes=now), experience


def _values(
    state: LearnerState, batch: Batch, after_timeouts: bool, most: int
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Without memory the heads are read for the whole batch at once.

    next_obs is the next row's obs, except in the last row and where an episode ended. Only those are read anew, the latter
    if values `after_timeouts`, of which there are `most`, are asked for.
    """

    def read(obs):
        return networks.read_heads(state.network, normalize.normalize(state.moments, obs), None)

    values, last = read(batch.obs), read(batch.next_obs[-1])
    next_values = jax.tree.map(lambda x, end: jnp.concatenate([x[1:], end[None]]), values, last)
    if after_timeouts:
        at = jnp.nonzero(batch.truncated, size=most, fill_value=0)  # (t, b); spare places all point at (0, 0)
        there = read(batch.next_obs[at])
        next_values = jax.tree.map(lambda x, y: x.at[at].set(y), next_values, there)
    return values, next_values


def _sum_ends(experience: Experience, config: LearnerConfig) -> Array:
    """Where the sum of GAE stops, [T, B]: at an episode's last step, with `gae_segments` also at each segment's."""
    if not config.gae_segments:
        return experience.cut
    last = (1 + jnp.arange(config.n_steps)) % config.segment == 0
    return experience.cut | last[:, None]


def reward_targets(experience: Experience, config: LearnerConfig) -> tuple[Array, Array]:
    """Advantage and return of the reward, [T, B]."""
    value = experience.values["value"]
    advantage = returns.gae(
        experience.rollout.batch.reward,
        value,
        experience.next_values["value"],
        experience.ended,
        _sum_ends(experience, config),
        config.discount,
        config.gae_lambda,
    )
    target = advantage + value
    if config.normalize_advantage:
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    return advantage, target


def cost_targets(
    experience: Experience, cost: Array, value: Array, next_value: Array, config: LearnerConfig
) -> tuple[Array, Array]:
    """Advantage and return (discounted cost to go, GAE estimate) of costs [T, B, K] with these value estimates."""
    advantage = returns.gae(
        cost,
        value,
        next_value,
        experience.ended,
        _sum_ends(experience, config),
        config.cost_discount,
        config.cost_gae_lambda,
    )
    return advantage, advantage + value


def fit(
    state: LearnerState, config: LearnerConfig, loss: Loss, experience: Experience, targets: PyTree
) -> tuple[LearnerState, dict[str, Array]]:
    """Normaliser, then epochs × minibatches of Adam on `loss`; `targets` are arrays [T, B, …]. Ends the iteration."""
    batch = experience.rollout.batch
    moments = normalize.merge(state.moments, batch.obs)
    moments = _choose(_all_finite(moments), moments, state.moments)
    sample, targets, memory = _arrange(experience, state.network, moments, targets, config)
    n = sample.log_prob.shape[1]
    learning_rate = schedule.power(
        state.iteration, config.learning_rate, config.decay_offset, config.learning_rate_exponent
    )
    warm = state.iteration > 0  # the first batch only feeds the normaliser

    def total(network, sample, targets, memory):
        outputs = networks.unroll(network, sample.obs, sample.context, memory)
        log_prob = distribution.log_prob(outputs.mean, outputs.log_std, sample.action)
        return _mean_loss(loss, outputs, log_prob, sample, targets)

    pack, unpack = _packing(state.network)

    def minibatch(carry, chosen):
        weights, opt_state, in_a_row = carry
        part = _take((sample, targets, memory), chosen)
        (value, parts), grads = jax.value_and_grad(total, has_aux=True)(unpack(weights), *part)
        grads = pack(grads)
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
        finite = jnp.isfinite(value) & jnp.isfinite(norm)
        stepped = _adam_step(weights, opt_state, grads, norm, learning_rate, config)
        weights, opt_state = _choose(finite & warm, stepped, (weights, opt_state))
        in_a_row = jnp.where(finite, 0, in_a_row + 1)
        return (weights, opt_state, in_a_row), (parts | {"grad_norm": norm}, finite, in_a_row)

    order = _order(jax.random.fold_in(state.key, 2 * state.iteration + 1), n, config)
    adam: Any = state.opt_state
    carry = (pack(state.network), adam._replace(mu=pack(adam.mu), nu=pack(adam.nu)), state.skipped_in_a_row)
    (weights, adam, in_a_row), (parts, finite, worst) = jax.lax.scan(
        minibatch, carry, order, length=config.epochs * config.minibatches
    )
    network, opt_state = unpack(weights), adam._replace(mu=unpack(adam.mu), nu=unpack(adam.nu))
    metrics = {name: _mean_where(finite, x) for name, x in parts.items()}
    metrics |= {
        "skipped": (~finite).sum(),
        "skipped_in_a_row": worst.max(),
        "steps": jnp.array(config.n_steps * config.n_envs),
    }
    if isinstance(network.actor.log_std, jax.Array):
        metrics["log_std"] = network.actor.log_std.mean()
    state = state._replace(
        iteration=state.iteration + 1,
        network=network,
        opt_state=opt_state,
        moments=moments,
        skipped_in_a_row=in_a_row,
    )
    return state, metrics


def averaged(state: LearnerState, config: LearnerConfig) -> LearnerState:
    """At an iteration's end, with its weights in the average: of all so far, and once there are enough an exponential one."""
    if state.average is None:
        return state
    share = 1.0 / jnp.minimum(state.iteration, config.acting_average)
    average = jax.tree.map(lambda old, new: old + share * (new - old), state.average, state.network.actor)
    return state._replace(average=average)


def _arrange(experience: Experience, network: Network, moments: Moments, targets: PyTree, config: LearnerConfig):
    """[T, B, …] → [L, N, …]: segments for an LSTM, with the memory [N, H] at their start; else single steps."""
    seen, batch = experience.rollout, experience.rollout.batch
    recurrent = seen.memory is not None
    length = config.segment if recurrent else 1

    def segments(x):
        x = x.reshape(config.n_steps // length, length, *x.shape[1:])  # [S, L, B, …]
        return x.swapaxes(0, 1).reshape(length, -1, *x.shape[3:])  # [L, S·B, …]

    context = networks.Context(seen.prev_action, seen.prev_reward, seen.first) if recurrent else None
    obs = networks.align(network, normalize.normalize(moments, batch.obs))
    sample = Sample(obs, batch.action, batch.log_prob, context)
    memory = jax.tree.map(lambda x: x.reshape(-1, x.shape[-1]), seen.memory)  # [S, B, H] → [S·B, H]
    return *jax.tree.map(segments, (sample, targets)), memory


def _order(key: Key, n: int, config: LearnerConfig) -> Array | None:
    """Shuffled indices of each minibatch, [epochs·minibatches, n/minibatches]; None: always the whole batch."""
    if config.minibatches == 1:
        return None
    low = (n - 1).bit_length()  # bits that hold an index; those above are random

    def shuffled(key):
        """One array is sorted, not pairs: much faster on a CPU. Ties are neighbours, whose order does not matter."""
        drawn = jax.random.bits(key, (n,)) >> low << low
        return jnp.sort(drawn | jnp.arange(n, dtype=drawn.dtype)) & ((1 << low) - 1)

    order = jax.vmap(shuffled)(jax.random.split(key, config.epochs)).astype(int)  # [epochs, n]
    return order.reshape(config.epochs * config.minibatches, n // config.minibatches)


def _take(data: tuple[Sample, PyTree, PyTree], chosen: Array | None):
    if chosen is None:
        return data
    sample, targets, memory = data
    sample, targets = jax.tree.map(lambda x: x.at[:, chosen].get(mode="promise_in_bounds"), (sample, targets))
    return sample, targets, jax.tree.map(lambda x: x[chosen], memory)


def _packing(network: Network) -> tuple[Callable[[Network], PyTree], Callable[[PyTree], Network]]:
    """How the optimiser holds weights, and back: on a GPU in one array, so that a step is a few kernels, not some for each layer.
    A CPU has cheap kernels and is slow at picking elements of many arrays."""
    if jax.default_backend() == "cpu":
        return (lambda x: x), (lambda x: x)
    return (lambda x: ravel_pytree(x)[0]), ravel_pytree(network)[1]


def _mean_loss(loss: Loss, outputs: Outputs, log_prob: Array, sample: Sample, targets: PyTree):
    """The loss over a minibatch, and its parts. A GPU sums each part over one sequence first, then all of them in one reduction: a
    few kernels that keep it busy."""
    log_ratio = log_prob - sample.log_prob
    kl = jnp.expm1(log_ratio) - log_ratio
    if jax.default_backend() == "cpu":
        value, parts = loss(outputs, log_prob, sample, targets)
        return value, parts | {"loss": value, "kl": jnp.mean(kl)}
    along: Any = Outputs(1, None, 1, 1)  # pyright: ignore[reportArgumentType]
    values, parts = jax.vmap(loss, (along, 1, 1, 1))(outputs, log_prob, sample, targets)
    parts |= {"loss": values, "kl": kl.mean(0)}  # [N, …]
    rows = jnp.concatenate([x.reshape(len(x), -1).T for x in parts.values()])  # [P, N]
    ends = np.cumsum([x[0].size for x in parts.values()])[:-1].tolist()
    means = zip(parts.items(), jnp.split(rows.mean(-1), ends), strict=True)
    return values.mean(), {name: mean.reshape(x.shape[1:]) for (name, x), mean in means}


def _adam(config: LearnerConfig) -> optax.GradientTransformation:
    return optax.scale_by_adam(eps=config.adam_eps)


def _adam_step(weights: PyTree, opt_state, grads: PyTree, norm, learning_rate, config: LearnerConfig):
    """Adam on gradients whose norm is clipped as PyTorch clips it: g·min(1, max/(‖g‖ + 1e-6))."""
    scale = jnp.minimum(1.0, config.max_grad_norm / (norm + 1e-6))
    grads = jax.tree.map(lambda g: g * scale, grads)
    updates, opt_state = _adam(config).update(grads, opt_state)
    return jax.tree.map(lambda p, u: p - learning_rate * u, weights, updates), opt_state


def _mean_where(mask: Array, x: Array) -> Array:
    """Mean over the leading axis of the entries in `mask`, 0 if there is none."""
    kept = jnp.where(mask.reshape(-1, *(1,) * (x.ndim - 1)), x, 0.0)
    return kept.sum(0) / jnp.maximum(mask.sum(), 1)


def _all_finite(tree: PyTree) -> Array:
    return jnp.all(jnp.array([jnp.isfinite(x).all() for x in jax.tree.leaves(tree)]))


def _choose(flag: Array, new: PyTree, old: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: jnp.where(flag, a, b), new, old)
