"""What a card that failed is asked before documents are put to it again: prompts about nothing, as long as
those that it was computing. If it fails at these, too, no document is to blame.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.records import Request

# Of these tokens every vocabulary has some: past the first, which are often special.
_FIRST_ID, _STEP, _IDS = 3, 7, 89


def made_up(requests: Sequence[Request]) -> tuple[Request, ...]:
    """One request for each of ``requests``, of its length and asking for as much; nothing of it is kept."""
    return tuple(
        Request(
            -1 - number,
            tuple(_FIRST_ID + (_STEP * place + number) % _IDS for place in range(len(request.ids))),
            request.ask,
        )
        for number, request in enumerate(requests)
    )
