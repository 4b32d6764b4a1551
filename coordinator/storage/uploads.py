"""Uploads: what arrives, from the reservation of its size to the end of its stream."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.store import BlobStore, Upload
from lipt.coordinator.storage.accounts import Accounts, Allowance


class Uploads:
    """The uploads into one store, as far as accounts let them in; disk runs in threads."""

    def __init__(
        self,
        store: BlobStore,
        accounts: Accounts,
        allowances_of: Callable[[str], Iterable[Allowance]],
    ) -> None:
        """Receive into `store`; `allowances_of` says what a peer may send for learners."""
        self._store = store
        self._accounts = accounts
        self._allowances_of = allowances_of

    @asynccontextmanager
    async def receiving(
        self, name: BlobName, offset_bytes: int, peer: str
    ) -> AsyncIterator[Upload]:
        """An upload to write into, for the block; what came of it is in the accounts afterwards.

        Args:
            name: what is to arrive.
            offset_bytes: where it goes on.
            peer: who sends it.

        Raises:
            StorageFullError: the peer has stored as much as it may, or all peers have; nothing
                is written.
            UploadInProgressError, WrongOffsetError, BlobTooLargeError, StateError: as
                `BlobStore.open_upload`.
        """
        leaving = self._accounts.begin(name, peer, self._allowances_of(peer))
        opened: list[Upload] = []
        try:
            yield await self._in_thread(lambda: self._open(name, offset_bytes, leaving, opened))
        finally:
            # A caller that leaves does not keep what is there from being counted.
            await asyncio.shield(self._end(name, opened))

    def _open(
        self, name: BlobName, offset_bytes: int, leaving: Iterable[str], opened: list[Upload]
    ) -> Upload:
        for sha256 in leaving:
            self._store.expiry.remove_part(sha256, before=math.inf)
        opened.append(self._store.open_upload(name, offset_bytes))
        return opened[0]

    async def _in_thread(self, action: Callable[[], Upload]) -> Upload:
        # The thread cannot be stopped: who is cancelled leaves once it is through.
        opening = asyncio.ensure_future(asyncio.to_thread(action))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            await asyncio.wait({opening})
            raise

    async def _end(self, name: BlobName, opened: list[Upload]) -> None:
        finished = kept = False
        try:
            finished, kept = await asyncio.to_thread(self._close, name, opened)
        finally:
            self._accounts.end(name, finished=finished, kept=kept)

    def _close(self, name: BlobName, opened: list[Upload]) -> tuple[bool, bool]:
        for upload in opened:
            upload.close()
        return self._store.has(name), self._store.has_part(name)
