#!/bin/sh
# Trains everything that docs/own-environment.md shows, into runs/, and writes results/own-environment/ and its figure.
# About twenty minutes on two cores. Needs pip install "gymnasium[mujoco]" for the cheetah.
set -e
cd "$(dirname "$0")"

tqpo train gym:Pendulum-v1 --cost-fn costs:pendulum_velocity --cost-limit 2 --steps 4e5 --episodes 400 --snapshots 4 --out runs/pendulum \
    --set discount=0.95 gae_lambda=0.95 learning_rate=5e-4 cost_scale=2
tqpo train gym:CartPole-v1 --cost-fn costs:cart_position --cost-limit 25 --steps 2e5 --episodes 400 --snapshots 4 --out runs/cartpole \
    --set cost_scale=10
tqpo train gym:HalfCheetah-v5 --cost-fn costs:cheetah_velocity --cost-limit 100 --steps 5e5 --episodes 100 --snapshots 3 --out runs/cheetah \
    --set cost_scale=50 indicator_scale=0.5

courier="--steps 3e6 --set cost_scale=2 initial_multiplier=0.5 gain=0.05 max_step=10 delta=1 max_multiplier=20 indicator_scale=1 learning_rate=1e-3"
tqpo train courier:Courier --constraint damage:limit=10,safety=0.9 --constraint energy:mean=10 --out runs/courier $courier
tqpo train courier:Courier --constraint damage:limit=10,safety=0.9 --out runs/courier-damage-only $courier
tqpo train courier:Courier --constraint energy:mean=10 --out runs/courier-energy-only $courier

for name in pendulum cartpole cheetah courier courier-damage-only courier-energy-only; do
    python -m tqpo.output.digest "runs/$name" --out "../results/own-environment/$name.json"
done
python figure.py ../results/own-environment ../docs/images/own-environment.png
