"""Which snapshot of a run is kept: the highest return among those that are safe enough."""

import jax

from tqpo import store
from tqpo.algorithms.settings import Constraint
from tqpo.errors import StoreError
from tqpo.evaluation.episodes import ActorPolicy, Totals
from tqpo.evaluation.fresh import fresh_episodes
from tqpo.maths import statistics
from tqpo.training.job import Job
from tqpo.training.policies import save_policies
from tqpo.training.program import Group
from tqpo.training.progress import View

SELECTION_SEED = 2_000_003  # these episodes share no key with training or evaluation
SELECTION_CONFIDENCE = 0.9  # two-sided: who is chosen for being best is worse than it looks


def choose_policies(folder: store.Run, job: Job, group: Group, final: ActorPolicy, last: int, view: View) -> None:
    """Saves the best snapshot of each seed: the highest return among those that keep every constraint with some confidence, in
    episodes that no evaluation uses; where none does, the one that misses by least. λ keeps moving, so the last iterate, of
    iteration `last`, is rarely the best."""
    moments, tried = [], []
    for moment in (m for m in job.snapshot_iterations if m < last):
        try:
            tried.append(folder.load_snapshot(moment, final))
            moments.append(moment)
        except StoreError as error:
            view.say(f"[yellow]a snapshot is left out:[/] {error}")
    moments, tried = [*moments, last], [*tried, final]
    asked, episodes = job.asked(), job.selection_episodes
    chosen, facts = [], []
    if len(tried) > 1:
        view.say(f"choosing among {len(tried)} snapshots, {episodes} episodes each …")
    for place, seed in enumerate(job.seeds):
        key = jax.random.fold_in(jax.random.key(SELECTION_SEED), seed)
        scores = []
        for stacked in tried if len(tried) > 1 else []:
            policy = jax.tree.map(lambda x, i=place: x[i], stacked)
            found, _ = fresh_episodes(group.env, policy, key, episodes)
            kept, slack = zip(*(keeps(c, found) for c in asked), strict=True) if asked else ((True,), (0.0,))
            safe = float((found.costs[:, asked[0].channel] <= asked[0].limit).mean()) if asked else 1.0
            scores.append((all(kept), float(found.returns.mean()) if all(kept) else min(slack), safe))
        best = max(range(len(scores)), key=lambda i: scores[i][:2]) if scores else len(tried) - 1
        chosen.append(jax.tree.map(lambda x, i=place: x[i], tried[best]))
        shares = {str(i): s[2] for i, s in zip(moments, scores, strict=False)}
        facts.append({"seed": seed, "iteration": moments[best], "safe_share_of_snapshots": shares})
        why = "" if not scores or scores[best][0] else ": none is safe enough, this one misses by least"
        view.say(f"seed {seed}: the policy of iteration {moments[best]} of {last} is kept{why}")
    stacked = jax.tree.map(lambda *x: jax.numpy.stack(x), *chosen)
    save_policies(folder, job, group, stacked, facts)


def keeps(c: Constraint, found: Totals) -> tuple[bool, float]:
    """Whether episodes keep a constraint with some confidence, and by how much their own share or mean does."""
    costs, limit = found.costs[:, c.channel], float(c.limit)
    if c.kind == "mean":
        high = statistics.mean_interval(costs, SELECTION_CONFIDENCE).high
        return bool(high <= limit), float((limit - costs.mean()) / max(limit, 1e-9))
    safe = int((costs <= limit).sum())
    low = statistics.clopper_pearson(safe, len(costs), SELECTION_CONFIDENCE).low
    return bool(low >= c.safety), safe / len(costs) - float(c.safety)
