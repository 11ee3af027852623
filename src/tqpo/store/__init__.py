"""Runs on disk: whole after any crash, verified on every load. `run` describes the folder."""

from tqpo.store.disk import DamagedError, StoreWarning
from tqpo.store.lock import LockedError
from tqpo.store.metrics import rows_of_chunk
from tqpo.store.pytree import named_leaves, pack
from tqpo.store.run import Run, create, is_shipped, open_run, refuse_used, shipped

__all__ = [
    "DamagedError",
    "LockedError",
    "Run",
    "StoreWarning",
    "create",
    "is_shipped",
    "named_leaves",
    "open_run",
    "pack",
    "refuse_used",
    "rows_of_chunk",
    "shipped",
]
