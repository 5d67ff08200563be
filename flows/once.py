"""A flow once, with a temporary Prefect server: ``python -m flows.once KIND [CONFIG] [--set A.B=C] [--limit
N]``. Our own kinds also have scripts: ``python flows/KIND.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from flows.kinds import flow_of
from flows.script import main
from pipeline.tasks.registry import kinds


def once(kind: str, arguments: Sequence[str]) -> int:
    """Run the flow of ``kind`` with a command line's arguments. The exit code."""
    return main(flow_of(kind), kind, arguments)


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in kinds():
        print(f"overnight: name the kind of task first, one of {', '.join(kinds())}", file=sys.stderr)
        sys.exit(2)
    sys.exit(once(sys.argv[1], sys.argv[2:]))
