"""Text files: the whole file is one document, its id the path below the folder (or pattern) that was
given.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator

from pipeline.records import Origin
from pipeline.sources.encoding import refuse_bytes
from pipeline.sources.files import SourceFile
from pipeline.sources.rows import Raw, Wanted
from pipeline.sources.streams import RECORD_LIMIT_BYTES, DamagedFile, read_text_blocks, too_long


def read(file: SourceFile, want: Wanted) -> Iterator[Raw]:
    """The one row of ``file``, its line ends and control characters untouched. Raises Damaged instead where
    any of it cannot be read.
    """
    pieces: list[bytes] = []
    size_bytes = 0
    for block in read_text_blocks(file):
        pieces.append(block)
        size_bytes += len(block)
        if size_bytes > RECORD_LIMIT_BYTES:
            raise DamagedFile(too_long("file"), 1, 0)
    data = b"".join(pieces)
    start = len(codecs.BOM_UTF8) if data.startswith(codecs.BOM_UTF8) else 0
    try:
        text = data[start:].decode("utf-8")
    except UnicodeDecodeError as error:
        at = start + error.start
        raise DamagedFile(refuse_bytes(file.name, data, at, at), data.count(b"\n", 0, at) + 1, at) from None
    yield Raw(Origin(file.name, 1, 0), {want.text: text}, data[:1024], identity=file.relative)
