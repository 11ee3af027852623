"""`tqpo reproduce`."""

import dataclasses
import pathlib

from tyro.conf import Positional


@dataclasses.dataclass
class Reproduce:
    """Train the paper's runs and lay the results beside its numbers. Made for a GPU; what is done is not done again."""

    what: Positional[str]
    """table1, table2, first (SimpleEnv, every part once) or fast (the fast preset at five levels)."""
    task: tuple[str, ...] = ()
    """Only these tasks."""
    algo: tuple[str, ...] = ()
    """Only these algorithms or variants."""
    seeds: int = 5
    """Runs of each cell."""
    steps: float = 5e6
    """Environment steps of each run."""
    out: pathlib.Path = pathlib.Path("results/paper")
    """Folder for one JSON file per cell."""

    def __call__(self) -> None:
        from rich.console import Console

        from tqpo.errors import UnknownNameError
        from tqpo.paper import SETS
        from tqpo.reproduce import Plan, reproduce, table

        if self.what not in SETS:
            raise UnknownNameError(f"nothing to reproduce called {self.what!r}; there are {', '.join(SETS)}")
        cells = [c for c in SETS[self.what] if c.task in (self.task or {c.task}) and c.algo in (self.algo or {c.algo})]
        plan = Plan(cells, self.out, tuple(range(self.seeds)), int(self.steps))
        Console(width=150).print(table(reproduce(plan)))
