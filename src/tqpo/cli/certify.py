"""`tqpo certify`."""

import dataclasses
import pathlib
import sys
from typing import Annotated, Any

from tyro.conf import Positional, arg

from tqpo.cli.common import MISSED, File, Number, new_table, progress, wide_console
from tqpo.errors import ConfigError

Real = Annotated[float | None, arg(metavar="FLOAT", help_behavior_hint="")]


@dataclasses.dataclass
class Certify:
    """Run fresh episodes until it is clear whether a policy keeps its limit with the stated probability.

    Certified, refuted, or undecided after so many episodes; the result is a file that anyone can check. For example:
    tqpo certify runs/SimpleEnv-budget-90 --safety 0.9
    """

    run: Annotated[Positional[pathlib.Path | None], arg(metavar="[RUN]", help_behavior_hint="")] = None
    """The folder that training wrote, a folder of such folders, or a policy that came with the package, such as
    SimpleEnv-90."""
    safety: Real = None
    """The probability to certify; by default the one that was trained for. Of several constraints, each one's."""
    cost_limit: Real = None
    """The limit; by default the one that was trained for. A policy that sees its budget starts with this one."""
    confidence: float = 0.95
    """With which the answer is right."""
    max_episodes: Number = None
    """Episodes after which it is undecided; by default 10,000, and 1,000 of your own environment on the host."""
    physics: str = "jax"
    """jax, or mujoco for the reference simulator."""
    deterministic: bool = False
    """Act with the policy's mean instead of a sample."""
    seed: Number = None
    """Which seed's policy; by default every seed's."""
    out: File = None
    """The file to write; by default certificate.json in the folder."""
    check: File = None
    """Check this file instead: the policy's SHA-256, the counts and what follows from them. The run is looked for where the
    file says, or where RUN says."""
    rerun: bool = False
    """With --check: also run the episodes again and compare every one of them."""

    require: bool = False
    """Exit with status 3 unless everything is certified."""

    def __call__(self) -> None:
        if self.check is not None:
            self._check(self.check)
        elif self.run is None:
            raise ConfigError("no run given: name a folder that training wrote, or --check a certificate")
        else:
            self._certify(self.run)

    def _check(self, path: pathlib.Path) -> None:
        from tqpo.training import certificates

        with progress("running its episodes again", hidden=not self.rerun) as tick:
            entries = list(certificates.check(path, self.run, self.rerun, tick))
        show(entries)
        print(
            f"{path} holds: {'hashes, counts, bounds and every episode' if self.rerun else 'hashes, counts and bounds'}"
        )

    def _certify(self, path: pathlib.Path) -> None:
        from tqpo import store
        from tqpo.training import certificates, choose

        how = self.confidence, self.max_episodes, self.physics, self.deterministic
        asked = certificates.Asked(self.safety, self.cost_limit, *how)
        runs = runs_in(path)
        entries: dict[str, list[dict[str, Any]]] = {}
        for name, place in runs.items():
            with progress(f"certifying {name}", hidden=False) as tick, store.open_run(place) as folder:
                entries[name] = choose.certify(folder, asked, self.seed, tick)
        show([entry for part in entries.values() for entry in part])
        print(self._write(path, runs, entries))
        if self.require and any(entry["verdict"] != "certified" for part in entries.values() for entry in part):
            sys.exit(MISSED)

    def _write(
        self, path: pathlib.Path, runs: dict[str, Any], entries: dict[str, list[dict[str, Any]]]
    ) -> pathlib.Path:
        """Into the run, or into a file of its own, which then says where the runs are."""
        import os

        from tqpo import store
        from tqpo.training import certificates

        shipped = store.is_shipped(path)
        if self.out is None and not shipped and list(runs.values()) == [path]:
            with store.open_run(path, write=True) as folder:
                return certificates.add_certificates(folder, entries[path.name])
        out = self.out or (pathlib.Path(f"{path}-certificate.json") if shipped else path / certificates.CERTIFICATE)
        found = {name: str(path) if shipped else os.path.relpath(place, out.parent) for name, place in runs.items()}
        certificates.write_certificates(
            out, [entry for name, part in entries.items() for entry in certificates.placed(part, found[name])]
        )
        return out


def runs_in(path: pathlib.Path) -> dict[str, pathlib.Path]:
    """The run that a path names, or the runs in a folder, by name."""
    from tqpo import store
    from tqpo.store.run import MANIFEST

    inside = sorted(path.iterdir()) if path.is_dir() and not (path / MANIFEST).exists() else []
    if found := {p.name: p for p in inside if (p / MANIFEST).exists()}:
        return found
    store.open_run(path).close()  # says what is wrong with it
    return {path.name: path}


def show(entries: list[dict[str, Any]]) -> None:
    """A row for each claim, and the sentence where there is one policy."""
    from tqpo.training.certificates import circumstances

    numbers = ("seed", "episodes", "share", "return")
    table = new_table("", ("task", *numbers[:1], "actions", "claim", "verdict", *numbers[1:]), right=numbers)
    colours = {"certified": "green", "refuted": "red", "undecided": "yellow"}
    console = wide_console()
    for entry in entries:
        for row in entry["claims"]:
            share = f"{row['safe_episodes'] / row['episodes']:.1%} [{row['low']:.1%}, {row['high']:.1%}]"
            table.add_row(
                entry["environment"]["task"],
                str(entry["policy"]["seed"]),
                entry["environment"]["actions"],
                f"Pr[{row['event']}] ≥ {100 * row['safety']:g}%".replace("[", "\\["),
                f"[{colours[row['word']]}]{row['word']}[/]",
                f"{row['episodes']:,}",
                share.replace("[", "\\["),
                f"{entry['return_mean']:.2f}",
            )
    console.print(table)
    if len(entries) == 1:
        for row in entries[0]["claims"]:
            console.print(
                f"[bold {colours[row['word']]}]{row['sentence'].replace('[', chr(92) + '[')}[/]", soft_wrap=True
            )
        starts = ", ".join(f"{x:g}" for x in entries[0]["environment"]["budget_starts_at"] or ())
        seen = f"; the policy saw a budget that starts at {starts}" if starts else ""
        console.print(f"With {circumstances(entries[0])}{seen}.")
