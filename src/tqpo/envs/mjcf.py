"""The world of a task in MuJoCo's modelling language: the point robot and what is around it."""

from tqpo.envs.config import TaskConfig
from tqpo.physics.contact import Softness

COLOURS = {  # rgba, as in Safety Gym
    "robot": "0.85 0.2 0.2 1",
    "goal": "0.2 0.75 0.35 0.5",
    "goal_button": "0.2 0.75 0.35 1",
    "hazard": "0.25 0.4 0.95 0.35",
    "button": "1 0.6 0.15 1",
    "gremlin": "0.55 0.25 0.8 1",
    "vase": "0.2 0.8 0.8 1",
    "push_box": "0.95 0.85 0.2 1",
    "pillar": "0.5 0.5 0.9 1",
    "wall": "0.9 0.3 0.3 0.2",
}

# Robot and gremlins start at distance 0 ± rounding from the floor; whether it acts must not depend on that. Other boxes
# lie on it, and the robot alone does not touch it: its sphere is at a distance of exactly 0.
CLEARANCE = 1e-6  # m
PILLAR_HALF_HEIGHT = 0.5  # m


def model_xml(config: TaskConfig) -> str:
    """Safety Gym's point robot and world. Places are written later: `MujocoTask` moves bodies without recompiling."""
    robot, box = config.robot, config.box
    limit, radius = robot.force_limit, robot.sphere_radius
    side = 20.0 if config.goal == "run" else 2.0 * config.extents  # m, of the floor
    bodies = [*_marks(config, side), *_solids(config), *_movable(config)]
    welds = [f'<weld body1="gremlin{i}_mocap" body2="gremlin{i}" {_soft(box.weld)}/>' for i in range(config.gremlins)]
    view = (
        f'<camera name="view" mode="track" pos="0 {-1.64 * config.extents} {1.84 * config.extents}" '
        'xyaxes="1 0 0 0 0.75 0.66"/>'
    )
    return f"""
<mujoco model="tqpo">
  <compiler autolimits="true"/>
  <option timestep="{robot.timestep}" gravity="0 0 {-box.gravity}"><flag multiccd="disable"/></option>
  <statistic center="0 0 0" extent="{side}"/>
  <visual>
    <map shadowclip="1" shadowscale="1"/>
    <global offwidth="1920" offheight="1080"/>
    <headlight ambient="0.35 0.35 0.35" diffuse="0.35 0.35 0.35" specular="0 0 0"/>
    <quality shadowsize="4096"/>
  </visual>
  <default>
    <geom condim="6" density="{robot.density}" {_friction(robot.other_friction)} {_soft(robot.softness)}/>
    <motor ctrlrange="-1 1" forcerange="{-limit} {limit}"/>
    <velocity ctrlrange="-1 1" forcerange="{-limit} {limit}"/>
  </default>
  <asset>
    <texture name="sky" type="skybox" builtin="gradient" rgb1="0.95 0.97 1" rgb2="0.75 0.82 0.9"
             width="64" height="64"/>
    <texture name="floor" type="2d" builtin="checker" rgb1="0.93 0.93 0.95" rgb2="0.87 0.88 0.91"
             width="256" height="256"/>
    <material name="floor" texture="floor" texrepeat="2 2" texuniform="true"/>
  </asset>
  <worldbody>
    <light pos="{-0.5 * side} {-0.5 * side} {side}" dir="1 1 -2" directional="true" diffuse="0.5 0.5 0.5"/>
    {"" if config.goal == "run" else view}
    <geom name="floor" type="plane" pos="0 0 {0.0 if config.loose else -CLEARANCE}" size="{side} {side} 0.1" material="floor"/>
    <body name="robot" pos="0 0 {robot.z_height}">
      <joint name="x" type="slide" axis="1 0 0" damping="{robot.damping_linear}"/>
      <joint name="y" type="slide" axis="0 1 0" damping="{robot.damping_linear}"/>
      <joint name="z" type="hinge" axis="0 0 1" damping="{robot.damping_angular}"/>
      <geom name="robot" type="sphere" size="{radius}" {_friction(robot.sphere_friction)} rgba="{COLOURS["robot"]}"/>
      <geom name="pointarrow" type="box" pos="{robot.box_offset} 0 0" rgba="{COLOURS["robot"]}"
            size="{robot.box_half} {robot.box_half} {robot.box_half}"/>
      <site name="robot"/>
      {view if config.goal == "run" else ""}
    </body>
    {"".join(bodies)}
  </worldbody>
  <equality>{"".join(welds)}</equality>
  <sensor>
    <accelerometer name="accelerometer" site="robot"/>
    <gyro name="gyro" site="robot"/>
    <magnetometer name="magnetometer" site="robot"/>
    <velocimeter name="velocimeter" site="robot"/>
  </sensor>
  <actuator>
    <motor name="x" site="robot" gear="{robot.gear} 0 0 0 0 0"/>
    <velocity name="z" joint="z" gear="{robot.gear}" kv="1"/>
  </actuator>
</mujoco>"""


def _marks(config: TaskConfig, side: float) -> list[str]:
    """What is seen and not touched: discs on the floor, lines of walls."""
    untouched = 'contype="0" conaffinity="0"'

    def disc(name: str, size: float, colour: str) -> str:
        return (
            f'<body name="{name}"><geom {untouched} type="cylinder" size="{size} 0.01" '
            f'rgba="{COLOURS[colour]}"/></body>'
        )

    discs = [disc(f"hazard{i}", config.hazard_radius, "hazard") for i in range(config.hazards)]
    if config.goal in {"area", "push"}:
        discs.append(disc("goal", config.goal_radius, "goal"))
    if config.goal == "circle":
        discs.append(disc("circle", config.circle_radius, "goal"))
    walls = [
        f'<body><geom {untouched} type="capsule" size="0.03" fromto="{x0} {y0} 0.03 {x1} {y1} 0.03" '
        f'rgba="{COLOURS["wall"]}"/></body>'
        for x0, y0, x1, y1 in config.wall_lines(0.0, side)
    ]
    return discs + walls


def _solids(config: TaskConfig) -> list[str]:
    """What stands fast: buttons and pillars."""
    buttons = [
        f'<body name="button{i}"><geom name="button{i}" type="sphere" size="{config.button_radius}" '
        f'rgba="{COLOURS["button"]}"/></body>'
        for i in range(config.buttons)
    ]
    pillars = [
        f'<body name="pillar{i}"><geom name="pillar{i}" type="cylinder" size="{config.pillar_radius} '
        f'{PILLAR_HALF_HEIGHT}" rgba="{COLOURS["pillar"]}"/></body>'
        for i in range(config.pillars)
    ]
    return buttons + pillars


def _movable(config: TaskConfig) -> list[str]:
    """Gremlins, each welded to a body that is moved along its circle, and boxes that lie on the floor."""
    box = config.box
    gremlins = [
        f'<body name="gremlin{i}" pos="0 0 {box.half_size}"><freejoint/><geom name="gremlin{i}" type="box" '
        f'size="{box.half_size} {box.half_size} {box.half_size}" density="{box.density}" '
        f'{_friction(box.friction)} {_soft(box.contact)} rgba="{COLOURS["gremlin"]}"/></body>'
        f'<body name="gremlin{i}_mocap" mocap="true"><geom type="box" size="0.02 0.02 0.02" contype="0" '
        f'conaffinity="0" rgba="0 0 0 0"/></body>'
        for i in range(config.gremlins)
    ]
    vases = [_loose(config, f"vase{i}", "vase") for i in range(config.vases)]
    return gremlins + vases + [_loose(config, "push_box", "push_box")] * (config.goal == "push")


def _loose(config: TaskConfig, name: str, colour: str) -> str:
    model = config.loose_model
    parts = "".join(
        f'<geom name="{name if k == 0 else f"{name}_post{k}"}" type="box" pos="{" ".join(map(str, part.offset))}" '
        f'size="{" ".join(map(str, part.half))}" density="{model.density}" {_friction(model.friction)} '
        f'{_soft(model.contact)} rgba="{COLOURS[colour]}"/>'
        for k, part in enumerate(model.parts)
    )
    return f'<body name="{name}" pos="0 0 {model.half_size}"><freejoint/>{parts}</body>'


def _soft(softness: Softness) -> str:
    limits = f"{softness.impedance_min} {softness.impedance_max} {softness.width} 0.5 2"
    return f'solref="{softness.timeconst} {softness.dampratio}" solimp="{limits}"'


def _friction(values: tuple[float, ...]) -> str:
    return f'friction="{" ".join(map(str, values))}"'
