"""A flow once, with a temporary Prefect server: ``python -m flows.once KIND [CONFIG] [--set A.B=C] [--limit
N]``. Our own kinds also have scripts: ``python flows/KIND.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from flows.kinds import flow_of
from flows.script import main
from pipeline.errors import EXIT_USAGE
from pipeline.tasks.registry import broken_kinds, kinds


def once(kind: str, arguments: Sequence[str]) -> int:
    """Run the flow of ``kind`` with a command line's arguments. The exit code."""
    return main(flow_of(kind), kind, arguments)


def asked(arguments: Sequence[str]) -> int:
    """Run the flow of the kind that a command line names first, or say why there is none. The exit code."""
    kind = arguments[0] if arguments else ""
    if kind in kinds():
        return once(kind, arguments[1:])
    said = broken_kinds().get(kind) or f"name the kind of task first, one of {', '.join(kinds())}"
    print(f"overnight: {said}", file=sys.stderr)
    return EXIT_USAGE


if __name__ == "__main__":
    sys.exit(asked(sys.argv[1:]))
