"""What the package is held against, and what prepares its files: tools of the repository, not part of the wheel.

Run from the root of a clone: `python -m reference.parity`, `.convergence`, `.compare`, `.ship`, `.released.ours`, `.pictures`.
"""
