import numpy as np
import pytest

from tqpo.errors import ConfigError
from tqpo.maths.schedule import ThreeTimescales, power


def test_power_by_hand():
    """0.4/(1 + 300/100)^½ = 0.2."""
    assert np.isclose(power(300, 0.4, 100, 0.5), 0.2)
    assert power(0, 0.4, 100, 0.9) == np.float32(0.4)


def test_slower_variables_vanish_against_faster_ones():
    alpha, beta, eta = ThreeTimescales()(np.array([1e2, 1e4, 1e6, 1e8]))
    assert (np.diff(beta / alpha) < 0).all()
    assert (np.diff(eta / beta) < 0).all()
    assert (beta / alpha)[-1] < 0.01
    assert (eta / beta)[-1] < 0.01


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"alpha_exponent": 0.5}, r"alpha_exponent = 0.5.*\(1/2, 1\]"),
        ({"eta_exponent": 1.1}, r"eta_exponent = 1.1.*\(1/2, 1\]"),
        ({"beta_exponent": float("nan")}, "beta_exponent = nan"),
        ({"beta_exponent": 0.6}, r"\(0.6, 0.6, 1.0\).*strictly increasing"),
        ({"eta": 0.0}, "eta = 0.0.*positive"),
        ({"offset": -1.0}, "offset = -1.0.*positive"),
    ],
)
def test_assumption_3_is_checked(setting, message):
    with pytest.raises(ConfigError, match=message):
        ThreeTimescales(**setting)
