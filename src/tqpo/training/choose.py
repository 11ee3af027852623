"""Which policy of a run is kept: of those that are certified, the one with the highest return.

A pilot orders the candidates; then they are tested one after the other in fresh episodes, the safest first, until one
fails (`maths.sequential.fixed_sequence`). So with the stated confidence the kept policy meets its level, however many
there were to choose from. No evaluation uses these episodes.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tqpo import store
from tqpo.algorithms.settings import Constraint
from tqpo.errors import StoreError
from tqpo.evaluation.certificate import CONFIDENCE, Closing, claims_of, describe, examine
from tqpo.evaluation.episodes import ActorPolicy, Totals
from tqpo.evaluation.fresh import check_physics, fresh_of_each, stream
from tqpo.maths import sequential, statistics
from tqpo.training.certificates import (
    Asked,
    Pilot,
    add_certificates,
    certify_policy,
    certify_run,
    entry_of,
    key_of,
    testing_order,
    with_limits,
)
from tqpo.training.job import Prepared, has_dial, prepared_of
from tqpo.training.policies import load_dial, load_policies, load_policy, save_policies
from tqpo.training.progress import Say

PILOT_SEED = 2_000_003  # these episodes share no key with training or evaluation
TEST_SEED = 4_000_037  # nor these with any of them
ASKED_SEEDS = (5_000_011, 6_000_011)  # of pilot and test where another level is asked of a dial
MEANS_CONFIDENCE = 0.9  # two-sided, with which the pilot must keep a bound on a mean: no certificate covers it


class Choice(NamedTuple):
    """The label of the kept policy, and what was found of it, as a certificate tells it; None without a constraint."""

    label: Any
    found: dict[str, Any] | None
    keys: tuple[int, ...] = ()
    most: int = 0


def choose_policies(
    folder: store.Run, prepared: Prepared, final: ActorPolicy, last: int, say: Say, tick: Closing | None = None
) -> None:
    """Saves the chosen snapshot of each seed, the `final` policies of iteration `last` among them, and its certificate.

    λ keeps moving, so the last policy is rarely the best.
    """
    snapshots = load_snapshots(folder, prepared, final, last, say)
    most = Asked().most(prepared)
    if len(snapshots) > 1:
        order = f"{prepared.selection_episodes} episodes each put them in order"
        say(f"choosing among {len(snapshots)} snapshots: {order}, at most {most:,} test them …")
    owned = {
        seed: {i: jax.tree.map(lambda x, at=place: x[at], policies) for i, policies in snapshots.items()}
        for place, seed in enumerate(prepared.job.seeds)
    }
    size = prepared.selection_episodes
    seen = look(prepared, owned, PILOT_SEED, size, tick) if len(snapshots) > 1 else {}
    chosen, kept, facts = [], [], []
    for seed, own in owned.items():
        choice = choose(prepared, own, seed, size, most, seen=seen.get(seed), tick=tick)
        chosen.append(choice)
        kept.append(kept_of(prepared, own, choice))
        facts.append(fact_of(prepared, seed, own, choice))
        say(f"seed {seed}: the policy of iteration {choice.label} of {last} is kept{outcome(choice)}")
    save_policies(folder, prepared, stack(kept), facts)
    keep_certificates(folder, prepared, dict(zip(prepared.job.seeds, chosen, strict=True)), list(snapshots))


def keep_certificates(
    folder: store.Run, prepared: Prepared, chosen: Mapping[int, Choice], iterations: list[int]
) -> None:
    """Writes what was found of each seed's policy, once the policies are saved; `iterations` are those chosen among."""
    limits = tuple(float(c.limit) for c in prepared.asked if c.kind == "quantile")
    entries = [entry_of(folder, prepared, s, c.found, c.keys, c.most, limits) for s, c in chosen.items() if c.found]
    if has_dial(prepared.config):
        positions = [iterations.index(c.label) for c in chosen.values() if c.found]
        entries = [at_position(entry, at) for entry, at in zip(entries, positions, strict=True)]
    if entries:
        add_certificates(folder, entries)


def stack(policies: list[ActorPolicy]) -> ActorPolicy:
    return jax.tree.map(lambda *x: jnp.stack(x), *policies)


def kept_of(prepared: Prepared, own: Mapping[int, ActorPolicy], choice: Choice) -> ActorPolicy:
    """What is kept of a seed's snapshots: the chosen one, or all of them where they are the positions of a dial."""
    return stack(list(own.values())) if has_dial(prepared.config) else own[choice.label]


def fact_of(prepared: Prepared, seed: int, own: Mapping[int, ActorPolicy], choice: Choice) -> dict[str, int]:
    """Which policy of a seed was chosen, as `policy.json` keeps it."""
    position = {"position": list(own).index(choice.label)} if has_dial(prepared.config) else {}
    return {"seed": seed, "iteration": choice.label} | position


def at_position(entry: dict[str, Any], position: int) -> dict[str, Any]:
    """An entry that says where the dial stood."""
    return entry | {"policy": entry["policy"] | {"position": position}}


def asking_of(prepared: Prepared, constraints: tuple[Constraint, ...]) -> Prepared:
    """The same job where other limits and levels are asked for."""
    config = dataclasses.replace(prepared.config, constraints=constraints)
    limits = tuple(float(c.limit) for c in constraints)
    return dataclasses.replace(prepared, env=with_limits(prepared.env, limits), config=config)


def certify(folder: store.Run, asked: Asked, seed: int | None = None, tick: Closing | None = None) -> list[dict]:
    """An entry for each seed's policy, or for one. Of a policy with a dial, the best position is found on the way."""
    prepared = prepared_of(folder.config)
    if not has_dial(prepared.config):
        return certify_run(folder, asked, seed, tick)
    check_physics(prepared.env, asked.physics, prepared.job.task)
    constraints, most = asked.constraints(prepared), asked.most(prepared)
    asking, limits = asking_of(prepared, constraints), tuple(float(c.limit) for c in constraints)
    entries = []
    for s in load_policies(folder) if seed is None else [load_policy(folder, seed)[0]]:
        dial = load_dial(folder, s)
        assert dial is not None
        own = {position: dial.at(position) for position in range(dial.size)}
        choice = choose(asking, own, s, asking.selection_episodes, most, asked.confidence, ASKED_SEEDS, tick=tick)
        if asked.physics == "jax" and not asked.deterministic and choice.found:
            entry = entry_of(folder, prepared, s, choice.found, choice.keys, choice.most, limits)
        else:
            entry = certify_policy(folder, prepared, s, own[choice.label], asked, tick)
        entries.append(at_position(entry, choice.label))
    return entries


def outcome(choice: Choice) -> str:
    """How the test of the kept policy ended, in a few words."""
    if choice.found is None:
        return ""
    return f", {choice.found['verdict']} after {choice.found['episodes']:,} episodes"


def choose(
    prepared: Prepared,
    candidates: Mapping[Any, ActorPolicy],
    seed: int,
    pilot_episodes: int,
    most: int,
    confidence: float = CONFIDENCE,
    roots: tuple[int, int] = (PILOT_SEED, TEST_SEED),
    seen: Mapping[Any, Totals] | None = None,
    tick: Closing | None = None,
) -> Choice:
    """The policy of a seed that is kept among labelled ones, in at most so many episodes of all tests together.

    Where none is certified it is the safest by the pilot; where no constraint bounds a probability, the best by the pilot.
    `seen` are the pilot's episodes (`look`), where several levels are asked of the same candidates.
    """
    labels, claims = list(candidates), claims_of(prepared.asked, prepared.env.cost_names)
    claims = tuple(claim for claim in claims if len(claim.names) == 1)
    size = pilot_episodes if len(labels) > 1 else 0
    if seen is None and size:
        seen = look(prepared, {seed: candidates}, roots[0], size, tick)[seed]
    pilots = [pilot(prepared, seen[x]) if seen else Pilot() for x in labels]
    order = [labels[i] for i in testing_order(pilots)]
    if not claims:
        return Choice(order[-1], None)
    tests: dict[Any, dict[str, Any]] = {}
    left = most

    def passes(label: Any) -> bool:
        nonlocal left
        if not left:
            return False
        keys = (roots[1], seed, labels.index(label))
        parts = stream(prepared.env, candidates[label], key_of(*keys), left)
        found = describe(claims, examine(parts, claims, confidence, left, hasty=True, tick=tick), confidence)
        tests[label] = {"label": label, "keys": keys, "max_episodes": left} | found
        left -= found["episodes"]
        return found["verdict"] == "certified"

    def earned(label: Any) -> float:
        """The mean return of pilot and test together."""
        first, test = pilots[labels.index(label)].return_mean, tests[label]
        return (first * size + test["return_mean"] * test["episodes"]) / (size + test["episodes"])

    passed = sequential.fixed_sequence(order, passes)
    kept = max(passed, key=earned) if passed else order[0]
    story = {
        "kept": kept,
        "order": order,
        "pilot_episodes": size,
        "max_episodes": most,
        "candidates": [{"label": x} | p._asdict() for x, p in zip(labels, pilots, strict=True)],
        "tests": list(tests.values()),
    }
    found = {name: x for name, x in tests[kept].items() if name not in {"label", "keys", "max_episodes"}}
    return Choice(kept, found | {"choice": story}, tests[kept]["keys"], tests[kept]["max_episodes"])


def load_snapshots(
    folder: store.Run, prepared: Prepared, final: ActorPolicy, last: int, say: Say
) -> dict[int, ActorPolicy]:
    """The policies of all seeds by iteration; a damaged snapshot is left out."""
    snapshots, first = {}, prepared.snapshot_iterations[0]  # an extended run has earlier ones besides
    for iteration in (i for i in folder.snapshots() if first <= i < last):
        try:
            snapshots[iteration] = folder.load_snapshot(iteration, final)
        except StoreError as error:
            say(f"[yellow]a snapshot is left out:[/] {error}")
    return snapshots | {last: final}


def look(
    prepared: Prepared,
    owned: Mapping[int, Mapping[Any, ActorPolicy]],
    root: int,
    episodes: int,
    tick: Closing | None = None,
) -> dict[int, dict[Any, Totals]]:
    """Fresh episodes of each seed's candidates, the same ones for all of a seed."""
    policies = {(seed, label): policy for seed, own in owned.items() for label, policy in own.items()}
    keys = {(seed, label): key_of(root, seed) for seed, label in policies}

    def count(done: int, total: int) -> None:
        if tick is not None:
            tick(done, total, "to put them in order")

    found, _ = fresh_of_each(prepared.env, policies, keys, episodes, progress=count)
    return {seed: {label: found[seed, label] for label in own} for seed, own in owned.items()}


def pilot(prepared: Prepared, totals: Totals) -> Pilot:
    """How a candidate did in these episodes."""
    bounded = [c for c in prepared.asked if c.kind == "quantile"]
    means = [c for c in prepared.asked if c.kind == "mean"]
    shares = [float((totals.costs[:, c.channel] <= float(c.limit)).mean()) for c in bounded]
    slacks = [(share - float(c.safety)) / (1 - float(c.safety)) for share, c in zip(shares, bounded, strict=True)]
    over = [mean_slack(c, totals) for c in means]
    share = shares[0] if shares else 1.0
    return Pilot(min(slacks, default=0.0), min(over, default=0.0), float(totals.returns.mean()), share)


def mean_slack(c: Constraint, totals: Totals) -> float:
    """By what share of its limit episodes keep a bound on a mean, with some confidence."""
    high = statistics.mean_interval(totals.costs[:, c.channel], MEANS_CONFIDENCE).high
    return (float(c.limit) - high) / max(float(c.limit), 1e-9)
