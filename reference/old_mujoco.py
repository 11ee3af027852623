"""Our models under the MuJoCo that Safety-Gymnasium uses, from recorded states in contact with a gremlin.

    python -m reference.parity.original runs/original.npz --models runs/models
    .venv-safety-gymnasium/bin/python reference/old_mujoco.py runs/original.npz runs/models

If the velocities after a step are those of the recording, what differs elsewhere is MuJoCo's version and not the model.
"""

import math
import pathlib
import sys

import mujoco
import numpy as np

ROBOT = {"robot", "pointarrow"}


def put(model, data, row):
    """The recorded state into MuJoCo, and the commands."""
    mujoco.mj_resetData(model, data)
    data.time = 0.02 * row["steps"]
    data.qpos[:], data.qvel[:] = (
        np.concatenate([row[name], row["boxes"][:, part].ravel()])
        for name, part in (("pose", slice(0, 7)), ("velocity", slice(7, 13)))
    )
    for k, place in enumerate(row["buttons"]):
        model.body_pos[model.body(f"button{k}").id, :2] = place
        model.body_pos[model.body(f"button{k}").id, 2] = 0.1
    for k, (x, y, yaw) in enumerate(row["gremlins"]):
        model.eq_data[k, 3:10] = x, y, 0.1, math.cos(yaw / 2), 0.0, 0.0, math.sin(yaw / 2)
    data.ctrl[:] = np.clip(row["action"], -1.0, 1.0)


def step(model, data):
    """Ten physics steps; whether the robot then touches a gremlin."""
    for _ in range(10):
        data.mocap_pos[:] = 0.35 * math.sin(data.time), 0.35 * math.cos(data.time), 0.1
        mujoco.mj_step(model, data)
    mujoco.mj_forward(model, data)
    pairs = [{model.geom(contact.geom1).name, model.geom(contact.geom2).name} for contact in data.contact[: data.ncon]]
    return any(pair & ROBOT and any(name.startswith("gremlin") for name in pair) for pair in pairs)


def main():
    recording, folder = sys.argv[1:]
    with np.load(recording) as file:
        for path in sorted(pathlib.Path(folder).glob("*.xml")):
            prefix = f"{path.stem}/steps/"
            rows = {key[len(prefix) :]: file[key] for key in file.files if key.startswith(prefix)}
            column = 1 + list(file[f"{path.stem}/cost_names"]).index("cost_gremlins")
            model = mujoco.MjModel.from_xml_path(str(path))
            data, errors, equal = mujoco.MjData(model), [], []
            for i in np.flatnonzero(rows["touching"][:-1] & (rows["steps"][1:] == rows["steps"][:-1] + 1)):
                put(model, data, {name: values[i] for name, values in rows.items()})
                equal.append(step(model, data) == bool(rows["costs"][i, column]))
                after = np.concatenate([rows["velocity"][i + 1], rows["boxes"][i + 1, :, 7:].ravel()])
                errors.append(np.abs(data.qvel - after).max())
            print(
                f"{path.stem}, MuJoCo {mujoco.__version__}, {len(errors)} steps: velocity median {np.median(errors):.1e}, "
                f"worst {np.max(errors):.1e}; equal cost of gremlins {np.mean(equal):.1%}"
            )


if __name__ == "__main__":
    main()
