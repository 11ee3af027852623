"""Errors that name the offending value and say what would work."""

import difflib
import signal
from collections.abc import Iterable


class TqpoError(Exception):
    """Base of every error this library raises on purpose."""


class ConfigError(TqpoError, ValueError):
    """A setting that cannot work: names the setting, its value and what is allowed."""


class UnknownNameError(TqpoError, KeyError):
    """A name that is not registered: names what there is."""

    def __str__(self) -> str:  # KeyError would print the repr of the message
        return str(self.args[0]) if self.args else ""


def did_you_mean(names: Iterable[str], known: Iterable[str]) -> str:
    """A hint at the known names that are closest to unknown ones; empty where none is close."""
    cased = {name.lower(): name for name in known}
    close = [cased[match] for name in names for match in difflib.get_close_matches(name.lower(), cased, 1, 0.5)]
    return f" (did you mean {', '.join(close)}?)" if close else ""


class LayoutError(ConfigError):
    """A layout that is malformed, outside the arena or overlaps; or a task whose objects cannot be placed."""


class ActionError(TqpoError, ValueError):
    """An action of the wrong shape, not finite, or outside [-1, 1]."""


class StoreError(TqpoError, RuntimeError):
    """A run folder that is missing, damaged or not a run."""


class RenderError(TqpoError, RuntimeError):
    """A picture that cannot be drawn on this machine, for want of OpenGL: says what would work."""


class Interrupted(TqpoError):
    """A signal ended the work after everything was saved; `code` is the exit status that says so."""

    def __init__(self, number: int, message: str):
        self.code = 128 + number
        super().__init__(f"{signal.Signals(number).name}: {message}")


class EnvError(TqpoError, RuntimeError):
    """A user's environment that breaks its contract or fails too often: names the environment, its step and what would work."""
