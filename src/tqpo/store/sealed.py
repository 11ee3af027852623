"""JSON files, plain or sealed with their own SHA-256."""

import json
import os
import pathlib
from typing import Any

import jax
import numpy as np

from tqpo.errors import StoreError
from tqpo.store import disk
from tqpo.store.disk import DamagedError, digest


def encode(obj: Any) -> bytes:
    """JSON for people and programs; NaN and infinities as Python's `json` reads and writes them."""
    try:
        return (json.dumps(obj, indent=1, ensure_ascii=False, default=_plain) + "\n").encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise StoreError(f"cannot be stored as JSON: {error}") from error


def _plain(obj: Any) -> Any:
    if isinstance(obj, np.generic | np.ndarray | jax.Array):
        return np.asarray(obj).tolist()
    if isinstance(obj, os.PathLike):
        return os.fspath(obj)
    raise TypeError(f"{type(obj).__name__} {obj!r} is not a number, string, list or dict")


def decode(data: bytes, path: pathlib.Path) -> dict[str, Any]:
    try:
        obj = json.loads(data)
    except (ValueError, RecursionError) as error:  # ValueError: no JSON, no UTF-8, absurdly long numbers
        raise DamagedError(f"{path} is not readable as JSON: {error}") from None
    if not isinstance(obj, dict):
        raise DamagedError(f"{path} holds a JSON {type(obj).__name__} where a dict belongs")
    return obj


def is_encoded(path: pathlib.Path) -> bool:
    """Whether a file is JSON exactly as `encode` writes it."""
    try:
        data = disk.read_bytes(path)
        return encode(decode(data, path)) == data
    except DamagedError:
        return False


def seal(body: dict[str, Any]) -> bytes:
    """JSON that carries its own checksum."""
    body = json.loads(encode(body))  # tuples → lists, so that it reads back as the same bytes
    return encode({**body, "sha256": digest(encode(body))})


def unseal(data: bytes, path: pathlib.Path, format_name: str) -> dict[str, Any]:
    """The body of sealed JSON, every byte of it verified."""
    body = decode(data, path)
    body.pop("sha256", None)
    if seal(body) != data:
        raise DamagedError(f"{path} is damaged: it does not match its own SHA-256")
    if body.get("format") != format_name:
        raise DamagedError(f"{path} is of format {body.get('format')!r}; this version reads {format_name!r}")
    return body
