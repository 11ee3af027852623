"""MuJoCo's soft contact as three scalar laws: impedance, reference acceleration, regularisation.

A constraint row with distance r (negative: penetration) and rate J·v is pulled towards the reference acceleration

    a_ref = −b·(J·v) − k·d(r)·r,      b = 2/(d_max·τ),  k = 1/(d_max²·τ²·ζ²)

with time constant τ and damping ratio ζ (`solref`), where the impedance d(r) ∈ (0, 1) rises from d_min to d_max over
`width` (`solimp`). Its stiffness in the solver's quadratic cost is D = 1/R, with R = w·(1 − d)/d and w the row's
approximate inverse inertia. (MuJoCo documentation, "Computation: constraint model".)
"""

from dataclasses import dataclass

import jax.numpy as jnp

from tqpo.types import Array


@dataclass(frozen=True)
class Softness:
    """`solref` and `solimp` of a constraint; MuJoCo's defaults. Midpoint 0.5 and power 2 are built into `impedance`."""

    timeconst: float = 0.02  # s, τ
    dampratio: float = 1.0  # ζ
    impedance_min: float = 0.9
    impedance_max: float = 0.95
    width: float = 0.001  # m

    @property
    def damping(self) -> float:
        """b, 1/s."""
        return 2.0 / (self.impedance_max * self.timeconst)

    @property
    def stiffness(self) -> float:
        """k, 1/s²."""
        return 1.0 / (self.impedance_max * self.timeconst * self.dampratio) ** 2

    def impedance(self, distance: Array) -> Array:
        """d(r): quadratic up to the middle of the width, mirrored beyond it."""
        x = jnp.minimum(jnp.abs(distance) / self.width, 1.0)
        y = jnp.where(x < 0.5, 2.0 * x * x, 1.0 - 2.0 * (1.0 - x) * (1.0 - x))
        return self.impedance_min + y * (self.impedance_max - self.impedance_min)


def pyramid_regulariser(impedance: Array, friction: float, invweight: float) -> Array:
    """R of every row of a pyramidal friction cone: 2μ²·(1 + μ²)·w·(1 − d)/d, with μ the sliding friction."""
    mu2 = friction * friction
    return 2.0 * mu2 * (1.0 + mu2) * invweight * (1.0 - impedance) / impedance
