"""The released code on the fixed batch: `python -m reference.released.theirs TQPO QCPO rlpyt`, paths of three checkouts.

Needs NumPy and PyTorch. What else the released files import and this batch does not use is replaced by empty modules. It writes
inputs, outputs and provenance into tests/data/released.npz.
"""

import argparse
import collections
import importlib
import json
import pathlib
import subprocess
import sys
import types
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]

from reference.released import batch as given

UNUSED = (
    "sklearn",
    "sklearn.neighbors",
    "matplotlib",
    "matplotlib.pyplot",
    "scipy",
    "scipy.integrate",
    "psutil",
    "pyprind",
)
SETTINGS = {  # of config_tqpo.py and config_qcpo.py, whose numbers these are, and the small batch
    "discount": 0.99,
    "learning_rate": 1e-4,
    "value_loss_coeff": 1.0,
    "entropy_loss_coeff": 0,
    "clip_grad_norm": 1e4,
    "gae_lambda": 0.97,
    "minibatches": 1,
    "ratio_clip": 0.1,
    "cost_value_loss_coeff": 0.5,
    "penalty_init": 0.0,
    "cost_limit": given.COST_LIMIT,
    "cost_scale": 10,
    "target_outage_prob": given.OUTAGE,
    "n_quantile": given.QUANTILES,
    "pid_Ki": 0.1,
    "new_T": given.SEGMENT,
    "new_B": given.STEPS // given.SEGMENT,
}
MODEL = {
    "n_quantile": given.QUANTILES,
    "hidden_sizes": [given.WIDTH, given.WIDTH],
    "lstm_size": given.WIDTH,
    "lstm_skip": True,
}
Outputs = dict[str, np.ndarray]


class Absent(types.ModuleType):
    """Stands for a module that is not there; whatever is imported from it is None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def import_released(tqpo: pathlib.Path, qcpo: pathlib.Path, rlpyt: pathlib.Path) -> dict[str, types.ModuleType]:
    """Their modules, as if the two projects lay in rlpyt/projects, where their authors put them."""
    absent = {name: Absent(name) for name in UNUSED if name not in sys.modules}
    sys.modules.update(absent)
    sys.path.insert(0, str(rlpyt))
    projects = importlib.import_module("rlpyt.projects")
    projects.__path__ += [str(tqpo), str(qcpo)]
    names = ("tqpo", "qcpo")
    loaded = {f"{n}.{part}": importlib.import_module(f"rlpyt.projects.{n}.{part}") for n in names for part in parts(n)}
    shared = ("samplers.collections", "agents.pg.base", "distributions.gaussian", "utils.collections")
    loaded |= {name: importlib.import_module(f"rlpyt.{name}") for name in shared}
    for name in absent:  # PyTorch looks for some of them later
        del sys.modules[name]
    return loaded


def parts(name: str) -> tuple[str, ...]:
    return name, f"{name}_model", f"{name}_agent", "dist_rl_utils"


def make_samples(code: dict[str, types.ModuleType], values: object, after: object, x: dict[str, torch.Tensor]):
    """The batch as rlpyt's sampler gives it, [120, 1, …]."""
    collections_, agents = code["samplers.collections"], code["agents.pg.base"]
    info = code["utils.collections"].namedarraytuple("EnvInfo", ["cost", "cum_cost"])
    states = type(code["tqpo.tqpo_model"].RnnState(h=None, c=None))(h=x["h"][:, :, None], c=x["c"][:, :, None])
    dist = code["distributions.gaussian"].DistInfoStd(mean=x["mean"], log_std=x["log_std"])
    agent_info = agents.AgentInfoRnn(dist_info=dist, value=values, prev_rnn_state=states)
    agent = collections_.AgentSamplesBsv(
        action=x["action"], prev_action=x["prev_action"], agent_info=agent_info, bootstrap_value=after
    )
    env = collections_.EnvSamples(
        observation=x["observation"],
        reward=x["reward"],
        prev_reward=x["prev_reward"],
        done=x["done"],
        env_info=info(cost=x["cost"], cum_cost=x["cum_cost"]),
    )
    return collections_.Samples(agent=agent, env=env)


class Released:
    """One of the two algorithms with its agent, weights, normaliser and history."""

    def __init__(self, name: str, code: dict[str, types.ModuleType]) -> None:
        self.name, self.code = name, code
        self.data = given.inputs()
        x = {key: torch.from_numpy(value)[:, None] for key, value in self.data.items() if ":" not in key}
        model = code[f"{name}.{name}_model"]
        model_class = getattr(model, {"tqpo": "tqpoModel", "qcpo": "QcpoModel"}[name])
        agent_class = getattr(code[f"{name}.{name}_agent"], {"tqpo": "tqpoLstmAgent", "qcpo": "QcpoLstmAgent"}[name])
        fields = {"tqpo": ("value", "cost_value"), "qcpo": ("value", "quantiles", "shape", "scale")}[name]
        said = [x[field] for field in fields]
        values = model.ValueInfo(*(v[:-1] for v in said))
        after = model.ValueInfo(*(v[-1:] for v in said))
        self.samples = make_samples(code, values, after, {k: v for k, v in x.items() if k not in fields})
        spaces = collections.namedtuple("Spaces", ["observation", "action"])
        shapes = [types.SimpleNamespace(shape=(n,)) for n in (given.OBS, given.ACTIONS)]
        self.agent = agent_class(ModelCls=model_class, model_kwargs=MODEL)
        self.agent.initialize(spaces(*shapes))
        weights = {k.split(":")[1]: torch.from_numpy(v) for k, v in self.data.items() if k.startswith(f"{name}:")}
        missing, unexpected = self.agent.model.load_state_dict(weights, strict=False)
        assert not unexpected, unexpected
        assert all(key.startswith("obs_rms") for key in missing), missing
        self.agent.update_obs_rms(x["observation_before"])
        self.agent.train_mode(1)

    def algorithm(self, epochs: int = 1, history: bool = True):
        """The released algorithm, with the history in its windows."""
        made = getattr(self.code[f"{self.name}.{self.name}"], {"tqpo": "tqpo", "qcpo": "QCPO"}[self.name])(
            **SETTINGS, epochs=epochs
        )
        spec = self.code["samplers.collections"].BatchSpec(given.STEPS, 1)
        made.initialize(agent=self.agent, n_itr=416, batch_spec=spec, mid_batch_reset=True)
        made.update_counter = 0
        if history:
            made.current_ep_costs.extend(torch.from_numpy(given.past_episode_costs()))
        if history and self.name == "tqpo":
            made.current_step_costs.extend(torch.from_numpy(given.past_cost_returns()))
        return made

    def returns(self) -> Outputs:
        """Advantages, returns, and what QCPO makes of its quantiles."""
        made = self.algorithm()
        out = made.process_returns(1, self.samples)
        names = {0: "reward_return", 1: "reward_advantage", 2: "cost_return"}
        found = {label: flat(out[i]) for i, label in names.items()} | {"episode_quantile": np.asarray(out[-1]) * 10}
        if self.name == "qcpo":
            level = made.target_outage_ind - made.weibull_tail_ind
            found |= {"quantile_advantage": flat(out[3][:, :, level]), "quantile_target": flat(out[4])}
        return found

    def update(self, epochs: int) -> Outputs:
        """One iteration: losses, gradients, weights, λ, q, the normaliser."""
        made = self.algorithm(epochs)
        info = made.optimize_agent(1, self.samples)
        model = self.agent.model
        found = {"multiplier": np.asarray(made.cost_penalty)}
        found |= {f"weight:{n}": p.detach().numpy().copy() for n, p in model.named_parameters()}
        if epochs > 1:
            return found
        losses = {"value_loss": info.RvalueLoss, "cost_value_loss": info.CvalueLoss, "loss": info.loss}
        losses |= {"constraint_loss": info.piCLoss}  # QCPO's piRLoss is overwritten in place by the sum
        if self.name == "tqpo":
            found |= {"q_step": np.asarray(made.q_quantile_step), "tilt": np.array([made.tilt_pos, made.tilt_neg])}
            losses |= {"policy_loss": info.piRLoss}
        else:
            losses |= {"quantile_loss": info.CquantileLoss, "tail_loss": info.CweibullLoss}
        found |= {name: np.asarray(values[0]) for name, values in losses.items()}
        found |= {f"gradient:{n}": p.grad.numpy().copy() for n, p in model.named_parameters()}
        rms = model.obs_rms
        return found | {"normaliser_mean": rms.mean.numpy().copy(), "normaliser_var": rms.var.numpy().copy()}

    def multiplier(self) -> Outputs:
        """λ over made-up quantiles: `optimize_agent` itself, told each quantile instead of computing it; no training."""
        made = self.algorithm()
        real = list(made.process_returns(0, self.samples))
        found: dict[str, list] = {"multiplier": [], "tilt": []}
        for quantile in given.made_up_quantiles():
            made.process_returns = lambda *_, q=quantile: (*real[:-1], q / 10)
            made.optimize_agent(0, self.samples)
            found["multiplier"].append(made.cost_penalty)
            if self.name == "tqpo":
                found["tilt"].append((made.tilt_pos, made.tilt_neg))
        return {f"steps:{name}": np.array(values) for name, values in found.items() if values}


def flat(x: torch.Tensor) -> np.ndarray:
    """[10, 12, …] segments as [120, …] steps in time."""
    return x.detach().transpose(0, 1).reshape(given.STEPS, *x.shape[2:]).numpy().copy()


def outputs(name: str, code: dict[str, types.ModuleType]) -> Outputs:
    """Each part on fresh objects, so that none sees what another did."""
    found = Released(name, code).returns() | Released(name, code).multiplier() | Released(name, code).update(1)
    found |= {f"eight_epochs:{key}": value for key, value in Released(name, code).update(8).items()}
    if name == "tqpo":
        made = Released(name, code).algorithm()
        cost_return = torch.from_numpy(found["cost_return"])
        found["indicator"] = made.indicator(float(found["q_step"]), cost_return).numpy()
    return {f"{name}>{key}": value for key, value in found.items()}


def commit(path: pathlib.Path) -> str:
    return subprocess.run(
        ["git", "-C", path, "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m reference.released.theirs", description=__doc__)
    for name in ("tqpo", "qcpo", "rlpyt"):
        parser.add_argument(name, type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(given.FIXTURE))
    asked = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    code = import_released(asked.tqpo, asked.qcpo, asked.rlpyt)
    found = {key: value for name in ("tqpo", "qcpo") for key, value in outputs(name, code).items()}
    sources = {
        "CharlieLeeeee/TQPO": commit(asked.tqpo),
        "wyjung0625/QCPO": commit(asked.qcpo),
        "astooke/rlpyt": commit(asked.rlpyt),
    }
    provenance = {"commits": sources, "torch": torch.__version__, "numpy": np.__version__, "settings": SETTINGS}
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {"provenance": json.dumps(provenance)} | given.inputs() | found
    np.savez_compressed(asked.out, **arrays)
    print(f"{asked.out}: {len(found)} outputs of the released code")


if __name__ == "__main__":
    main()
