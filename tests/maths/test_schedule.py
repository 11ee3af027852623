import numpy as np

from tqpo.maths.schedule import power


def test_power_by_hand():
    """0.4/(1 + 300/100)^½ = 0.2."""
    assert np.isclose(power(300, 0.4, 100, 0.5), 0.2)
    assert power(0, 0.4, 100, 0.9) == np.float32(0.4)
