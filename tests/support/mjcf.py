"""The point robot among spheres as MuJoCo sees it: a model written for these tests alone."""

import mujoco


def robot_among_spheres(count: int) -> mujoco.MjModel:
    """Spheres are mocap bodies, so that a test can put them anywhere. The solver is run to convergence."""
    spheres = "".join(
        f'<body name="s{i}" mocap="true" pos="9 {i} .1"><geom name="s{i}" type="sphere" size=".1"/></body>'
        for i in range(count)
    )
    return mujoco.MjModel.from_xml_string(f"""
    <mujoco>
      <option timestep="0.002" tolerance="1e-15" iterations="200"/>
      <default>
        <geom condim="6" density="1"/>
        <motor ctrlrange="-1 1" ctrllimited="true" forcerange="-.05 .05" forcelimited="true"/>
        <velocity ctrlrange="-1 1" ctrllimited="true" forcerange="-.05 .05" forcelimited="true"/>
      </default>
      <worldbody>
        <geom name="floor" size="5 5 .1" type="plane"/>
        <body name="robot" pos="0 0 .1">
          <joint type="slide" axis="1 0 0" name="x" damping="0.01"/>
          <joint type="slide" axis="0 1 0" name="y" damping="0.01"/>
          <joint type="hinge" axis="0 0 1" name="z" damping="0.005"/>
          <geom name="robot" type="sphere" size=".1" friction="1 0.01 0.01"/>
          <geom name="arrow" pos="0.1 0 0" size="0.05 0.05 0.05" type="box"/>
          <site name="robot"/>
        </body>
        {spheres}
      </worldbody>
      <actuator>
        <motor gear="0.3 0 0 0 0 0" site="robot" name="x"/>
        <velocity gear="0.3" joint="z" name="z" kv="1"/>
      </actuator>
    </mujoco>""")
