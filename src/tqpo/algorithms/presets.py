"""Presets: configurations as data.

`paper` is the released configuration, network and all. `released` also has what its code does otherwise than the paper says.
`fast` is the default: small networks, more environments, minibatches, a margin, and for TQPO the baseline p(s), for a laptop
as for a GPU.
"""

import dataclasses
from typing import Any

from tqpo.algorithms import ALGORITHMS, budget, ppo, ppo_lag, qcpo, tqpo
from tqpo.algorithms.dual import DualConfig, Tilt
from tqpo.algorithms.learner import LearnerConfig
from tqpo.algorithms.settings import Constraint, field_names, replace
from tqpo.errors import UnknownNameError, did_you_mean
from tqpo.networks import NetworkSpec

MEAN = (Constraint(kind="mean"),)

PAPER_LEARNER = LearnerConfig(
    network=NetworkSpec(kind="lstm", hidden=(512, 512), init="torch"),
    n_envs=12,
    n_steps=1000,
    epochs=8,
    minibatches=1,
    segment=100,
    bootstrap_timeouts=False,  # a time-out is treated as the end of the return
    discount=0.99,
    gae_lambda=0.97,
    cost_discount=0.99,
    cost_gae_lambda=0.97,
    clip=0.1,
    learning_rate=1e-4,
    adam_eps=1e-8,
    max_grad_norm=1.0,  # the class default; both released configuration files say 1e4 (`released`)
    value_coef=1.0,
    cost_value_coef=0.5,
)
PAPER_DUAL = DualConfig(initial_multiplier=0.5, gain=0.1, cost_scale=10.0, delta=0.1, alpha=1.0)
PAPER_DUAL_QCPO = dataclasses.replace(PAPER_DUAL, initial_multiplier=0.0, tilt=Tilt.NONE, max_step=float("inf"))

# What the authors' code does where `paper` does something else (docs/reproduction.md has the list, beside their code). The
# tilt's window of 100 counts from its 101st entry on, which never comes.
RELEASED_LEARNER = dataclasses.replace(PAPER_LEARNER, gae_segments=True, max_grad_norm=1e4)
RELEASED_DUAL = dataclasses.replace(PAPER_DUAL, count_from=101)
RELEASED_DUAL_QCPO = dataclasses.replace(PAPER_DUAL_QCPO, count_from=101)
RELEASED_QUANTILE = (Constraint(upper=True),)

FAST_LEARNER = LearnerConfig(
    network=NetworkSpec(kind="mlp", hidden=(64, 64)),
    n_envs=240,  # many and short, which is what a GPU and wide vectors are fast at
    n_steps=100,
    epochs=4,
    minibatches=8,
    clip=0.2,
    learning_rate=3e-4,
    adam_eps=1e-5,
)
# λ starts small, so that the task is learned first: a policy that is held back before it can do anything stays so. Its steps
# are larger than the paper's, because the λ that a task needs differs by a factor of ten, but not much: an episode takes ten
# iterations, and what λ does shows only then.
FAST_DUAL = dataclasses.replace(
    PAPER_DUAL, initial_multiplier=0.2, gain=0.16, max_step=3.0, max_multiplier=20.0, delta=0.3
)
FAST_DUAL_QCPO = dataclasses.replace(PAPER_DUAL_QCPO, max_multiplier=5.0)
FAST_QUANTILE = (Constraint(margin=0.2),)  # what training keeps in hand for fresh episodes


def of_all(
    learner: LearnerConfig, quantile: tuple[Constraint, ...], untilted: DualConfig, **of_tqpo: Any
) -> dict[str, Any]:
    """One config for each algorithm; `untilted` is for those without the tilt."""
    return {
        "ppo": ppo.Config(learner=learner),
        "ppo-lag": ppo_lag.Config(learner=learner, constraints=MEAN, dual=untilted),
        "qcpo": qcpo.Config(learner=learner, constraints=quantile, dual=untilted),
        "tqpo": tqpo.Config(learner=learner, constraints=quantile, **of_tqpo),
        "budget": budget.Config(learner=dataclasses.replace(learner, observe_budget=True)),
    }


PRESETS: dict[str, dict[str, Any]] = {
    "paper": of_all(PAPER_LEARNER, (Constraint(),), PAPER_DUAL_QCPO, dual=PAPER_DUAL, step_window=100_000),
    "released": of_all(
        RELEASED_LEARNER, RELEASED_QUANTILE, RELEASED_DUAL_QCPO, dual=RELEASED_DUAL, step_window=100_000
    ),
    "fast": of_all(
        FAST_LEARNER,
        FAST_QUANTILE,
        FAST_DUAL_QCPO,
        dual=FAST_DUAL,
        baseline="separate",
        step_window=10_000,  # of 100 episodes' 100,000 steps, every tenth: q̂ is a sort in every iteration
        step_stride=10,
    ),
}
PRESETS["fast"]["budget"] = replace(
    PRESETS["fast"]["budget"], learning_rate=1e-3, learning_rate_exponent=0.75, restart_share=0.5
)

# What a preset changes in our own tasks.
TASK_SETTINGS: dict[str, dict[str, Any]] = {"released": {"next_button": "random", "late_cost": True}}

# What the preset fast changes for an algorithm in one task, and for its variants but for what makes them variants. Gremlins
# move, and one look does not say where to: a memory does, and learns it from longer stretches (docs/algorithms.md). Nor does
# the noise of actions shrink there by itself, as on the other tasks: it is made to, and a kept policy acts with half of it.
# A dial that is nearly safe there is lost in its first 200 steps if at all; its policies are kept while the learning rate is
# still large, and their weights are averaged over what it does to them. TQPO learns to drive through gremlins before λ is
# large, unless λ is fast. On DynamicEnv fewer restarts earned more at 95 % after 5 M steps, and no less after 20 M.
LONG = {"n_envs": 48, "n_steps": 500}
BY_TASK: dict[tuple[str, str], dict[str, Any]] = {
    ("budget", "GremlinEnv"): LONG
    | {"kind": "lstm", "hidden": (128, 128), "segment": 50, "restart_share": 0.0}
    | {"noise_fall": 0.9, "acting_noise": 0.5},
    ("budget", "DynamicEnv"): {"restart_share": 0.2},
    ("budget-dial", "GremlinEnv"): {"restart_share": 0.5, "restart_steps": 200, "noise_fall": 1.2}
    | {"dial_exponent": 1.2, "dial_haste": 0.3, "acting_average": 80},
    ("tqpo", "GremlinEnv"): LONG | {"gain": 0.3},
}

# What a preset changes for environments on the host, whose steps are dear: fewer of them, used more often.
HOST: dict[str, dict[str, Any]] = {
    "fast": {
        "n_envs": 8,
        "n_steps": 512,
        "epochs": 10,
        "minibatches": 32,
        "learning_rate": 3e-4,
        "learning_rate_exponent": 0.0,
        "restart_share": 0.0,
        "normalize_advantage": True,  # rewards of any scale
        "episode_window": 50,
        "step_window": 8192,  # two batches
        "step_stride": 1,
        "delta": 1.0,
        "max_step": 3.0,
        "max_multiplier": 5.0,
        "quantile_window": 20,
        "gain": 0.1,
    },
}
OWN = {"cost_scale": None}  # of environments that are not ours: costs of any scale

# What each variant changes.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "qcpo-tilt": ("qcpo", {"tilt": Tilt.ADAPTIVE}),
    "tqpo-no-tilt": ("tqpo", {"tilt": Tilt.NONE}),
    "tqpo-fixed-tilt": ("tqpo", {"tilt": Tilt.FIXED}),
    "tqpo-released-tilt": ("tqpo", {"tilt": Tilt.RELEASED}),
    "tqpo-baseline": ("tqpo", {"baseline": "separate"}),
    "tqpo-no-baseline": ("tqpo", {"baseline": "none"}),
    "tqpo-observed": ("tqpo", {"observe_budget": True}),
    "ppo-lag-observed": ("ppo-lag", {"observe_budget": True}),
    "ppo-early": ("ppo", {"observe_budget": True, "end_at_limit": True}),
    "budget-dial": ("budget", {"dial": True, "restart_share": 0.6, "restart_steps": 60}),
    "budget-blind": ("budget", {"observe_budget": False}),
    "budget-no-homotopy": ("budget", {"start_outage": 0.0}),
    "budget-no-dense": ("budget", {"dense_weight": 0.0}),
    "budget-no-restarts": ("budget", {"restart_share": 0.0}),
}

# name → what it bounds, what it is
DESCRIPTIONS: dict[str, tuple[str, str]] = {
    "tqpo": ("quantile", "Tilted Quantile Policy Optimization (Li, Ruan, Geng 2025)"),
    "budget": ("quantile", "PPO that sees what is left of its cost limit, with a critic of Pr[C > d]"),
    "qcpo": ("quantile", "Quantile-Constrained Policy Optimization (Jung et al. 2022), Weibull tail"),
    "ppo-lag": ("mean", "PPO with a Lagrange multiplier on the expected episode cost"),
    "ppo": ("none", "PPO: the reference that shows what safety costs"),
    "tqpo-no-tilt": ("quantile", "TQPO with equal steps of λ up and down"),
    "tqpo-fixed-tilt": ("quantile", "TQPO with the fixed rates η₊ = 0.2, η₋ = 0.8"),
    "tqpo-released-tilt": ("quantile", "TQPO with the tilt as the released code computes it"),
    "tqpo-baseline": (
        "quantile",
        "TQPO with a learned baseline p(s) for its indicator (on in the preset fast)",
    ),
    "tqpo-no-baseline": ("quantile", "TQPO without that baseline (as in the paper)"),
    "qcpo-tilt": ("quantile", "QCPO with TQPO's tilt"),
    "tqpo-observed": ("quantile", "TQPO that sees what is left of its cost limit"),
    "ppo-lag-observed": ("mean", "PPO-Lagrangian that sees what is left of its cost limit"),
    "ppo-early": ("none", "PPO whose training episodes end where the limit is reached"),
    "budget-dial": ("quantile", "budget whose one run passes every level and keeps a policy for each"),
    "budget-blind": ("quantile", "budget without what is left of the limit in its observation"),
    "budget-no-homotopy": ("quantile", "budget held to its level from the first iteration on"),
    "budget-no-dense": ("quantile", "budget without the plain cost"),
    "budget-no-restarts": ("quantile", "budget whose environments run every episode to its end"),
}


def changes_on(task: str, name: str, algorithm: str) -> dict[str, Any]:
    """What a preset changes for an algorithm or variant in one task."""
    if name != "fast":
        return {}
    base, variant = VARIANTS.get(algorithm, (algorithm, {}))
    of_base = {k: v for k, v in BY_TASK.get((base, task), {}).items() if k not in variant}
    return of_base | BY_TASK.get((algorithm, task), {})


def preset(
    name: str = "fast", algorithm: str = "tqpo", *, own: bool = False, host: bool = False, **changes: Any
) -> Any:
    """The config of an algorithm or variant, with settings changed by name (`settings.replace`); with `own`, for a user's
    environment, and with `host`, for one on the host."""
    if name not in PRESETS:
        raise UnknownNameError(f"no preset {name!r}; there are {', '.join(PRESETS)}{did_you_mean([name], PRESETS)}")
    base, variant = VARIANTS.get(algorithm, (algorithm, {}))
    if base not in PRESETS[name]:
        known = [*ALGORITHMS, *VARIANTS]
        hint = did_you_mean([algorithm], known)
        raise UnknownNameError(f"no algorithm {algorithm!r}; there are {', '.join(known)}{hint}")
    config = PRESETS[name][base]
    usual = (HOST.get(name, {}) if host else {}) | (OWN if own else {})
    usual = {k: v for k, v in usual.items() if k in field_names(config)}
    return replace(config, **(variant | usual | changes))
