"""Choosing with a guarantee, certificates of runs, and what a check refuses."""

import copy
import dataclasses
import json
import pathlib
import shutil

import equinox as eqx
import jax
import jax.numpy as jnp
import jobs
import numpy as np
import pytest
from jobs import call

from tqpo import store
from tqpo.errors import ConfigError
from tqpo.evaluation import certificate
from tqpo.evaluation.certificate import claims_of
from tqpo.evaluation.fresh import fresh_episodes
from tqpo.maths import sequential
from tqpo.store import sealed
from tqpo.training import certificates, choose, evaluations, job, loop, program
from tqpo.training.certificates import Asked, CertificateError, certify_run
from tqpo.training.job import Job, together
from tqpo.training.loop import Options
from tqpo.training.policies import load_policy, policies_of, save_policies
from tqpo.training.program import init_group

OLD = pathlib.Path(__file__).parents[1] / "data" / "0.1.0" / "finished"


class Mixed(eqx.Module):
    """Takes the risky arm of `probes.TwoArms` with probability p: Pr[C ≤ 1] = 1 − 0.4·p, and the return is p."""

    p: float

    def init(self):
        return ()

    def act(self, obs, carry, key, deterministic):
        return jnp.where(jax.random.uniform(key) < self.p, 1.0, -1.0)[None], carry


@pytest.fixture(scope="module")
def arms():
    return Job(task="probes:TwoArms", cost_limit=1.0, safety=0.9).prepare()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two seeds under a limit that nobody breaks."""
    out = tmp_path_factory.mktemp("certificates") / "run"
    with loop.train(jobs.small_job(cost_limit=1000.0), out, Options(quiet=True)) as folder:
        folder.finish()
    return out


@pytest.fixture
def copied(run, tmp_path):
    return shutil.copytree(run, tmp_path / "run")


def test_the_best_of_those_that_pass_is_kept(arms):
    candidates = {"careful": Mixed(0.02), "wild": Mixed(0.6), "bold": Mixed(0.15), "lazy": Mixed(0.01)}
    shown = []
    label, found, keys, _ = choose.choose(arms, candidates, 0, 400, 20_000, tick=lambda *x: shown.append(x))
    assert label == "bold"
    pilot = [done for done, most, _ in shown if most == 4 * 400]
    assert (pilot, pilot[-1]) == (sorted(pilot), 1600)
    assert shown[len(pilot)][1] == 20_000  # then the tests
    assert found["verdict"] == "certified"
    story = found["choice"]
    assert [test["label"] for test in story["tests"]] == story["order"][: len(story["tests"])]
    assert story["tests"][-1]["label"] == "wild"
    assert story["tests"][-1]["verdict"] == "refuted"
    assert keys == (choose.TEST_SEED, 0, 2)
    assert sum(test["episodes"] for test in story["tests"]) <= 20_000


def test_where_none_passes_the_safest_is_kept_and_not_called_certified(arms):
    label, found, _, _ = choose.choose(arms, {"bad": Mixed(0.5), "worse": Mixed(0.9)}, 0, 400, 5000)
    assert (label, found["verdict"]) == ("bad", "refuted")
    label, found, _, _ = choose.choose(arms, {"near": Mixed(0.25)}, 0, 400, 500)
    assert (label, found["verdict"], found["episodes"]) == ("near", "undecided", 500)
    assert found["claims"][0]["more_episodes"] is None or found["claims"][0]["more_episodes"] > 0


def test_episodes_of_pilot_test_certificate_and_evaluation_have_different_roots():
    roots = {
        choose.PILOT_SEED,
        choose.TEST_SEED,
        certificates.CERTIFICATE_SEED,
        evaluations.EVALUATION_SEED,
    }
    assert len(roots) == 4


def test_training_leaves_a_certificate_that_holds(run):
    with store.open_run(run) as folder:
        folder.verify()
        entries = certificates.certificates_of(folder)
        assert "certified at 90% with 95% confidence (82 episodes)" in certificates.verdict_of(entries[0], folder)
    assert [e["policy"]["seed"] for e in entries] == [0, 1]
    assert [e["claims"][0]["episodes"] for e in entries] == [82, 82]  # all safe: the fewest that can tell
    assert list(certificates.check(run / "certificate.json", rerun=True)) == entries


def test_any_level_and_limit_may_be_asked_and_earlier_answers_stay(copied):
    with store.open_run(copied, write=True) as folder:
        entries = certify_run(folder, Asked(0.95, 0.5, 0.9, 300), seed=1)
        certificates.add_certificates(folder, entries)
        assert folder.finished
        assert len(certificates.certificates_of(folder)) == 3
        certificates.add_certificates(folder, entries)
        assert len(certificates.certificates_of(folder)) == 3
        folder.verify()
    (row,) = entries[0]["claims"]
    assert (row["event"], row["safety"], entries[0]["confidence"]) == ("cost ≤ 0.5", 0.95, 0.9)
    assert len(list(certificates.check(copied / "certificate.json"))) == 3


def test_mean_actions_have_a_certificate_of_their_own(copied):
    with store.open_run(copied, write=True) as folder:
        (entry,) = certify_run(folder, Asked(deterministic=True), seed=0)
        path = certificates.add_certificates(folder, [entry])
        _, policy = load_policy(folder, 0)
    assert (entry["environment"]["actions"], entry["episodes"]) == ("mean", 82)
    key = certificates.key_of(*entry["keys"])
    played, _ = fresh_episodes(job.prepared_of(folder.config).env, policy, key, 256, deterministic=True)
    assert entry["return_mean"] == pytest.approx(played.returns[:82].mean())
    assert len(list(certificates.check(path, rerun=True))) == 3


def test_physics_are_named_where_there_are_two():
    about = {"physics": "jax", "actions": "mean"}
    said = [certificates.circumstances({"environment": {"task": x, **about}}) for x in ("SimpleEnv", "gym:CartPole-v1")]
    assert said == ["jax physics, mean actions", "mean actions"]


def test_a_run_of_an_older_version_is_certified(tmp_path):
    with store.open_run(shutil.copytree(OLD, tmp_path / "old"), write=True) as folder:
        (safe,) = certify_run(folder, Asked(cost_limit=1000), seed=0)
        (close,) = certify_run(folder, Asked(0.999, 0.0, max_episodes=300), seed=0)
        path = certificates.add_certificates(folder, [safe, close])
        folder.verify()
    assert (safe["verdict"], safe["claims"][0]["safe_episodes"]) == ("certified", 82)
    assert (close["verdict"], close["episodes"]) == ("undecided", 300)
    assert close["claims"][0]["low"] < 0.999 <= close["claims"][0]["high"]
    assert len(list(certificates.check(path))) == 2


def test_a_kept_policy_acts_with_its_share_of_the_noise():
    both = [
        jobs.small_job(algo="budget", seeds=(0,), settings=jobs.SETTINGS | {"acting_noise": z}).prepare()
        for z in (1.0, 0.5)
    ]
    group = together(both)
    state = init_group(group)
    learned = state.learner.network.actor.log_std
    kept = policies_of(state, group).actor.log_std
    np.testing.assert_allclose(np.exp(kept - learned), [[1.0, 1.0], [0.5, 0.5]], rtol=1e-6)


def test_a_kept_policy_has_the_average_of_the_last_weights():
    quiet = jobs.SETTINGS | {"noise_fall": 5.0}  # weights that the algorithm itself changes at an iteration's end
    small = jobs.small_job(algo="budget", seeds=(0,), settings=quiet)
    group = dataclasses.replace(small, settings=quiet | {"acting_average": 3}).prepare().group
    plain = small.prepare().group
    state, seen, kept = init_group(group), [], []

    def watch(chunk):
        seen.append(jax.device_get(chunk.state.learner.network.actor))
        kept.append(jax.device_get(policies_of(chunk.state, group).actor))

    state, _ = program.run(group, 5, chunk=1, on_chunk=watch)
    average = seen[0]
    for n, (actor, found) in enumerate(zip(seen, kept, strict=True), 1):
        average = jax.tree.map(lambda old, new, n=n: old + (new - old) / min(n, 3), average, actor)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-7), average, found)
    alone, _ = program.run(plain, 5, chunk=1)
    jax.tree.map(np.testing.assert_array_equal, state.learner.network, alone.learner.network)


def test_a_policy_that_sees_its_budget_starts_with_the_limit_that_is_asked(tmp_path):
    prepared = jobs.small_job(algo="budget", seeds=(0,)).prepare()
    with store.create(tmp_path / "run", prepared.describe()) as folder:
        save_policies(folder, prepared, policies_of(init_group(prepared.group), prepared.group), [])
        (entry,) = certify_run(folder, Asked(cost_limit=40.0))
    assert entry["environment"]["budget_starts_at"] == [40.0]
    env = certificates.with_limits(prepared.env, (40.0,))
    _, obs = env.reset(jax.random.key(0))
    state, _ = env.reset(jax.random.key(0))
    state = state._replace(spent=jnp.array([20.0]))
    assert float(env._observe(state, obs[: -env.budget.size])[-env.budget.size]) == 0.5


def edited(path, change, seal=True):
    body = json.loads(path.read_text())
    body.pop("sha256")
    change(body["certificates"][0])
    path.write_bytes(sealed.seal(body) if seal else sealed.encode(body | {"sha256": "0" * 64}))


def first_claim(change):
    return lambda entry: change(entry["claims"][0])


REFUSED = {
    "edited": (lambda e: None, False, "does not match its own SHA-256; it was edited"),
    "more safe episodes": (
        first_claim(lambda c: c.update(safe_episodes=81)),
        True,
        "counts 81 safe episodes of 82 but lists 0",
    ),
    "fewer episodes": (
        first_claim(lambda c: c.update(episodes=60, safe_episodes=60)),
        True,
        "say undecided after 60, not certified",
    ),
    "another level": (first_claim(lambda c: c.update(safety=0.95)), True, "say undecided after 82, not certified"),
    "another bound": (first_claim(lambda c: c.update(low=0.97)), True, "its low is 0.97; its counts give 0.90"),
    "another limit": (first_claim(lambda c: c.update(cost_limits=[5.0])), True, "its event is 'cost ≤ 1000'"),
    "another sentence": (first_claim(lambda c: c.update(sentence="Safe.")), True, "its sentence is 'Safe.'"),
    "another verdict": (lambda e: e.update(verdict="refuted"), True, "verdict does not follow"),
    "another order": (lambda e: e["choice"].update(order=[0]), True, "not tested in the order"),
    "another seed": (lambda e: e["policy"].update(run="0" * 32), True, "it belongs to another policy"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_edited_certificate_is_refused_with_the_reason(name, copied):
    change, seal, reason = REFUSED[name]
    edited(copied / "certificate.json", change, seal)
    with pytest.raises(CertificateError, match=reason):
        list(certificates.check(copied / "certificate.json"))


def test_a_changed_byte_of_the_policy_is_refused(copied, monkeypatch, capsys):
    path = copied / "policy.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    code, _, err = call(monkeypatch, capsys, "certify", "--check", copied / "certificate.json")
    assert (code, "policy.safetensors is not the file that was certified" in err) == (2, True)


def test_another_policy_is_refused(copied, tmp_path):
    with pytest.raises(CertificateError, match="it belongs to another policy"):
        list(certificates.check(copied / "certificate.json", OLD))


def test_counts_that_were_made_up_are_found_by_running_again(copied):
    """One that fits itself: an unsafe episode more, and as many more safe ones as it takes."""
    path = copied / "certificate.json"
    with store.open_run(copied) as folder:
        (truth,) = certify_run(folder, Asked(), seed=0)
        prepared = jobs.small_job(cost_limit=1000.0).prepare()
        made_up = copy.deepcopy(truth)
        outcomes = np.ones(500, bool)
        outcomes[3] = False
        decision = sequential.decide(outcomes, 0.9, 0.95)
        (claim,) = claims_of(prepared.asked, prepared.env.cost_names)
        made_up["claims"] = [certificate.described(claim, decision, [3], 0.95)]
    certificates.write_certificates(path, [made_up])
    assert len(list(certificates.check(path))) == 1
    with pytest.raises(CertificateError, match="run again, 82 of 82 episodes are safe"):
        list(certificates.check(path, rerun=True))


def test_several_constraints_have_a_claim_each_and_one_together():
    job = Job(constraints=("hazards:limit=5,safety=0.9", "cost:limit=9,safety=0.95"), task="DynamicEnv")
    prepared = job.prepare()
    each, other, both = claims_of(prepared.asked, prepared.env.cost_names)
    assert (each.event, other.event) == ("hazards ≤ 5", "cost ≤ 9")
    assert (both.event, both.safety) == ("hazards ≤ 5 and cost ≤ 9", 0.85)
    with pytest.raises(ConfigError, match="this run has 2 limits"):
        Asked(cost_limit=3.0).constraints(prepared)
    means = dataclasses.replace(job, constraints=("hazards:mean=5",)).prepare()
    assert claims_of(means.asked, means.env.cost_names) == ()


class TestCommands:
    def test_certify_compare_report_and_card(self, copied, monkeypatch, capsys, tmp_path):
        code, out, _ = call(monkeypatch, capsys, "certify", copied, "--safety", "0.8", "--seed", "0")
        assert (code, "certified" in out, "Pr[cost ≤ 1000] ≥ 80%" in out) == (0, True, True)
        code, out, _ = call(monkeypatch, capsys, "certify", copied, "--deterministic", "--seed", "0")
        assert (code, "With jax physics, mean actions." in out) == (0, True), out
        code, out, _ = call(monkeypatch, capsys, "certify", "--check", copied / "certificate.json")
        assert (code, "holds: hashes, counts and bounds" in out) == (0, True)
        call(monkeypatch, capsys, "evaluate", copied, "--episodes", "20")
        code, out, _ = call(monkeypatch, capsys, "compare", copied)
        assert (code, "2 certified" in out) == (0, True), out
        code, out, _ = call(monkeypatch, capsys, "report", copied, "--out", tmp_path / "page.html")
        assert "Certified with 95% confidence: Pr[cost ≤ 1000] ≥ 90%" in (tmp_path / "page.html").read_text()
        code, _, err = call(
            monkeypatch, capsys, "export", copied, "--to", "stablehlo", "--out", tmp_path / "p.stablehlo"
        )
        card = (tmp_path / "p.stablehlo.md").read_text()
        assert (code, "Certified with 95% confidence" in card, "jax physics, mean actions" in card) == (
            0,
            True,
            True,
        ), err

    def test_a_folder_of_runs_is_one_file(self, copied, monkeypatch, capsys, tmp_path):
        out = tmp_path / "elsewhere" / "all.json"
        code, _, _ = call(monkeypatch, capsys, "certify", tmp_path, "--out", out)
        assert (code, len(certificates.read(out))) == (0, 2)
        code, text, _ = call(monkeypatch, capsys, "certify", "--check", out)
        assert (code, "holds" in text) == (0, True)

    def test_what_is_missing_or_wrong_is_one_line(self, copied, monkeypatch, capsys):
        for words, message in [
            ([], "no run given"),
            ([copied, "--confidence", "1"], "confidence = 1.0: a probability"),
            ([copied, "--safety", "0"], "safety = 0.0: a probability"),
            ([copied, "--max-episodes", "0"], "max_episodes = 0: at least 1"),
            ([copied, "--physics", "bullet"], "physics = 'bullet'"),
        ]:
            code, _, err = call(monkeypatch, capsys, "certify", *words)
            assert (code, message in err) == (2, True), err

    def test_training_that_must_be_certified(self, monkeypatch, capsys, tmp_path):
        monkeypatch.setattr(job, "TEST_EPISODES", 300)
        words = jobs.arguments(tmp_path / "run")
        code, out, _ = call(
            monkeypatch, capsys, *words, "--cost-limit", "0", "--safety", "0.999", "--require-certificate"
        )
        assert code == 3
        assert "no policy of this run is certified at 99.9%; the safest kept" in " ".join(out.split())
        words[words.index(str(tmp_path / "run"))] = str(tmp_path / "safe")
        code, out, _ = call(monkeypatch, capsys, *words, "--cost-limit", "1000", "--require-certificate", "--quiet")
        assert (code, "certified at 90% with 95% confidence" in out) == (0, True)
