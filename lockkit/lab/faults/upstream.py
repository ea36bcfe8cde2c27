"""The proxy's connection to the store, which sends each request exactly once."""

from __future__ import annotations

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator

from lockkit.lab.faults import wire
from lockkit.lab.faults.wire import MessageHead, WireError

CONNECT_S_MAX = 5.0
ANSWER_S_MAX = 120.0


class Unreachable(Exception):
    """No connection to the upstream: the request has certainly not been sent."""


class Upstream:
    """One connection to the store, opened when needed, kept while both sides keep it open."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._reader: StreamReader | None = None
        self._writer: StreamWriter | None = None

    async def ask(self, sent: bytes) -> MessageHead:
        """Send one request, once; return its answer's head. `relay` or `swallow` reads the body."""
        reader, writer = await self._connected()
        writer.write(sent)
        async with asyncio.timeout(ANSWER_S_MAX):
            await writer.drain()
            try:
                while (head := await wire.read_head(reader)) is not None:
                    if head.status >= 200:
                        return head
            except WireError as error:
                host, port = self._address
                why = f"the upstream http://{host}:{port} does not speak HTTP/1.1: {error.why}"
                raise WireError(502, why) from None
        raise ConnectionResetError("the upstream closed the connection without an answer")

    async def swallow(self, head: MessageHead, *, method: str) -> None:
        """Read the rest of an answer without passing it on."""
        async for _ in self._pieces(head, method):
            pass

    async def relay(self, head: MessageHead, writer: StreamWriter, *, method: str) -> bool:
        """Pass an answer on as it comes; return whether the client can see where it ends."""
        writer.write(head.raw)
        try:
            async for piece in self._pieces(head, method):
                writer.write(piece)
                await writer.drain()
        except WireError as error:  # too late for a status of our own: the answer has begun
            raise ConnectionAbortedError(error.why) from None
        await writer.drain()
        return self._writer is not None

    async def _pieces(self, head: MessageHead, method: str) -> AsyncIterator[bytes]:
        assert self._reader is not None
        framing = wire.framing_of_answer(head, method=method)
        async for piece in wire.read_body(self._reader, framing):
            yield piece
        if head.last or isinstance(framing, wire.UntilClose):
            self.close()

    async def _connected(self) -> tuple[StreamReader, StreamWriter]:
        if self._reader is not None and self._writer is not None:
            await asyncio.sleep(0)  # shows a FIN that has already arrived: nothing was sent yet
            if not self._reader.at_eof() and not self._writer.is_closing():
                return self._reader, self._writer
            self.close()
        try:
            async with asyncio.timeout(CONNECT_S_MAX):
                self._reader, self._writer = await asyncio.open_connection(
                    *self._address, limit=2 * wire.HEAD_BYTES_MAX
                )
        except (OSError, TimeoutError) as error:
            why = getattr(error, "strerror", None) or "no answer"
            host, port = self._address
            raise Unreachable(
                f"the upstream http://{host}:{port} is not reachable ({why}); "
                "is the store running there?"
            ) from None
        return self._reader, self._writer

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None
