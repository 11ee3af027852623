"""One picture of each task, for the documentation.

python -m reference.pictures --out docs/images
"""

import argparse
import math
import pathlib
from collections.abc import Iterator

import numpy as np


def frames(task: str, steps: int, seed: int) -> Iterator[tuple[np.ndarray, bool]]:
    """Frames of an episode driven straight at the goal or the box, or around a circle; and whether the step cost."""
    from tqpo.envs.gymnasium import TaskEnv

    env = TaskEnv(task, "mujoco", render_mode="rgb_array")
    env.reset(seed=seed)
    for _ in range(steps):
        state = env.world.get_state()
        target = state.boxes.pos[0, :2] if env.config.goal == "push" else state.goal
        dx, dy = np.asarray(target - state.pose[:2], float)
        if env.config.goal == "circle":
            dx, dy = dy, -dx
        turn = math.remainder(math.atan2(dy, dx) - float(state.pose[2]), 2.0 * math.pi)
        *_, info = env.step([0.02 if abs(turn) < 0.5 else 0.0, max(-1.0, min(1.0, 2.0 * turn))])
        frame = env.render()
        assert frame is not None
        yield frame, info["cost"] > 0


EXAMPLES = {
    "SimpleEnv": (0, 289),
    "DynamicEnv": (3, 201),
    "GremlinEnv": (4, 485),
    "DynamicButtonEnv": (0, 94),
    "SafetyPointGoal0": (0, 60),
    "SafetyPointButton0": (0, 60),
    "SafetyPointButton1": (1, 150),
    "SafetyPointButton2": (0, 150),
    "SafetyPointCircle0": (0, 90),
    "SafetyPointCircle1": (0, 90),
    "SafetyPointCircle2": (1, 90),
    "SafetyPointGoal1": (0, 90),
    "SafetyPointGoal2": (0, 90),
    "SafetyPointPush0": (0, 60),
    "SafetyPointPush1": (0, 120),
    "SafetyPointPush2": (0, 120),
    "SafetyPointRun0": (0, 120),
}  # seed, steps


def main() -> None:
    from PIL import Image

    parser = argparse.ArgumentParser(description="Draws one picture of each task.")
    parser.add_argument(
        "--out", type=pathlib.Path, default=pathlib.Path("docs/images"), help="folder for the PNG files"
    )
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for task, (seed, steps) in EXAMPLES.items():
        *_, (frame, _) = frames(task, steps, seed)
        Image.fromarray(frame).save(out / f"{task}.png", optimize=True)
        print(out / f"{task}.png")


if __name__ == "__main__":
    main()
