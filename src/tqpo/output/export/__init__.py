"""A policy as one file that another program can load, with a card that says what it is.

The normaliser and the action clip are inside. What a policy remembers is an input and an output, so the file itself has
no state.

| input | shape | what |
|---|---|---|
| `obs` | [batch, O] | the observation, as the environment gives it |
| `budget` | [batch, F] | what is left of the cost limits, for a policy that sees it; the card says how to compute it |
| `position` | [] int32 | of a run with a dial: where it stands; the card says what is certified there |
| `h`, `c` | [batch, H] | memory; zero at the start of an episode |
| `prev_action` | [batch, A] | the previous action, not clipped; zero at the start of an episode |
| `prev_reward` | [batch] | the reward of that action; zero at the start of an episode |

| output | shape | what |
|---|---|---|
| `action` | [batch, A] | the mean action, in [-1, 1]; of a choice the likeliest, one-hot |
| `log_std` | [A] | to sample: action + exp(log_std)·z, then clipped to [-1, 1] |
| `index`, `logits` | [batch], [batch, A] | of a choice instead: its number (int), and to sample: softmax(logits) |
| `env_action` | as its `step` takes it | your own environments only: `action` in its bounds, or the choice's number |
| `h_next`, `c_next` | [batch, H] | memory for the next step |

`h`, `c`, `prev_action`, `prev_reward`, `h_next` and `c_next` exist for recurrent policies only. All but `index`, and
`env_action` of a choice, are float32.
"""

import importlib
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from tqpo import store
from tqpo.errors import ConfigError
from tqpo.evaluation.episodes import ActorPolicy, Dial
from tqpo.output.export import card
from tqpo.store import disk
from tqpo.training.policies import load_dial, load_policy

FORMATS = {"onnx": "tqpo.output.export.onnx", "stablehlo": "tqpo.output.export.stablehlo"}


def export(
    path: str | os.PathLike, to: str = "onnx", seed: int | None = None, out: str | os.PathLike | None = None
) -> tuple[pathlib.Path, pathlib.Path]:
    """Writes the policy of a run's seed, by default the first, and its card; returns both paths.

    Without `out` they go into the run's own folder, as `export/seed-N.FORMAT` and `export/seed-N.FORMAT.md`; those of a
    policy that came with the package into the current one, as `NAME.FORMAT` and `NAME.FORMAT.md`.
    """
    if out is None and store.is_shipped(path):
        out = f"{path}.{to}"
    with store.open_run(path, write=out is None) as folder:
        seed, policy = load_policy(folder, seed)
        policy = load_dial(folder, seed) or policy
        facts = card.facts_of(folder, seed, policy)
        model, text = encode(policy, to, facts), card.markdown(facts, to).encode()
        if out is not None:
            return write(pathlib.Path(out), model), write(pathlib.Path(f"{out}.md"), text)
        name, finished = f"export/seed-{seed}.{to}", folder.finished
        written = folder.write_file(name, model), folder.write_file(f"{name}.md", text)
        if finished:
            folder.finish()
        return written


def encode(policy: ActorPolicy | Dial, to: str, facts: Mapping[str, Any]) -> bytes:
    """The file's content."""
    if to not in FORMATS:
        raise ConfigError(f"to = {to!r}: {' or '.join(FORMATS)}")
    try:
        return importlib.import_module(FORMATS[to]).encode(policy, facts)
    except ImportError as error:
        raise ConfigError(
            f'{to} files need a package that is missing ({error}): pip install ".[export]" in the clone'
        ) from None


def write(path: pathlib.Path, data: bytes) -> pathlib.Path:
    with disk.writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    disk.write_bytes(path, data)
    return path
