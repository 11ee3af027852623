"""Learning curves of the runs in results/own-environment: `python figure.py ../results/own-environment FILE.png`."""

import json
import pathlib
import sys

from tqpo.output.figures import INK, finish, new_figure, style

TITLES = {
    "pendulum": "Pendulum-v1: velocity",
    "cartpole": "CartPole-v1: position",
    "cheetah": "HalfCheetah-v5: velocity",
    "courier": "Courier: damage and energy",
}


def main() -> None:
    folder, out = map(pathlib.Path, sys.argv[1:])
    found = {name: json.loads((folder / f"{name}.json").read_text()) for name in TITLES}
    with style():
        figure, axes = new_figure(2, len(found), (3.4 * len(found), 5.2))
        for column, (name, run) in enumerate(found.items()):
            curves, asked = run["curves"], run["evaluations"][0]["constraints"]
            seen = [i for i, x in enumerate(curves["return_mean"][0]) if x]  # 0 before the first episode has ended
            curves = {key: [[line[i] for i in seen] for line in lines] for key, lines in curves.items()}
            steps = curves["step"][0]
            top, bottom = axes[column], axes[len(found) + column]
            top.plot(steps, curves["return_mean"][0], color="#0072b2")
            top.set_title(TITLES[name])
            safety = curves.get("safety_prob", curves.get("safety_prob.0", []))[0]
            label = f"Pr[{asked[0]['name']} ≤ {asked[0]['cost_limit']:g}]"
            bottom.plot(steps, safety, color="#d55e00", label=label)
            bottom.axhline(asked[0]["safety"], color="#d55e00", linestyle="--", linewidth=1)
            if len(asked) > 1:
                mean = [x / asked[1]["cost_limit"] for x in curves["episode_cost_mean.1"][0]]
                bottom.plot(steps, mean, color="#009e73", label=f"mean {asked[1]['name']} / {asked[1]['cost_limit']:g}")
                bottom.axhline(1.0, color="#009e73", linestyle="--", linewidth=1)
            bottom.set_ylim(0, None)
            bottom.legend(fontsize=8, labelcolor=INK)
            for ax in (top, bottom):
                finish(ax)
        axes[0].set_ylabel("return")
        axes[len(found)].set_ylabel("safety")
        out.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(out, dpi=110)
    print(out)


if __name__ == "__main__":
    main()
