"""A request in the numbers that the scheduler of packed passes knows."""

from __future__ import annotations

import hashlib

from pipeline.engine.batching import new_tokens
from pipeline.engine.packed.answers import LabelTree
from pipeline.engine.packed.sequence import Beginning, Sequence
from pipeline.records import Decode, Request, document_of
from pipeline.stores.kv.prefix_hash import pack

# A shorter beginning is not worth a pass of its own.
_LEAST_PREFIX_TOKENS = 16
_LEAST_DOCUMENT_TOKENS = 32
_KEY_BYTES = 16


def sequence_of(request: Request, tree: LabelTree | None, *, stored: bool) -> Sequence:
    """``request`` in numbers; ``tree`` is that of its labels, ``stored`` whether its document may be in the
    KV store, or belongs there.
    """
    sequence = Sequence(request.request_id, len(request.ids))
    shared = request.ids[: request.prefix_tokens]
    sequence.prefix = _beginning("prefix", shared, request, _LEAST_PREFIX_TOKENS)
    if request.document_end:
        sequence.document = _beginning("document", document_of(request), request, _LEAST_DOCUMENT_TOKENS)
        sequence.stored, sequence.awaited = stored, request.awaited > 0
    if isinstance(request.ask, Decode):
        sequence.new_tokens = request.ask.max_new_tokens
    elif tree is not None:
        sequence.tree, sequence.tree_tokens = tree.number, len(tree.trie.nodes)
        sequence.longest_label = new_tokens(request)
    return sequence


def _beginning(kind: str, ids: tuple[int, ...], request: Request, least: int) -> Beginning | None:
    """``ids``, with which ``request`` begins, where they are enough; at least one token of the prompt is
    left. Its key is a digest, so that equal ones have equal keys and others never do.
    """
    ids = ids[: len(request.ids) - 1]
    if len(ids) < least:
        return None
    digest = hashlib.blake2b(pack(ids), digest_size=_KEY_BYTES, person=kind.encode())
    return Beginning(int.from_bytes(digest.digest(), "little"), len(ids))
