"""The command line: parsing and calling. A command is a dataclass that is called; its name, as in
`check-env` for CheckEnv, is what is typed."""

import re
import sys
import warnings
from typing import Any

import tyro
from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes

from tqpo import __version__
from tqpo.cli.certify import Certify
from tqpo.cli.check_env import CheckEnv
from tqpo.cli.export import Export
from tqpo.cli.info import Algorithms, Bench, Tasks
from tqpo.cli.reproduce import Reproduce
from tqpo.cli.runs import Compare, Evaluate, Plot, Report, Watch
from tqpo.cli.sweep import Sweep
from tqpo.cli.train import Train
from tqpo.errors import Interrupted, TqpoError

usual_warning = warnings.formatwarning
COMMANDS = (
    Train,
    Sweep,
    Evaluate,
    Certify,
    Plot,
    Compare,
    Watch,
    Report,
    Export,
    CheckEnv,
    Tasks,
    Algorithms,
    Bench,
    Reproduce,
)


def one_line(message: Warning | str, category: type[Warning], *where: Any) -> str:
    """A warning of ours as its text alone; any other as Python shows it."""
    return f"tqpo: {message}\n" if category.__module__.startswith("tqpo.") else usual_warning(message, category, *where)


def main() -> None:
    """Runs a command. Errors are one line and exit status 2; an interrupt is 128 plus the signal."""
    if sys.argv[1:] == ["--version"]:
        print(f"tqpo {__version__}")
        return
    warnings.formatwarning = one_line
    commands = {re.sub(r"(?<!^)(?=[A-Z])", "-", cls.__name__).lower(): cls for cls in COMMANDS}
    try:
        about = f"Safe RL with a stated probability. Version {__version__}."
        usual = (OmitArgPrefixes, FlagCreatePairsOff)
        tyro.extras.subcommand_cli_from_dict(commands, prog="tqpo", description=about, config=usual)()
    except Interrupted as error:
        print(error, file=sys.stderr)
        sys.exit(error.code)
    except TqpoError as error:
        print(f"tqpo: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
