"""Where a trained model is written: a folder of its own, replaced as a whole or not at all."""

import contextlib
import os
import shutil
from pathlib import Path

from kvferry.models.residual.artifact import MANIFEST_FILE, WEIGHTS_FILE, Artifact, ArtifactError


class FolderError(Exception):
    """The folder is not for a model to replace, or cannot be written; one line."""


def check_folder(folder: Path) -> None:
    """Raises FolderError unless the folder is new, empty, or holds a model and nothing else."""
    try:
        if not folder.exists():
            nearest = next(parent for parent in folder.absolute().parents if parent.exists())
            if not nearest.is_dir() or not os.access(nearest, os.W_OK):
                raise FolderError(f"cannot write {folder}: {nearest} is no folder that may be written to")
            return
        if not folder.is_dir():
            raise FolderError(f"cannot write {folder}: it is a file, and a model is a folder")
        names = {path.name for path in folder.iterdir()}
        if other := sorted(names - {MANIFEST_FILE, WEIGHTS_FILE}):
            raise FolderError(f"{folder} holds other files ({other[0]}): name a new or an empty folder")
        if names:
            Artifact.load(folder)
    except ArtifactError as error:
        raise FolderError(f"will not replace what is no model of this kvferry: {error}") from None
    except OSError as error:
        raise FolderError(f"cannot write {folder}: {error.strerror}") from None


def write_model(artifact: Artifact, folder: Path) -> None:
    """Write it beside the folder and put it in its place. Raises FolderError."""
    check_folder(folder)
    place = folder.expanduser().resolve()
    fresh, old = (place.with_name(f".{place.name}.{os.getpid()}.{word}") for word in ("new", "old"))
    try:
        artifact.save(fresh)
        if place.exists():
            place.rename(old)
        fresh.rename(place)
    except OSError as error:
        if old.exists() and not place.exists():
            old.rename(place)
        raise FolderError(f"cannot write {folder}: {error.strerror}") from None
    finally:
        for left in (fresh, old):
            with contextlib.suppress(FileNotFoundError):  # it is where it belongs
                shutil.rmtree(left)
