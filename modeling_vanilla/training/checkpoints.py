"""Checkpoints that are complete or absent: written aside, described by a manifest, synced and renamed."""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

PREFIX = "checkpoint-"
ASIDE = "unfinished-checkpoint"  # where a checkpoint is written until it is whole
MANIFEST = "manifest.json"  # its last file: the size and the SHA-256 of all others
STATE = "trainer_state.json"
BETWEEN = "between"  # stands in a checkpoint that an interruption wrote where none was due


def step_of(checkpoint: Path) -> int:
    """The update that a `checkpoint-N` was written after."""
    return int(checkpoint.name.removeprefix(PREFIX))


def checkpoints(folder: Path) -> list[Path]:
    """All folders that are called checkpoints, sound or not, the newest last."""
    found = [path for path in folder.glob(f"{PREFIX}*") if path.name.removeprefix(PREFIX).isdecimal() and path.is_dir()]
    return sorted(found, key=step_of)


def is_due(checkpoint: Path) -> bool:
    """Whether an undisturbed run would have written it: those alone are counted and averaged."""
    return not (checkpoint / BETWEEN).is_file()


def seal(folder: Path) -> None:
    """Writes the manifest of a folder's files, and sees to it that all are on the disk."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    manifest = {str(file.relative_to(folder)): _describe(file) for file in files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    for path in (*files, folder / MANIFEST, *(path for path in folder.rglob("*") if path.is_dir()), folder):
        _sync(path)


def publish(aside: Path, checkpoint: Path) -> None:
    """Gives a sealed folder its name; what had it before, a broken one, goes."""
    if checkpoint.exists():
        shutil.rmtree(checkpoint)
    aside.rename(checkpoint)
    _sync(checkpoint.parent)


def fault_of(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint, or None where every file is what the manifest says."""
    try:
        manifest = json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8"))
        for name, (size, digest) in manifest.items():
            file = checkpoint / name
            if not file.is_file():
                return f"{name} is missing"
            if file.stat().st_size != size:
                return f"{name} has {file.stat().st_size:,} bytes in the place of {size:,}"
            if _describe(file)[1] != digest:
                return f"{name} has changed since it was written"
        return None if STATE in manifest else f"{STATE} is missing"
    except FileNotFoundError:
        return f"it has no {MANIFEST}, so it was not written to its end"
    except OSError as error:
        return f"it can't be read: {error.strerror}"
    except (ValueError, TypeError, AttributeError):
        return f"{MANIFEST} can't be read"


def sound_checkpoints(folder: Path) -> Iterator[Path]:
    """The checkpoints without a fault, the newest first, each read when asked for; others are named in the log."""
    for checkpoint in reversed(checkpoints(folder)):
        if fault := fault_of(checkpoint):
            logger.warning("%s: left out: %s", checkpoint, fault)
        else:
            yield checkpoint


def last_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint without a fault; newer ones that have one are named in the log."""
    return next(sound_checkpoints(folder), None)


def remove(paths: Iterable[Path]) -> None:
    """Removes checkpoints: first the manifest, so that a half-removed one is known for what it is."""
    for path in paths:
        (path / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(path, ignore_errors=True)


def state_of(checkpoint: Path) -> dict[str, Any]:
    """The trainer's state in a checkpoint."""
    return json.loads((checkpoint / STATE).read_text(encoding="utf-8"))


def _describe(file: Path) -> tuple[int, str]:
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return file.stat().st_size, digest


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


__all__ = [
    "ASIDE",
    "BETWEEN",
    "STATE",
    "checkpoints",
    "fault_of",
    "is_due",
    "last_checkpoint",
    "publish",
    "remove",
    "seal",
    "sound_checkpoints",
    "state_of",
    "step_of",
]
