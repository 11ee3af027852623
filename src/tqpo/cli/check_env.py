"""`tqpo check-env`."""

import dataclasses
import sys
from typing import Annotated

from tyro.conf import Positional, arg

from tqpo.cli.common import Number, Settings, Text, assignments, new_table, wide_console


@dataclasses.dataclass
class CheckEnv:
    """Say whether an environment of yours is fit for training. Exit status 2 if it is not.

    For example: tqpo check-env gym:Pendulum-v1 --cost-fn mymodule:cost
    """

    env: Annotated[Positional[str], arg(metavar="ENV")]
    """gym:ID, or module:factory from the current folder."""
    cost_fn: Text = None
    """module:function that gives the cost of a step: (obs, action, next_obs, info) -> number or dict."""
    task_set: Settings = ()
    """Arguments of gymnasium.make or of the factory."""
    steps: int = 1000
    """Steps of random actions to take."""
    max_steps: Number = None
    """Truncate each episode after so many steps; by default the environment ends them itself."""
    vector: str = "sync"
    """sync, or async to look at it in processes of its own."""
    env_timeout: float = 60.0
    """Seconds that one step may take."""

    def __call__(self) -> None:
        from rich.markup import escape

        from tqpo.host.check import check_env
        from tqpo.host.spec import HostOptions

        options = HostOptions(self.vector, self.env_timeout, max_steps=self.max_steps)
        findings = check_env(self.env, assignments(self.task_set), self.cost_fn, options, self.steps)
        table = new_table(escape(self.env), ("", "what", "found", "what to do"))
        colours = {"ok": "green", "warning": "yellow", "error": "bold red"}
        for finding in findings:
            level = f"[{colours[finding.level]}]{finding.level}[/]"
            table.add_row(level, *(escape(text) for text in finding[1:]))
        console = wide_console()
        console.print(table)
        errors, warnings = (sum(f.level == level for f in findings) for level in ("error", "warning"))
        console.print(f"not fit: {errors} error" if errors else f"fit for training, {warnings} warnings")
        if errors:
            sys.exit(2)
