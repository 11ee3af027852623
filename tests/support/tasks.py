"""Which tasks the fast tests run."""

from collections.abc import Iterable

import pytest

FEW = {"SafetyPointGoal0", "SafetyPointCircle1"}  # of Safety-Gymnasium's tasks: each is a program of its own


def most(names: Iterable[str], prefix: str = "") -> list:
    """Each name as a parameter, those of Safety-Gymnasium's tasks but a few for the slow tests."""
    safety = {name: f"{prefix}{name}".startswith("SafetyPoint") for name in names}
    few = {name for name in safety if f"{prefix}{name}" in FEW}
    return [pytest.param(n, marks=pytest.mark.slow) if safety[n] and n not in few else n for n in safety]
