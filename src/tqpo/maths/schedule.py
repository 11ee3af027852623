"""Step sizes of stochastic approximation: three timescales as in the convergence proof (Assumption 3)."""

import dataclasses

import jax.numpy as jnp

from tqpo.errors import ConfigError
from tqpo.types import Array


def power(k: Array | float, scale: Array | float, offset: Array | float, exponent: Array | float) -> Array:
    """a_k = scale/(1 + k/offset)^exponent: about `scale` for the first `offset` steps, then a power law."""
    return scale / (1 + jnp.asarray(k) / offset) ** exponent


@dataclasses.dataclass(frozen=True)
class ThreeTimescales:
    """α_k, β_k, η_k for q, θ and λ (paper Eq. 17), checked against Assumption 3.

    Σa_k = ∞ asks for an exponent of at most 1, Σa_k² < ∞ for one above ½; η_k = o(β_k), β_k = o(α_k) asks for
    them in strictly increasing order.
    """

    alpha: float = 1.0  # α_0, quantile
    beta: float = 0.1  # β_0, policy
    eta: float = 0.01  # η_0, multiplier
    alpha_exponent: float = 0.6
    beta_exponent: float = 0.8
    eta_exponent: float = 1.0
    offset: float = 100.0  # steps before the decay sets in

    def __post_init__(self):
        for name in ("alpha", "beta", "eta", "offset"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} = {getattr(self, name)}: a step size and its offset must be positive")
        exponents = (self.alpha_exponent, self.beta_exponent, self.eta_exponent)
        for name, value in zip(("alpha", "beta", "eta"), exponents, strict=True):
            if not 0.5 < value <= 1:
                raise ConfigError(f"{name}_exponent = {value}: Assumption 3 allows exponents in (1/2, 1]")
        if not exponents[0] < exponents[1] < exponents[2]:
            raise ConfigError(
                f"exponents of (alpha, beta, eta) = {exponents}: Assumption 3 wants them strictly "
                "increasing, e.g. (0.6, 0.8, 1.0), so that each variable is slower than the one before"
            )

    def __call__(self, k: Array | float) -> tuple[Array, Array, Array]:
        """(α_k, β_k, η_k)."""
        return (
            power(k, self.alpha, self.offset, self.alpha_exponent),
            power(k, self.beta, self.offset, self.beta_exponent),
            power(k, self.eta, self.offset, self.eta_exponent),
        )
