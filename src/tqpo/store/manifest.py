"""`manifest.json`: what run this is, where it ran, and the checksums of its files.

It covers `config.json` from the start and everything else once the run is finished. A file that is about to change
is taken out first, so that a crash never leaves a wrong checksum.
"""

import pathlib
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from tqpo import provenance
from tqpo.store import disk, sealed
from tqpo.store.disk import DamagedError

FORMAT = "tqpo-run-1"
NAME, CONFIG = "manifest.json", "config.json"
FIELDS = {"run": str, "status": str, "sessions": list, "incidents": list, "files": dict}


class Manifest:
    """The manifest on disk; every change is written before it counts."""

    def __init__(self, path: pathlib.Path, body: dict[str, Any]):
        self.path = path
        self._body: dict[str, Any] = body

    @classmethod
    def new(cls, folder: pathlib.Path, config: bytes) -> "Manifest":
        """For a new run; not on disk before its first change."""
        body: dict[str, Any] = {"format": FORMAT, "run": uuid.uuid4().hex, "status": "running"}
        body |= {"sessions": [], "incidents": [], "files": {CONFIG: disk.fingerprint(config)}}
        return cls(folder / NAME, body)

    @classmethod
    def read(cls, folder: pathlib.Path) -> "Manifest":
        path = folder / NAME
        body = sealed.unseal(disk.read_bytes(path), path, FORMAT)
        if any(not isinstance(body.get(name), kind) for name, kind in FIELDS.items()) or CONFIG not in body["files"]:
            raise DamagedError(f"{path} lacks what a manifest needs")
        for name in body["files"]:
            disk.inside(folder, name)
        return cls(path, body)

    @property
    def body(self) -> dict[str, Any]:
        return dict(self._body)

    @property
    def run(self) -> str:
        return self._body["run"]

    @property
    def finished(self) -> bool:
        return self._body["status"] == "finished"

    @property
    def files(self) -> dict[str, Any]:
        """Name → size and SHA-256 of what is covered."""
        return self._body["files"]

    def add_session(self) -> None:
        """Notes commit, versions and hardware of the process that starts or continues the run."""
        self._update(sessions=[*self._body["sessions"], provenance.provenance()])

    def add_incident(self, text: str, write: bool) -> None:
        time = datetime.now(UTC).isoformat(timespec="seconds")
        self._body = self._body | {"incidents": [*self._body["incidents"], {"time": time, "text": text}]}
        if write:
            self._update()

    def config(self) -> bytes:
        """`config.json`; where a change of it was cut short, as it was or as it was to be."""
        path = self.path.parent / CONFIG
        data = disk.read_bytes(path)
        coming = self._body.get("coming")
        return data if coming == disk.fingerprint(data) else disk.check_fingerprint(path, self.files[CONFIG])

    def amend(self, config: bytes, text: str) -> None:
        """Replaces `config.json`, and says why. The manifest knows of the new one before it is there."""
        time = datetime.now(UTC).isoformat(timespec="seconds")
        self._update(coming=disk.fingerprint(config))
        disk.write_bytes(self.path.parent / CONFIG, config)
        self._update(changes=[*self._body.get("changes", []), {"time": time, "text": text}])
        self.settle()

    def settle(self) -> None:
        """Ends a change of `config.json` that was cut short."""
        if coming := self._body.get("coming"):
            data = disk.read_bytes(self.path.parent / CONFIG)
            files = self.files | ({CONFIG: coming} if coming == disk.fingerprint(data) else {})
            self._update(files=files, coming=None)

    def uncover(self, *names: str) -> None:
        """Forgets files, or folders of files, that are about to change."""
        top = {name: name.split("/", maxsplit=1)[0] for name in self.files}
        valid = {name: x for name, x in self.files.items() if name not in names and top[name] not in names}
        if self.finished or valid.keys() != self.files.keys():
            self._update(status="running", files=valid)

    def finish(self, files: Mapping[str, Any]) -> None:
        """Covers more files. Those already covered keep their checksums, so that damage stays visible."""
        self._update(status="finished", files={**files, **self.files})

    def _update(self, **changes: Any) -> None:
        body = self._body | changes
        disk.write_bytes(self.path, sealed.seal(body))
        self._body = body
