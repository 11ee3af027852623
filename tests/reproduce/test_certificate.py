"""The simulation behind the certificate, with fewer replications than `tqpo reproduce certificate`."""

import numpy as np

from tqpo.maths import sequential
from tqpo.reproduce import certificate
from tqpo.reproduce.certificate import NULLS, OTHERS, Setting


def test_false_certificates_power_and_coverage():
    settings = [
        *(Setting(name, p, 384) for name, p in NULLS.items()),
        Setting("good", OTHERS["half good"], 384),
    ]
    found = certificate.simulate(200, certificate.EPISODES, settings)
    rows = {(row["setting"], row["method"]): row for row in found["settings"]}
    for name in NULLS:
        for method in certificate.METHODS:
            assert rows[name, method]["false"]["low"] <= 1 - certificate.CONFIDENCE
    ours, bonferroni, holm = (rows["good", method] for method in certificate.METHODS)
    assert ours["certified"] > 0.95
    assert ours["return_kept"] > max(bonferroni["return_kept"], holm["return_kept"])
    assert all(
        row[end]["high"] >= certificate.CONFIDENCE for row in found["coverage"] for end in ("low_end", "high_end")
    )
    assert certificate.table(found).count("\n| ") == len(settings)


def test_holm_certifies_where_bonferroni_does():
    setting = Setting("one", (0.97, *(0.9,) * 7), 384)
    kept = certificate.corrected(setting, 50, 8000, np.random.default_rng(0))
    assert np.all((kept["Bonferroni"].which < 0) | (kept["Holm"].which >= 0))
    assert np.all(kept["Holm"].episodes == 8 * (384 + 1000))


def test_the_race_is_that_of_paths_drawn_one_by_one():
    """The same times from paths of single trials, which the failures of `race` are put into."""
    bounds = sequential.boundaries(0.9, 0.95, 2000)
    p = np.repeat([0.8, 0.9, 0.93, 0.97], 25)
    up, down = certificate.race(p, 2000, bounds, np.random.default_rng(0))
    rng = np.random.default_rng(0)
    most = 2000 * (1 - p.min())
    times = np.cumsum(rng.geometric(1 - p[:, None], (100, int(most + 8 * np.sqrt(most) + 20))), 1)
    for row, a, b in zip(times, up, down, strict=True):
        outcomes = np.ones(2000, bool)
        outcomes[row[row <= 2000] - 1] = False
        counts = np.cumsum(outcomes)
        for reached, found in ((counts >= bounds[0], a), (counts <= bounds[1], b)):
            assert found == (np.argmax(reached) + 1 if reached.any() else np.iinfo(np.int64).max)
