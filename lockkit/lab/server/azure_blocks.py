"""Azure's block blobs: a client stages blocks one by one, then writes their list: the blob."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from xml.sax.saxutils import escape

from lockkit.lab.server import markup
from lockkit.lab.server.call import DialectError, DialectRequest, Reply, RequestEffect
from lockkit.lab.server.objects import Objects

BLOCK_ID_CHARS_MAX = 128


def _upload(deed: RequestEffect) -> str:
    """Azure has one set of uncommitted blocks per blob, and no id for it."""
    return f"azure-{deed.bucket}/{deed.key}"


def put(objects: Objects, call: DialectRequest, deed: RequestEffect) -> Reply:
    """Put Block: stage one block."""
    deed.method = "part"
    name, upload = call.query.get("blockid", ""), _upload(deed)
    if not 0 < len(name) <= BLOCK_ID_CHARS_MAX:
        raise DialectError(400, "InvalidQueryParameterValue", "a block's id has 1 to 64 bytes")
    with objects.writing():
        if objects.upload(upload) is None:
            objects.start_upload(upload, deed.bucket, deed.key, {})
        objects.add_part(upload, name, len(objects.parts(upload)), call.body)
    deed.answer = "applied"
    md5 = base64.b64encode(hashlib.md5(call.body).digest()).decode()
    headers = {"Content-MD5": md5, "x-ms-request-server-encrypted": "true"}
    return Reply(201, headers, b"", deed)


def joined(
    objects: Objects, call: DialectRequest, deed: RequestEffect
) -> tuple[bytes, list[list[object]]]:
    """Put Block List: the new blob's bytes, and the name and size of each of its blocks."""
    committed = _committed(objects, deed)
    upload, pieces, blocks = _upload(deed), [], []
    for each in markup.read(call.body, "BlockList", "InvalidXmlDocument"):
        name, kind = (each.text or "").strip(), markup.local(each)
        piece = None if kind == "Committed" else objects.part(upload, name)
        if piece is None and kind != "Uncommitted":
            piece = committed.get(name)
        if piece is None:
            raise DialectError(400, "InvalidBlockList", "The specified block list is invalid.")
        pieces.append(piece)
        blocks.append([name, len(piece)])
    return b"".join(pieces), blocks


def end(objects: Objects, deed: RequestEffect) -> None:
    """Discard the uncommitted blocks, because the blob was written."""
    objects.end_upload(_upload(deed))


def listed(objects: Objects, call: DialectRequest, deed: RequestEffect) -> Reply:
    """Get Block List: the committed blocks, the staged ones, or both."""
    kind = call.query.get("blocklisttype", "committed").lower()
    present = objects.current(deed.bucket, deed.key)
    staged = objects.parts(_upload(deed))
    if present is None and not staged:
        raise DialectError(404, "BlobNotFound", "The specified blob does not exist.", "missing")
    blocks = [] if present is None else present.meta.get("blocks", [])
    text = ""
    if kind in ("committed", "all"):
        text += f"<CommittedBlocks>{_rows(blocks)}</CommittedBlocks>"
    if kind in ("uncommitted", "all"):
        rows = _rows([name, size] for name, _, _, size in staged)
        text += f"<UncommittedBlocks>{rows}</UncommittedBlocks>"
    deed.method, deed.answer = "list", "listed"
    return markup.document(f"<BlockList>{text}</BlockList>", deed)


def _rows(blocks: Iterable[Sequence[object]]) -> str:
    return "".join(
        f"<Block><Name>{escape(str(name))}</Name><Size>{size}</Size></Block>"
        for name, size in blocks
    )


def _committed(objects: Objects, deed: RequestEffect) -> dict[str, bytes]:
    """The bytes of each block of the present blob, by the block's name."""
    present = objects.current(deed.bucket, deed.key)
    blocks = [] if present is None else present.meta.get("blocks", [])
    body = objects.body(present) if present is not None and blocks else b""
    found, at = {}, 0
    for name, size in blocks:
        found[name] = (body or b"")[at : at + size]
        at += size
    return found
