"""Fingerprints are those of version 0.1.0, to the letter: run directories made then go on. A key that a task
gains changes none while it keeps the old behaviour.
"""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from pipeline.config import Added, SamplingConfig, identity_of, parse_config
from pipeline.prepare.prepare import prepare
from pipeline.records import TaskJob
from pipeline.tasks.base import definition
from pipeline.tasks.summarize.section import SummarizeTask
from pipeline.testing.scripted_backend import ScriptedBackend

BASE: dict[str, Any] = {
    "model": {"id": "scripted", "quantization": "none"},
    "source": {"path": "in.jsonl"},
    "tasks": [
        {"name": "summary", "kind": "summarize"},
        {"name": "topic", "kind": "label", "labels": ["a", "b"]},
    ],
    "run": {"directory": "run"},
}
RESOLVED = {
    "dtype": "float32",
    "attention": "sdpa",
    "layout": "instructions_first",
    "date": "2026-11-20",
}
WRITTEN_OUT: list[dict[str, Any]] = [
    {
        "name": "s",
        "kind": "summarize",
        "instructions": "Sum up {{ title }}.",
        "system": "Be brief.",
        "chunk_tokens": 200,
        "overlap_tokens": 20,
        "max_parts": 7,
        "max_output_tokens": 33,
        "long_documents": "refine",
    },
    {
        "name": "t",
        "kind": "label",
        "labels": {"a": "first", "b": None},
        "label_names": "spaced",
        "cue": "It is",
        "long_documents": "truncate",
        "calibration": "none",
        "score_tolerance": 0.01,
        "abstain_below": 0.4,
        "max_parts": 9,
    },
]
SEVERAL = {
    "name": "m",
    "kind": "label",
    "labels": ["a", "b"],
    "multi": True,
    "expected_shares": {"a": 0.2, "b": 0.3},
}
SHOWN = {
    "name": "e",
    "kind": "label",
    "labels": ["a", "b"],
    "examples": [{"text": "Rain fell.", "label": "a"}, {"text": "A club won.", "label": "b", "id": "x"}],
    "examples_tokens": 64,
}
# What the code of 0.1.0 computed. Never change one: it would refuse every run directory of that kind.
RECORDED: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "least": (
        {},
        {"summary": "1bf2c6472ad0f2c8a7f1cad97c6f15c6", "topic": "29074cf8211d5a26c66c47bbeeb52088"},
    ),
    "written out": (
        {
            "model": {
                **BASE["model"],
                "revision": "r",
                "quantization": "int8",
                "template_options": {"enable_thinking": False},
            },
            "generation": {"sampling": {"temperature": 0.7}},
            "tasks": WRITTEN_OUT,
        },
        {"s": "13087845907113ed0dcdf167dbd07d23", "t": "d9a829ed05ceff8ed52c2b246643f1e3"},
    ),
    "several labels": ({"tasks": [SEVERAL]}, {"m": "54df1566748b22861556b1cb8a099da5"}),
    "examples": ({"tasks": [SHOWN]}, {"e": "2ba388db47307cd447acb41a0dd31621"}),
    "lossy": (
        {"kv_cache": {"placement": "quantized", "lossy_last_resort": True, "store": {"format": "int8"}}},
        {"summary": "51b78c8ace801eef7433238a6eda8bb0", "topic": "2d3f6e56e4aec966edcb6570fc39783a"},
    ),
}


@pytest.mark.parametrize("name", RECORDED)
def test_fingerprints_stay(name: str) -> None:
    more, fingerprints = RECORDED[name]
    config = parse_config({**BASE, **more})
    tasks = prepare(config, ScriptedBackend(config), RESOLVED).tasks
    assert {task.job.name: task.job.fingerprint for task in tasks} == fingerprints


class _Mood(BaseModel):
    word: str = "plain"
    shade: Annotated[int, Added(0)] = 0


class _Later(SummarizeTask):
    style: Annotated[str, Added("none")] = "none"
    careful: Annotated[bool, Added(before=False)] = True
    """Its default is the new behaviour."""
    moods: Annotated[list[_Mood], Added([])] = Field(default_factory=list)


def _fingerprint(task: SummarizeTask) -> str:
    return TaskJob("s", "summarize", {"task": definition(task)}, ()).fingerprint


def test_a_key_added_later_enters_only_with_a_new_behaviour() -> None:
    plain: dict[str, Any] = {"name": "s", "kind": "summarize"}
    before = _fingerprint(SummarizeTask(**plain))
    assert _fingerprint(_Later(**plain, careful=False)) == before
    assert _fingerprint(_Later(**plain, careful=False, style="none", moods=[])) == before
    changed = [
        _Later(**plain),
        _Later(**plain, careful=False, style="terse"),
        _Later(**plain, careful=False, moods=[_Mood()]),
        _Later(**plain, careful=False, moods=[_Mood(shade=1)]),
    ]
    assert len({before, *map(_fingerprint, changed)}) == 5


def test_keys_added_inside_a_section() -> None:
    later = _Later(name="s", kind="summarize", careful=False, moods=[_Mood(), _Mood(shade=2)])
    assert identity_of(later)["moods"] == [{"word": "plain"}, {"word": "plain", "shade": 2}]
    sampling = SamplingConfig(temperature=0.5)
    assert identity_of(sampling) == sampling.model_dump(mode="json")
