"""Where a result comes from: commit, versions, hardware."""

import importlib.metadata
import os
import pathlib
import platform
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import jax

from tqpo import __version__

PACKAGES = ("jax", "jaxlib", "equinox", "optax", "numpy", "scipy", "mujoco", "gymnasium")


def git(*arguments: str) -> str | None:
    """Output of a git command in the source tree, None outside one."""
    root = pathlib.Path(__file__).parent
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def commit() -> str | None:
    """The commit of the source, marked `+` where the tree differs from it. `TQPO_COMMIT` speaks for a copy of the source."""
    if named := os.environ.get("TQPO_COMMIT"):
        return named
    found = git("rev-parse", "HEAD")
    if found is None:
        return None
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".")
    return found + ("+" if changed else "")


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def processor() -> str:
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def command() -> str:
    """The command line, without folders that exist on one machine alone."""
    words = [word if not os.path.isabs(word) else pathlib.Path(word).name for word in sys.argv[1:]]
    return " ".join(["tqpo", *words])


def provenance() -> dict[str, Any]:
    """Everything a reader needs to know where and with what a file was made."""
    devices = jax.devices()
    return {
        "commit": commit(),
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command(),
        "versions": {
            "python": platform.python_version(),
            "tqpo": __version__,
            **{p: version(p) for p in PACKAGES if version(p)},
        },
        "hardware": {
            "platform": devices[0].platform,
            "device": devices[0].device_kind,
            "devices": len(devices),
            "processor": processor(),
            "cores": os.cpu_count(),
        },
    }
