"""Texts about long documents, saved while they are written: after a crash they go on where they were.

What is saved are the tokens. The keys and values of the prompt come back from its document's checkpoint, and
those of the saved tokens are computed again in one pass, which costs about as much as decoding one of them.
"""

from __future__ import annotations

import time

from pipeline.engine.reuse.prefix_store import PrefixStore
from pipeline.engine.static.generate import Output
from pipeline.records import Request, digest


class TextCheckpoints:
    """What is known of the texts in the making. ``reuse`` None: nothing is saved."""

    def __init__(self, reuse: PrefixStore | None) -> None:
        self._reuse = reuse
        self._last: dict[int, float] = {}

    def begun(self, request: Request, output: Output) -> tuple[int, ...]:
        """The tokens that an earlier process decoded, given to ``output`` as if they had been decoded now."""
        if self._reuse is None or not self._reuse.session.is_long(len(request.ids)):
            return ()
        self._last[request.request_id] = time.monotonic()
        tokens = self._reuse.saved_tokens(_question(request))
        for token in tokens:
            output.push(token)
        if output.sampler is not None:
            output.sampler.skip(len(tokens))
        self._reuse.session.tally.resumed_text_tokens += len(tokens)
        return tokens

    def grown(self, request: Request, output: Output) -> None:
        """A token was added; the text is saved when it is time, and forgotten when it has ended."""
        last = self._last.get(request.request_id)
        if last is None or self._reuse is None:
            return
        if output.ended:
            del self._last[request.request_id]
            self._reuse.finish_tokens(_question(request))
        elif time.monotonic() - last >= self._reuse.session.settings.checkpoint_seconds:
            self._reuse.save_tokens(
                _question(request), request.ids, output.reply.token_ids, time.monotonic() - last
            )
            self._last[request.request_id] = time.monotonic()


def _question(request: Request) -> str:
    """What tells a question from every other."""
    return digest(repr(request.ids), repr(request.ask))
