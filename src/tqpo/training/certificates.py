"""A run's certificates: made, kept in its `certificate.json`, and checked.

The file is `{"format", "certificates": [entry, …], "sha256"}`, sealed with its own checksum. An entry is about one seed's policy:

| key | value |
|---|---|
| `verdict`, `confidence`, `method`, `max_episodes` | the word on all constraints, and how it was found |
| `claims` | [{`event`, `cost_limits`, `safety`, `word`, `sentence`, `episodes`, `safe_episodes`, `unsafe_episodes`, `low`, `high`,
`more_episodes`}], for each constraint and, where there are several, for all at once |
| `episodes`, `return_mean`, `seconds` | of the whole test |
| `environment` | task, its settings, physics, actions, and the limits that the policy's budget starts at if it sees one |
| `keys` | the root and what is folded into it: the key of the test's episodes |
| `policy` | run, seed, folder, the SHA-256 of the files that make it, and where its dial stood if it has one |
| `choice` | where the policy was chosen: the pilot of every candidate and every test, in order |
| `provenance` | commit, versions, hardware |
"""

import dataclasses
import os
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax

from tqpo import references, store
from tqpo.algorithms.settings import Constraint
from tqpo.errors import ConfigError, TqpoError
from tqpo.evaluation import certificate
from tqpo.evaluation.certificate import CONFIDENCE, Claim, Closing, claims_of, describe, examine
from tqpo.evaluation.episodes import Policy, check_count
from tqpo.evaluation.fresh import check_physics, stream
from tqpo.host.reference import is_reference
from tqpo.maths import sequential, statistics
from tqpo.provenance import provenance
from tqpo.store import disk, sealed
from tqpo.store.manifest import CONFIG
from tqpo.store.policy import ARRAYS, RECORD
from tqpo.training.job import Prepared, prepared_of
from tqpo.training.policies import load_dial, load_policies, load_policy
from tqpo.types import Key, Spec

CERTIFICATE, FORMAT = "certificate.json", "tqpo-certificate-1"
ACTIONS = ("sampled", "mean")  # by whether they are deterministic
CERTIFICATE_SEED = 3_000_017  # these episodes share no key with training, the choice or the evaluation


class CertificateError(TqpoError):
    """A certificate that does not hold what it says: names the reason."""


@dataclasses.dataclass(frozen=True)
class Asked:
    """What is to be certified; what is None is as the run has it."""

    safety: float | None = None
    cost_limit: float | None = None
    confidence: float = CONFIDENCE
    max_episodes: int | None = None
    physics: str = "jax"
    deterministic: bool = False  # the policy's mean acts instead of samples

    def constraints(self, prepared: Prepared) -> tuple[Constraint, ...]:
        """Those of the run with this level and this limit."""
        bounded = [c for c in prepared.asked if c.kind == "quantile"]
        given = {"safety": self.safety, "limit": self.cost_limit}
        if self.cost_limit is not None and len(bounded) > 1:
            raise ConfigError(
                f"cost_limit = {self.cost_limit:g}: this run has {len(bounded)} limits, one for each cost"
            )
        changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        return tuple(dataclasses.replace(c, **changes) for c in bounded)

    def most(self, prepared: Prepared) -> int:
        return check_count("max_episodes", prepared.test_episodes if self.max_episodes is None else self.max_episodes)


class Pilot(NamedTuple):
    """How a candidate did in the episodes that put candidates in order."""

    slack: float = 0.0  # how far the safe share is above the level, as a share of ε; of several constraints the least
    mean_slack: float = 0.0  # the same of bounds on means: not negative where all are kept with some confidence
    return_mean: float = 0.0
    safe_share: float = 1.0  # of episodes, by the first constraint


def testing_order(pilots: Sequence[Pilot]) -> list[int]:
    """Safest first, each earning more than those before it; only those that keep the bounds on means, if any does."""
    fit = [i for i, p in enumerate(pilots) if p.mean_slack >= 0]
    fit = fit or [max(range(len(pilots)), key=lambda i: pilots[i].mean_slack)]
    return [fit[i] for i in sequential.front([pilots[i].slack for i in fit], [pilots[i].return_mean for i in fit])]


def key_of(root: int, *parts: int) -> Key:
    key = jax.random.key(root)
    for part in parts:
        key = jax.random.fold_in(key, part)
    return key


def with_limits(env: Spec, limits: tuple[float, ...]) -> Spec:
    """The environment whose budget, if it shows one, starts at these limits."""
    budget = getattr(env, "budget", None)
    if budget is None:
        return env
    shown: Any = env
    return dataclasses.replace(shown, budget=dataclasses.replace(budget, limits=limits))


def certify_run(folder: store.Run, asked: Asked, seed: int | None = None, tick: Closing | None = None) -> list[dict]:
    """An entry for each seed's policy, or for one."""
    prepared = prepared_of(folder.config)
    check_physics(prepared.env, asked.physics, prepared.job.task)
    policies = load_policies(folder) if seed is None else dict([load_policy(folder, seed)])
    return [certify_policy(folder, prepared, s, policy, asked, tick) for s, policy in policies.items()]


def certify_policy(
    folder: store.Run, prepared: Prepared, seed: int, policy: Policy, asked: Asked, tick: Closing | None = None
) -> dict[str, Any]:
    """One policy in episodes of its own, for as long as it takes to tell."""
    constraints, most, keys = asked.constraints(prepared), asked.most(prepared), (CERTIFICATE_SEED, seed)
    claims = claims_of(constraints, prepared.env.cost_names)
    limits = tuple(float(c.limit) for c in constraints)
    begun = time.perf_counter()
    env = with_limits(prepared.env, limits)
    episodes = stream(env, policy, key_of(*keys), most, asked.physics, asked.deterministic)
    found = describe(claims, examine(episodes, claims, asked.confidence, most, tick=tick), asked.confidence)
    found["seconds"] = round(time.perf_counter() - begun, 1)
    return entry_of(folder, prepared, seed, found, keys, most, limits, asked.physics, asked.deterministic)


def entry_of(
    folder: store.Run,
    prepared: Prepared,
    seed: int,
    found: Mapping[str, Any],
    keys: Sequence[int],
    most: int,
    limits: Sequence[float],
    physics: str = "jax",
    deterministic: bool = False,
) -> dict[str, Any]:
    """What was found, with all that it takes to find it again."""
    sees = getattr(prepared.env, "budget", None) is not None
    return {
        **found,
        "method": sequential.METHOD,
        "max_episodes": most,
        "environment": {
            "task": prepared.job.task,
            "task_settings": dict(prepared.job.task_settings),
            "physics": physics,
            "actions": ACTIONS[deterministic],
            "budget_starts_at": list(limits) if sees else None,
        },
        "keys": list(keys),
        "policy": {"run": folder.id, "seed": seed, "folder": ".", "sha256": digests(folder.folder)},
        "provenance": provenance(),
    }


def digests(folder: pathlib.Path) -> dict[str, str]:
    """SHA-256 of the files that make a policy."""
    return {name: disk.digest(disk.read_bytes(folder / name)) for name in (ARRAYS, RECORD, CONFIG)}


def certificates_of(folder: store.Run) -> list[dict[str, Any]]:
    """Those in a run's folder."""
    return read(folder.path(CERTIFICATE)) if folder.path(CERTIFICATE).exists() else []


def positions_of(folder: store.Run, seed: int, deterministic: bool) -> dict[float, int]:
    """Where the dial of a seed may stand, by the safety that is certified there for the limit of training and for this
    kind of action."""
    limits = [float(c["limit"]) for c in folder.config["derived"]["algorithm"]["constraints"]]
    return {
        entry["claims"][0]["safety"]: entry["policy"]["position"]
        for entry in certificates_of(folder)
        if entry["policy"]["seed"] == seed and "position" in entry["policy"] and entry["verdict"] == "certified"
        if entry["environment"]["budget_starts_at"] == limits
        if entry["environment"]["actions"] == ACTIONS[deterministic]
    }


def of_training(folder: store.Run) -> list[dict[str, Any]]:
    """Those of the policies that training chose."""
    return [entry for entry in certificates_of(folder) if "choice" in entry]


def verdict_of(entry: Mapping[str, Any], folder: store.Run) -> str:
    """How the training of a seed ends, in a sentence: certified, or plainly not, with what to type."""
    whose = f"seed {entry['policy']['seed']}: "
    rows = [row for row in entry["claims"] if len(row["costs"]) == 1]
    asked = " and ".join(f"{100 * row['safety']:g}%" + f" ({row['event']})" * (len(rows) > 1) for row in rows)
    if entry["verdict"] == "certified":
        return f"{whose}certified at {asked} with {100 * entry['confidence']:g}% confidence ({entry['episodes']:,} episodes)"
    shares = [f"{x['safe_episodes'] / x['episodes']:.1%} [{x['low']:.1%}, {x['high']:.1%}]" for x in rows]
    said = f"{whose}no policy of this run is certified at {asked}; the safest kept {' and '.join(shares)}"
    job, more = folder.config["job"], max((row["more_episodes"] or 0) for row in rows)
    if entry["verdict"] == "undecided" and more:
        enough = statistics.two_digits(entry["episodes"] + more)
        return f"{said}; more episodes would tell: tqpo certify {folder.folder} --max-episodes {enough}"
    again = f"tqpo train --resume {folder.folder} --steps {2 * job['steps']:.3g}"
    if references.is_local(job["task"]):
        again = f"tqpo.resume({str(folder.folder)!r}, steps={2 * job['steps']:.3g})"
    return f"{said}; more steps may help ({again}), or training again with --set margin=0.5"


def read(path: pathlib.Path) -> list[dict[str, Any]]:
    return sealed.unseal(disk.read_bytes(path), path, FORMAT)["certificates"]


def encode(entries: Sequence[Mapping[str, Any]]) -> bytes:
    return sealed.seal({"format": FORMAT, "certificates": list(entries)})


def add_certificates(folder: store.Run, entries: Sequence[dict[str, Any]]) -> pathlib.Path:
    """Keeps entries beside earlier ones of the run's folder; one that asks the same is replaced."""
    finished = folder.finished  # a file that changes opens the run again
    asks, now = [question(entry) for entry in entries], digests(folder.folder)
    kept = [
        entry for entry in certificates_of(folder) if entry["policy"]["sha256"] == now
    ]  # the others' policy is gone
    others = [entry for entry in kept if question(entry) not in asks]
    path = folder.write_file(CERTIFICATE, encode([*entries, *others]))
    if finished:
        folder.finish()
    return path


def question(entry: Mapping[str, Any]) -> tuple:
    """What an entry is the answer to."""
    claims = tuple((row["event"], row["safety"]) for row in entry["claims"])
    own, how = (entry["policy"]["run"], entry["policy"]["seed"]), entry["environment"]
    return *own, claims, entry["confidence"], how["physics"], how["actions"], "choice" in entry


def circumstances(entry: Mapping[str, Any]) -> str:
    """The simulator, where there are two of them, and the kind of action that an entry is about."""
    about = entry["environment"]
    simulator = "" if is_reference(about["task"]) else f"{about['physics']} physics, "
    return f"{simulator}{about['actions']} actions"


def write_certificates(path: pathlib.Path, entries: Sequence[dict[str, Any]]) -> None:
    """A file of its own, which says where the policies lie."""
    with disk.writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    disk.write_bytes(path, encode(entries))


def placed(entries: Sequence[dict[str, Any]], run: str) -> list[dict[str, Any]]:
    """The entries of a run, for a file from which the run is found there."""
    return [entry | {"policy": entry["policy"] | {"folder": run}} for entry in entries]


def check(path: pathlib.Path, run: str | os.PathLike | None = None, rerun: bool = False, tick: Closing | None = None):
    """Yields the entries of a file that hold what they say; raises a `CertificateError` for the first that does not.

    That is: the policy's files are those that were certified, the counts, bounds and words follow from the listed
    episodes and, with `rerun`, those episodes end as they did.
    """
    try:
        entries = read(path)
    except store.DamagedError as error:
        raise CertificateError(f"refused: {error}; it was edited or cut short") from None
    for entry in entries:
        whose = f"seed {entry['policy']['seed']} of run {entry['policy']['run'][:8]}"
        if reason := refuse(entry, path, run, rerun, tick):
            raise CertificateError(f"refused, {whose}: {reason}")
        yield entry


def refuse(entry: Mapping[str, Any], path: pathlib.Path, run: Any, rerun: bool, tick: Closing | None) -> str | None:
    """Why an entry does not hold what it says; None if it does."""
    folder = store.open_run(run or place(entry, path))
    if folder.id != entry["policy"]["run"]:
        return f"it belongs to another policy: {folder.folder} is run {folder.id[:8]}"
    for name, digest in entry["policy"]["sha256"].items():
        if (found := disk.digest(disk.read_bytes(folder.folder / name))) != digest:
            return f"{name} is not the file that was certified: its SHA-256 is {found[:12]}…, not {digest[:12]}…"
    tests = [entry, *entry.get("choice", {}).get("tests", [])]
    for row in (row for test in tests for row in test["claims"]):
        if reason := certificate.recompute(row, entry["confidence"]):
            return f"{row['event']}: {reason}"
    if any(test["verdict"] != certificate.overall(test["claims"]) for test in tests):
        return "its verdict does not follow from its claims"
    return (refuse_choice(entry) if "choice" in entry else None) or (
        refuse_rerun(entry, folder, tick) if rerun else None
    )


def refuse_choice(entry: Mapping[str, Any]) -> str | None:
    """Why the order of the tests is not the one that the pilot gives, or the kept policy not one that passed."""
    choice = entry["choice"]
    order, tests = choice["order"], choice["tests"]
    labels, pilots = zip(
        *((c["label"], Pilot(*(c[x] for x in Pilot._fields))) for c in choice["candidates"]), strict=True
    )
    if order != [labels[i] for i in testing_order(pilots)]:
        return "its candidates were not tested in the order that the pilot gives"
    words = [test["verdict"] for test in tests]
    if [test["label"] for test in tests] != order[: len(tests)] or any(word != "certified" for word in words[:-1]):
        return "its tests went on after one that failed"
    kept = next((test for test in tests if test["label"] == choice["kept"]), None)
    if kept is None or kept["claims"] != entry["claims"]:
        return "the kept policy is not the one that was tested"
    return None


def refuse_rerun(entry: Mapping[str, Any], folder: store.Run, tick: Closing | None) -> str | None:
    """Why its episodes, run again, end otherwise."""
    prepared, rows = prepared_of(folder.config), entry["claims"]
    dial, position = load_dial(folder, entry["policy"]["seed"]), entry["policy"].get("position")
    policy = load_policy(folder, entry["policy"]["seed"])[1] if dial is None else dial.at(position)
    limits = entry["environment"]["budget_starts_at"]
    env = with_limits(prepared.env, tuple(limits)) if limits else prepared.env
    claims: list[Claim] = [certificate.claim_of(row) for row in rows]
    most = entry["max_episodes"]
    how = entry["environment"]
    parts = stream(env, policy, key_of(*entry["keys"]), most, how["physics"], how["actions"] == ACTIONS[True])
    finding = examine(parts, claims, entry["confidence"], most, hasty="choice" in entry, tick=tick)
    found = describe(claims, finding, entry["confidence"])
    for row, again in zip(rows, found["claims"], strict=True):
        if any(row[name] != again[name] for name in ("episodes", "safe_episodes", "unsafe_episodes")):
            versions = entry["provenance"]["versions"]
            return (
                f"{row['event']}: run again, {again['safe_episodes']:,} of {again['episodes']:,} episodes are safe, not "
                f"{row['safe_episodes']:,} of {row['episodes']:,} (it was made with JAX {versions['jax']} on "
                f"{entry['provenance']['hardware']['device']}; others round differently)"
            )
    return None


def place(entry: Mapping[str, Any], path: pathlib.Path) -> str | pathlib.Path:
    """The folder of an entry's run, as its file names it; a policy that comes with the package has no folder there."""
    named = entry["policy"]["folder"]
    return named if store.is_shipped(named) else path.absolute().parent / named
