"""Agreement of the JAX tasks with their MuJoCo twins.

    python -m reference.parity --out results/parity.json --doc docs/parity.md

Three questions, from near to far: does one physics step give the same velocities (`one_step`); does a step of the task
give the same observation, reward and cost when the state is copied over each time (`copied`); do whole episodes, each
on its own state, have the same returns and costs (`closed_loop`).
"""
