"""What a sample of episodes says about a policy: intervals, and a verdict in plain English.

All intervals are two-sided. Clopper–Pearson and the order-statistic interval hold for every sample size and
distribution, and they agree with each other: the upper end of the quantile's interval is within the limit exactly when
the lower end of the probability's interval reaches the level. (Both ask whether Pr[Bin(n, level) ≥ k] ≤ α/2, for the k
episodes within the limit.)
"""

import bisect
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import special, stats

from tqpo.errors import ConfigError

MOST_EPISODES = 10_000_000  # beyond this, "more episodes" is no advice
RESAMPLES_AT_ONCE = 4_000_000  # numbers drawn in one go, for memory


class Interval(NamedTuple):
    """An estimate and its confidence interval; an end that the sample cannot bound is infinite."""

    value: float
    low: float
    high: float


class Verdict(NamedTuple):
    """`word` is one of "meets", "misses", "cannot tell yet"; `more_episodes` is None where they would not help."""

    word: str
    sentence: str
    probability: Interval  # or that of the mean, in a verdict on a mean
    more_episodes: int | None


def tail(confidence: float) -> float:
    """α/2 of a two-sided interval."""
    if not 0 < confidence < 1:
        raise ConfigError(f"confidence = {confidence}: a probability strictly between 0 and 1")
    return (1 - confidence) / 2


def clopper_pearson(successes: float, n: float, confidence: float = 0.95) -> Interval:
    """Exact interval of a proportion (Clopper & Pearson 1934): [B(α/2; k, n−k+1), B(1−α/2; k+1, n−k)].

    B is the quantile of the Beta distribution.

    The counts need not be integers: the Beta form interpolates between them, which `episodes_needed` uses.
    """
    if not 0 <= successes <= n:
        raise ConfigError(f"{successes} successes of {n}: between none and all of them")
    alpha = tail(confidence)
    if n == 0:
        return Interval(math.nan, 0.0, 1.0)
    low = special.betaincinv(successes, n - successes + 1, alpha) if successes > 0 else 0.0
    high = special.betaincinv(successes + 1, n - successes, 1 - alpha) if successes < n else 1.0
    return Interval(successes / n, float(low), float(high))


def quantile_rank(n: int, level: float) -> int:
    """⌈p·n⌉, the (1-based) rank of the p-quantile inf{x : F(x) ≥ p}; rounding as in `quantile.empirical_quantile`."""
    return min(max(math.ceil(level * n - 4 * np.finfo(float).eps * n), 1), n)


def quantile_interval(values: np.ndarray, level: float, confidence: float = 0.95) -> Interval:
    """Distribution-free interval of the p-quantile between two order statistics; its value is numpy's `inverted_cdf`.

    x_(l) ≤ q_p with probability at least Pr[B ≥ l] and x_(u) ≥ q_p with at least Pr[B < u], B ~ Bin(n, p). So l is the
    largest rank with Pr[B < l] ≤ α/2 and u the smallest with Pr[B ≥ u] ≤ α/2. Ties only make it more conservative.
    """
    if not 0 < level < 1:
        raise ConfigError(f"level = {level}: strictly between 0 and 1")
    alpha, ordered = tail(confidence), np.sort(np.asarray(values, float))
    n = len(ordered)
    if n == 0:
        return Interval(math.nan, -math.inf, math.inf)
    low = int(stats.binom.ppf(alpha, n, level))  # the first k with Pr[B ≤ k] ≥ α/2, so Pr[B < k] < α/2
    high = int(stats.binom.isf(alpha, n, level)) + 1  # the first k with Pr[B > k] ≤ α/2, and one more
    return Interval(
        float(ordered[quantile_rank(n, level) - 1]),
        float(ordered[low - 1]) if low >= 1 else -math.inf,
        float(ordered[high - 1]) if high <= n else math.inf,
    )


def bootstrap(
    values: np.ndarray, statistic: Callable[..., np.ndarray], resamples: int = 2000, seed: int = 0
) -> np.ndarray:
    """`statistic(x, axis=-1)` of samples drawn with replacement, sorted [resamples]; the same for the same seed."""
    values, rng = np.asarray(values, float), np.random.default_rng(seed)
    n, parts = len(values), []
    rows = max(1, RESAMPLES_AT_ONCE // max(n, 1))
    for start in range(0, resamples, rows):
        drawn = rng.integers(n, size=(min(rows, resamples - start), n))
        parts.append(statistic(values[drawn], axis=-1))
    return np.sort(np.concatenate(parts))


def mean_interval(values: np.ndarray, confidence: float = 0.95, resamples: int = 2000, seed: int = 0) -> Interval:
    """Bootstrap interval of the mean, bias-corrected and accelerated (Efron 1987).

    Its ends are the levels Φ(z₀ + (z₀ + z)/(1 − a(z₀ + z))) of the resampled means: z₀ from the share of them below the
    mean, a = Σd³/(6(Σd²)^{3/2}) with d the deviations from it, so a skewed sample has a skewed interval.
    """
    alpha, values = tail(confidence), np.asarray(values, float)
    if len(values) < 2:
        return Interval(float(values.mean()) if len(values) else math.nan, -math.inf, math.inf)
    mean = values.mean()
    deviations = values - mean
    if np.ptp(values) == 0:
        return Interval(float(mean), float(mean), float(mean))
    means = bootstrap(values, np.mean, resamples, seed)
    below = ((means < mean).mean() + (means <= mean).mean()) / 2
    z0 = special.ndtri(np.clip(below, 1 / resamples, 1 - 1 / resamples))
    a = np.sum(deviations**3) / (6 * np.sum(deviations**2) ** 1.5)
    z = z0 + special.ndtri([alpha, 1 - alpha])
    low, high = np.quantile(means, special.ndtr(z0 + z / (1 - a * z)))
    return Interval(float(mean), float(low), float(high))


def iqm(values: np.ndarray, axis: int = -1) -> np.ndarray:
    """Interquartile mean: the mean without the lowest and highest quarter (rounded down; Agarwal et al. 2021)."""
    return stats.trim_mean(values, 0.25, axis=axis)


def iqm_interval(values: np.ndarray, confidence: float = 0.95, resamples: int = 2000, seed: int = 0) -> Interval:
    """IQM over seeds with a percentile bootstrap. With few seeds it is too narrow; with one it is unbounded."""
    alpha, values = tail(confidence), np.asarray(values, float)
    if len(values) < 2:
        return Interval(float(values[0]) if len(values) else math.nan, -math.inf, math.inf)
    low, high = np.quantile(bootstrap(values, iqm, resamples, seed), [alpha, 1 - alpha])
    return Interval(float(iqm(values)), float(low), float(high))


def word(probability: Interval, level: float) -> str:
    """What an interval of the probability says about a level."""
    if probability.low >= level:
        return "meets"
    return "misses" if probability.high < level else "cannot tell yet"


def episodes_needed(rate: float, level: float, confidence: float = 0.95) -> int | None:
    """Episodes after which the verdict would be clear if the rate stayed as it is; None if beyond ten million."""

    def settled(n: int) -> bool:
        return word(clopper_pearson(rate * n, n, confidence), level) != "cannot tell yet"

    if not settled(MOST_EPISODES):
        return None
    return bisect.bisect_left(range(MOST_EPISODES), True, lo=1, key=settled)


def held_back(level: float, window: int, episodes: int, errors: float = 0.6) -> float:
    """The share of ε = 1 − level to hold back, so that a policy that is steered by its last `window` episodes is then
    found safe in `episodes` others: so many standard errors of both shares, at most four fifths of ε."""
    error = math.sqrt(level * (1 - level)) * (window**-0.5 + episodes**-0.5)
    return min(errors * error / (1 - level), 0.8)


def verdict(
    successes: int, n: int, level: float, confidence: float = 0.95, event: str = "stayed within the limit"
) -> Verdict:
    """Does the probability behind `successes` of `n` episodes reach the level? `event` says what success is."""
    if not 0 < level < 1:
        raise ConfigError(f"level = {level}: a probability strictly between 0 and 1")
    probability = clopper_pearson(successes, n, confidence)
    said = word(probability, level)
    if n == 0:
        return Verdict(said, "No episode has been run yet, so nothing can be said.", probability, None)
    low, high = percentages(probability, level)
    wanted = f"{100 * level:g}%"
    sentence = (
        f"{successes:,} of {n:,} episodes ({100 * successes / n:.1f}%) {event}. With {100 * confidence:g}% confidence, "
        f"the true share is between {low} and {high}"
    )
    if said == "meets":
        return Verdict(said, f"{sentence}: at or above the required {wanted}.", probability, 0)
    if said == "misses":
        return Verdict(said, f"{sentence}: below the required {wanted}.", probability, 0)
    needed = episodes_needed(successes / n, level, confidence)
    more = None if needed is None else max(needed - n, 1)
    advice = (
        f"This is too close to {wanted} for more episodes to settle it."
        if more is None
        else f"If the share stays as it is, about {two_digits(more):,} more episode{'s' * (more > 1)} would settle it."
    )
    return Verdict(said, f"{sentence}, which leaves open whether it reaches {wanted}. {advice}", probability, more)


def mean_verdict(mean: Interval, n: int, limit: float, confidence: float = 0.95, name: str = "cost") -> Verdict:
    """Is the mean behind an interval within a limit?"""
    said = "meets" if mean.high <= limit else "misses" if mean.low > limit else "cannot tell yet"
    ends = {
        "meets": f"within the limit of {limit:g}.",
        "misses": f"above the limit of {limit:g}.",
        "cannot tell yet": f"which leaves open whether it is within {limit:g}. More episodes would narrow it.",
    }
    sentence = (
        f"The mean episode {name} of {n:,} episodes is {mean.value:.4g}. With {100 * confidence:g}% confidence, the "
        f"true mean is between {mean.low:.4g} and {mean.high:.4g}"
    )
    joint = ", " if said == "cannot tell yet" else ": "
    return Verdict(said, sentence + joint + ends[said], mean, None if said == "cannot tell yet" else 0)


def percentages(probability: Interval, level: float) -> tuple[str, str]:
    """Both ends as text, rounded outward with the fewest digits that keep each on its side of the level."""
    low, high, digits = probability.low, probability.high, 0
    for digits in range(1, 9):
        low, high = outward(probability.low, probability.high, digits)
        if (low >= level) == (probability.low >= level) and (high < level) == (probability.high < level):
            break
    return percent(low, digits), percent(high, digits)


def outward(low: float, high: float, digits: int) -> tuple[float, float]:
    """The ends of an interval of a probability, rounded away from each other to that many digits of a percentage."""
    scale = 10 ** (digits + 2)
    return math.floor(low * scale + 1e-9) / scale, math.ceil(high * scale - 1e-9) / scale


def percent(x: float, digits: int) -> str:
    return f"{x:.{digits if 0 < x < 1 else 0}%}"


def cost_decimals(limit: float) -> int:
    """Decimals that show a cost to a hundredth of its limit or finer: 5.6 of 15, 0.0312 of 0.04."""
    return max(0, math.ceil(2 - math.log10(limit))) if limit > 0 else 2


def cost_text(cost: float, limit: float) -> str:
    """A cost with these decimals, a whole number without."""
    return f"{cost:,.{0 if cost == round(cost) else cost_decimals(limit)}f}"


def two_digits(count: int) -> int:
    """Rounded up to two significant digits: advice should not look exact."""
    scale = 10 ** max(len(str(count)) - 2, 0)
    return -(-count // scale) * scale
