"""Finds a loop at the end of an output, so that the rest of it need not be generated. Pure Python on token
ids.

A loop is a period of at most ``MAX_PERIOD_TOKENS`` tokens that stands at the end at least ``MIN_REPEATS``
times in full and covers at least ``MIN_COVER_TOKENS``. That is conservative on purpose: a summary that says a
short phrase three times, a table rule of forty dashes or a list whose items differ in one token is left
alone. One period is kept, the copies are cut.
"""

from __future__ import annotations

MAX_PERIOD_TOKENS = 64
MIN_REPEATS = 4
MIN_COVER_TOKENS = 48


class RepetitionDetector:
    """Watches one output. Costs one comparison for each candidate period and token, at most
    ``MAX_PERIOD_TOKENS``.
    """

    def __init__(self) -> None:
        self._tokens: list[int] = []
        # matches[p]: how many tokens at the end each equal the token p places before them.
        self._matches = [0] * (MAX_PERIOD_TOKENS + 1)

    def push(self, token: int) -> int | None:
        """Take the next token. Returns None, or how many tokens to keep when the output has run into a
        loop.
        """
        tokens, matches = self._tokens, self._matches
        count = len(tokens)
        for period in range(1, min(MAX_PERIOD_TOKENS, count) + 1):
            matches[period] = matches[period] + 1 if tokens[count - period] == token else 0
        tokens.append(token)
        return self._kept()

    def _kept(self) -> int | None:
        count = len(self._tokens)
        for period in range(1, min(MAX_PERIOD_TOKENS, count - 1) + 1):
            covered = self._matches[period] + period
            if covered >= max(MIN_COVER_TOKENS, MIN_REPEATS * period):
                return count - covered + period
        return None
