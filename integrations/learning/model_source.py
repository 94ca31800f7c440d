"""A model by the folder it lies in, or by its version in a store."""

import asyncio
from pathlib import Path

from kvferry.integrations.redis.connection import STORE_FAILURES, Store, open_store, why
from kvferry.integrations.redis.url import StoreError
from kvferry.integrations.registry.store import Registry, UnknownVersionError
from kvferry.models.residual.artifact import Artifact, ArtifactError


class ModelError(Exception):
    """There is no such model, or it cannot be used; one line. `usage`: the name alone says too little."""

    def __init__(self, message: str, *, usage: bool = False) -> None:
        super().__init__(message)
        self.usage = usage


def load_model(name: str, url: str | None, namespace: str) -> Artifact:
    """`name`: a folder, or a version, or its beginning, in the store at `url`. Raises ModelError."""
    try:
        folder = Path(name).expanduser()
        if folder.exists():
            return Artifact.load(folder)
        if url is None:
            raise ModelError(
                f"no folder {name}; for a version in a store add --redis URL (or set KVFERRY_REDIS)",
                usage=True,
            )
        return asyncio.run(_fetched(name, url, namespace))
    except (ArtifactError, UnknownVersionError) as error:
        raise ModelError(str(error)) from None


async def _fetched(name: str, url: str, namespace: str) -> Artifact:
    try:
        store: Store = await open_store(url, namespace=namespace, timeout_s=5.0)
    except StoreError as error:
        raise ModelError(str(error), usage=True) from None
    try:
        registry = Registry(store)
        return await registry.artifact(await registry.named(name))
    except StoreError as error:
        raise ModelError(str(error)) from None
    except STORE_FAILURES as error:
        raise ModelError(f"store {store.label}: {why(error)}") from None
    finally:
        await store.close()
