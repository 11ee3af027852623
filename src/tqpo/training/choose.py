"""Which snapshot of a run is kept: the one with the highest return among those that are safe enough."""

from typing import NamedTuple

import jax

from tqpo import store
from tqpo.algorithms.settings import Constraint
from tqpo.errors import StoreError
from tqpo.evaluation.episodes import ActorPolicy, Totals
from tqpo.evaluation.fresh import fresh_episodes
from tqpo.maths import statistics
from tqpo.training.job import Prepared
from tqpo.training.policies import save_policies
from tqpo.training.progress import Say

SELECTION_SEED = 2_000_003  # these episodes share no key with training or evaluation
SELECTION_CONFIDENCE = 0.9  # two-sided: the best of several looks better than it is


class Score(NamedTuple):
    """Of a snapshot. A larger one is better: safe before unsafe, then the return or how little it misses by."""

    safe: bool
    value: float
    safe_share: float  # of episodes, by the first constraint


def choose_policies(folder: store.Run, prepared: Prepared, final: ActorPolicy, last: int, say: Say) -> None:
    """Saves the best snapshot of each seed, the `final` policies of iteration `last` among them.

    They are compared in episodes that no evaluation uses. λ keeps moving, so the last policy is rarely the best.
    """
    snapshots = load_snapshots(folder, prepared, final, last, say)
    if len(snapshots) > 1:
        say(f"choosing among {len(snapshots)} snapshots, {prepared.selection_episodes} episodes each …")
    chosen, facts = [], []
    for place, seed in enumerate(prepared.job.seeds):
        own = {i: jax.tree.map(lambda x, at=place: x[at], policies) for i, policies in snapshots.items()}
        best, scores = best_of(prepared, own, seed, prepared.selection_episodes)
        chosen.append(own[best])
        shares = {str(i): s.safe_share for i, s in scores.items()}
        facts.append({"seed": seed, "iteration": best, "safe_share_of_snapshots": shares})
        why = "" if not scores or scores[best].safe else ": none is safe enough, this one misses by least"
        say(f"seed {seed}: the policy of iteration {best} of {last} is kept{why}")
    save_policies(folder, prepared, jax.tree.map(lambda *x: jax.numpy.stack(x), *chosen), facts)


def best_of(
    prepared: Prepared, candidates: dict[int, ActorPolicy], seed: int, episodes: int
) -> tuple[int, dict[int, Score]]:
    """The best of a seed's policies by iteration, and how all of them did; a single one is not looked at."""
    if len(candidates) == 1:
        return next(iter(candidates)), {}
    scores = {i: score(prepared, policy, seed, episodes) for i, policy in candidates.items()}
    return max(scores, key=lambda i: scores[i][:2]), scores


def load_snapshots(
    folder: store.Run, prepared: Prepared, final: ActorPolicy, last: int, say: Say
) -> dict[int, ActorPolicy]:
    """The policies of all seeds by iteration; a damaged snapshot is left out."""
    snapshots = {}
    for iteration in (i for i in prepared.snapshot_iterations if i < last):
        try:
            snapshots[iteration] = folder.load_snapshot(iteration, final)
        except StoreError as error:
            say(f"[yellow]a snapshot is left out:[/] {error}")
    return snapshots | {last: final}


def score(prepared: Prepared, policy: ActorPolicy, seed: int, episodes: int) -> Score:
    """How a policy does in fresh episodes, the same ones for all snapshots of a seed."""
    key = jax.random.fold_in(jax.random.key(SELECTION_SEED), seed)
    totals, _ = fresh_episodes(prepared.env, policy, key, episodes)
    if not (asked := prepared.asked):
        return Score(True, float(totals.returns.mean()), 1.0)
    kept, slack = zip(*(keeps(c, totals) for c in asked), strict=True)
    share = float((totals.costs[:, asked[0].channel] <= asked[0].limit).mean())
    return Score(all(kept), float(totals.returns.mean()) if all(kept) else min(slack), share)


def keeps(c: Constraint, totals: Totals) -> tuple[bool, float]:
    """Whether episodes keep a constraint with some confidence, and by how much their own share or mean does."""
    costs, limit = totals.costs[:, c.channel], float(c.limit)
    if c.kind == "mean":
        high = statistics.mean_interval(costs, SELECTION_CONFIDENCE).high
        return bool(high <= limit), float((limit - costs.mean()) / max(limit, 1e-9))
    safe = int((costs <= limit).sum())
    low = statistics.clopper_pearson(safe, len(costs), SELECTION_CONFIDENCE).low
    return bool(low >= c.safety), safe / len(costs) - float(c.safety)
