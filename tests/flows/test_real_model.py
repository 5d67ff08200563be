"""The demo configuration's shape on a real server, with the real model: nf4, device map, a streamed
source.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.flows.serving import ROOT, Server, Serving
from tests.nights import ANight


@pytest.mark.full
@pytest.mark.timeout(900)
def test_demo_night_of_both_kinds(server: Server, tmp_path: Path, demo_model_folder: Path) -> None:
    rows = [
        json.loads(line)
        for line in (ROOT / "data" / "reports.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    rows = sorted(rows, key=lambda row: len(row["text"]))[:4]
    model = {"id": str(demo_model_folder), "quantization": "nf4", "dtype": "float32", "context_tokens": 2048}
    night = ANight(tmp_path, rows, extra={"model": model})
    with Serving(server, night) as serving:
        for kind, overrides in (("summarize", ["tasks.summary.max_output_tokens=24"]), ("label", [])):
            run = serving.ask_for(kind, overrides=overrides)
            assert server.wait_ended(run, 400)[1] == "Completed", serving.output
        assert "nf4" in server.artifacts(run)["label-report"]["data"]
    exported = night.export()
    assert [row["id"] for row in exported] == [row["id"] for row in rows]
    assert all(row["summary"] and row["topic"] in ("world", "sports", "business") for row in exported)
