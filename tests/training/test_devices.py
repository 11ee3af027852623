"""Several devices of one machine: each trains its share of the runs, and nothing else changes."""

import json
import pathlib
import subprocess
import sys

import jobs
import pytest


@pytest.mark.slow
def test_two_devices_give_what_one_gives():
    script = pathlib.Path(__file__).parents[1] / "support" / "two_devices.py"
    environment = jobs.environment() | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["devices"] == 2
    assert found["places"] == [2, 1]
    assert found["policies"] == 2
    assert found["from_one"] < 1e-5  # up to the order of sums, which the compiler may change
    assert found["three"] == 1  # runs that cannot be shared out evenly stay together
