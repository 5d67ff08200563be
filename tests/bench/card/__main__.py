"""Everything that is known of graphics cards without one, by one command.

    python -m tests.bench.card [--json] [--folder DIR] [counts] [nights] [predictions]

Counts of passes on a pretended card beside those from before it was there (before.json) and their bars; dry
nights of whole-size models; the prediction of a pass for named cards. Nights take minutes each.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from tests.bench.card.children import on_a_card
from tests.bench.card.pairs import MODELS, SIZES
from tests.bench.card.predicted import CARDS, predicted
from tests.bench.card.tables import lines

PARTS = ("counts", "predictions", "nights")
BEFORE = Path(__file__).with_name("before.json")


def measure(parts: list[str], folder: Path) -> dict[str, Any]:
    """The parts asked for, as plain values."""
    found: dict[str, Any] = {"before": json.loads(BEFORE.read_text(encoding="utf-8"))}
    if "counts" in parts:
        asked = ("decode", "labels", "offloaded")
        found["counts"] = on_a_card(
            "tests.bench.card.counting", str(folder), *asked, cards="24GiB", folder=folder
        )
    if "predictions" in parts:
        found["predictions"] = [predicted(card, folder) for card in CARDS]
    if "nights" in parts:
        pairs = [(model, size) for model in MODELS for size in SIZES]
        found["nights"] = [
            on_a_card("tests.bench.card.night", model, str(folder), cards=size, folder=folder)
            for model, size in pairs
        ]
    return found


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.card", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], default=[])
    parser.add_argument("--json", action="store_true", help="one JSON object and nothing else")
    parser.add_argument("--folder", type=Path, help="where hollow models are kept; else a temporary folder")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        found = measure(given.parts or list(PARTS), folder.absolute())
    print(json.dumps(found) if given.json else "\n".join(lines(found)))


if __name__ == "__main__":
    main()
