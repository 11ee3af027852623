"""Is a probability at least a level? A test that may look after every episode and stop when it can tell.

With k successes in n trials, the evidence against p ≤ q is a likelihood ratio, mixed over the alternatives θ > q with
a prior w:

    M_n(q) = ∫_q^1 θ^k (1−θ)^{n−k} w(θ) dθ / (W(θ > q) · q^k (1−q)^{n−k})

For w = Beta(a, b) it has a closed form, with B the Beta function and S_q = Pr[Beta > q]:

    M_n(q) = B(k+a, n−k+b) S_q(k+a, n−k+b) / (B(a, b) S_q(a, b) q^k (1−q)^{n−k})

Any p ≤ q makes M_n a supermartingale that starts at 1, because each step multiplies it, on average, by p·θ/q +
(1−p)(1−θ)/(1−q) ≤ 1 for every θ > q. So it ever reaches 1/δ with probability at most δ (Ville 1939), and p > q may be
said the moment it does. Mixtures of this kind: Robbins 1970; with Beta priors and as confidence sequences: Howard,
Ramdas, McAuliffe and Sekhon 2021.

M_n(q) falls with q up to k/n, if w is log-concave. Let s = (log-likelihood)′(q) ≥ 0 and h the prior's hazard rate at
q. The log-likelihood is concave, so M ≤ E[exp(s·(θ − q))]. A log-concave prior has a rising hazard rate, so θ − q is
stochastically less than an exponential of rate h, and M ≤ h/(h − s) where s < h. That is (log M)′ = h·(1 − 1/M) − s ≤
0. So the levels that are ruled out are an interval (0, low_n], and the level is certified exactly when low_n has
reached it.

`low_n` holds for all n at once with probability 1 − δ, and so does `high_n`, which is the same of the failures. Both
hold together with 1 − 2δ.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from tqpo.errors import ConfigError
from tqpo.maths.statistics import MOST_EPISODES, Interval

STRENGTH = 10.0  # failures that the prior is worth: fewer favours policies far from the level, more those near it
METHOD = (
    "one-sided Beta-mixture likelihood ratio, looked at after every episode (Robbins 1970; Ville's inequality), prior "
    f"Beta({STRENGTH:g}·q/(1 − q), {STRENGTH:g}) around the level q"
)


class Decision(NamedTuple):
    """`word` is "certified", "refuted" or "undecided", after n trials of which k were successes."""

    word: str
    k: int
    n: int


def check(level: float, confidence: float) -> None:
    for name, value in (("safety", level), ("confidence", confidence)):
        if not 0 < value < 1:
            raise ConfigError(f"{name} = {value}: a probability strictly between 0 and 1")


def prior(level: float) -> tuple[float, float]:
    """Beta(a, b) with the level as its mean, worth `STRENGTH` failures; log-concave, so both at least 1."""
    return max(STRENGTH * level / (1 - level), 1.0), STRENGTH


def evidence(k: Any, n: Any, q: Any, beta: tuple[float, float]) -> Any:
    """log M_n(q), the evidence against p ≤ q; arrays or numbers. That against p ≥ q is `evidence` of the failures."""
    a, b = beta
    after, before = (k + a, n - k + b), (a, b)
    with np.errstate(divide="ignore"):  # where none of the posterior is above q, there is no evidence at all
        weight = np.log(special.betaincc(*after, q)) - np.log(special.betaincc(*before, q))
    return weight + special.betaln(*after) - special.betaln(*before) - special.xlogy(k, q) - special.xlog1py(n - k, -q)


def decide(outcomes: np.ndarray, level: float, confidence: float, so_far: Decision | None = None) -> Decision:
    """The first moment among further trials at which it is clear whether p ≥ level; the last of them if it is not."""
    check(level, confidence)
    _, k, n = so_far or Decision("undecided", 0, 0)
    ks, ns = k + np.cumsum(outcomes), n + np.arange(1, len(outcomes) + 1)
    (a, b), needed = prior(level), -math.log1p(-confidence)
    above = evidence(ks, ns, level, (a, b)) >= needed
    below = evidence(ns - ks, ns, 1 - level, (b, a)) >= needed
    if not np.any(told := above | below):
        return Decision("undecided", k + int(np.sum(outcomes)), n + len(outcomes))
    first = int(np.argmax(told))
    return Decision("certified" if above[first] else "refuted", int(ks[first]), int(ns[first]))


def interval(k: int, n: int, level: float, confidence: float) -> Interval:
    """k/n with low_n and high_n, by bisection; the level only says where the prior lies."""
    check(level, confidence)
    if not 0 <= k <= n:
        raise ConfigError(f"{k} successes of {n}: between none and all of them")
    if n == 0:
        return Interval(math.nan, 0.0, 1.0)
    a, b = prior(level)
    needed = -math.log1p(-confidence)
    return Interval(k / n, ruled_out(k, n, needed, (a, b)), 1 - ruled_out(n - k, n, needed, (b, a)))


def ruled_out(k: int, n: int, needed: float, beta: tuple[float, float]) -> float:
    """The largest q for which log M_n(q) is as much as needed."""
    low, high = 0.0, k / n
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if k and evidence(k, n, middle, beta) >= needed else (low, middle)
    return low


def more_needed(k: int, n: int, level: float, confidence: float) -> int | None:
    """Trials after which it would be clear if the rate stayed as it is; None if beyond ten million."""
    (a, b), needed = prior(level), -math.log1p(-confidence)
    rate = k / n if n else 1.0

    def told(m: int) -> bool:
        above = evidence(rate * m, m, level, (a, b)), evidence((1 - rate) * m, m, 1 - level, (b, a))
        return max(above) >= needed

    if not told(MOST_EPISODES):
        return None
    low, high = n, MOST_EPISODES  # not told at low, told at high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if told(middle) else (middle, high)
    return high - n


def boundaries(level: float, confidence: float, most: int, q: float | None = None) -> tuple[np.ndarray, np.ndarray]:
    """For n = 1 … most: the fewest successes that rule out p ≤ q, and the most that rule out p ≥ q; q is the level.

    More than n, and less than 0, where no number does.
    """
    n, needed = np.arange(1, most + 1), -math.log1p(-confidence)
    a, b = prior(level)
    q = level if q is None else q
    return fewest(n, q, (a, b), needed), n - fewest(n, 1 - q, (b, a), needed)


def fewest(n: np.ndarray, q: float, beta: tuple[float, float], needed: float) -> np.ndarray:
    low, high = np.full(len(n), -1), n + 1  # the evidence grows with k: too few, enough
    for _ in range(int(n[-1]).bit_length() + 2):
        middle = (low + high) // 2
        enough = evidence(np.clip(middle, 0, n), n, q, beta) >= needed
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return high


def front(shares: Sequence[float], returns: Sequence[float]) -> list[int]:
    """The order in which candidates are tested: safest first, and only those that earn more than all safer ones."""
    order = sorted(range(len(shares)), key=lambda i: (-shares[i], -returns[i]))
    return [i for place, i in enumerate(order) if all(returns[i] > returns[j] for j in order[:place])]


def fixed_sequence(order: Iterable[Any], passes: Callable[[Any], bool]) -> list[Any]:
    """Those that pass, each tested at the full confidence, up to the first that does not.

    Learn then Test (Angelopoulos et al. 2021, arXiv 2110.01052) with fixed-sequence testing: let j be the first in the
    order that does not meet the level. A false certificate needs j to pass, which happens with probability at most δ,
    whatever comes after it. The order must not depend on the trials of the tests.
    """
    passed = []
    for candidate in order:
        if not passes(candidate):
            break
        passed.append(candidate)
    return passed
