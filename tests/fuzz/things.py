"""Values to fuzz with: anything that JSON or YAML can hold, valid things with a piece replaced, bytes with
some damaged.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

CONFIG: dict[str, Any] = {
    "model": {
        "id": "m",
        "quantization": "none",
        "max_memory": {0: "7GiB", "cpu": "8GB"},
        "template_options": {"a": 1},
    },
    "kv_cache": {
        "placement": "auto",
        "store": {"path": None, "quota": "1GB", "documents": "auto", "format": "as_computed"},
    },
    "source": {"path": ["a.jsonl", "b.csv"], "group_by": {"field": "page"}, "max_rejects": 3},
    "tasks": [
        {
            "name": "summary",
            "kind": "summarize",
            "instructions": "Sum up {{ title }}.",
            "chunk_tokens": 100,
            "overlap_tokens": 10,
        },
        {
            "name": "topic",
            "kind": "label",
            "labels": {"a": "one", "b": None},
            "expected_shares": {"a": 0.5, "b": 0.5},
            "multi": False,
        },
    ],
    "generation": {"layout": "auto", "sampling": {"temperature": 0.7, "top_p": 0.9, "top_k": 5, "seed": 1}},
    "engine": {"batch_rows": 4, "stall_seconds": 60},
    "run": {
        "directory": "r",
        "deadline": "07:00",
        "max_attempts": 3,
        "keep_free_disk": "1GB",
        "keep_free_memory": 0,
    },
}
_FILE = {
    "name": "0.safetensors",
    "begin": 0,
    "end": 3,
    "size_bytes": 100,
    "header_bytes": 50,
    "checksum": "0" * 32,
}
MANIFEST: dict[str, Any] = {
    "format": 1,
    "entry_id": "e" * 32,
    "kind": "document",
    "fingerprint": {"model": "m"},
    "tokens": 3,
    "ids_digest": "d",
    "blocks": "b",
    "layer_kinds": ["full"],
    "owner": {},
    "extra": {},
    "seconds": 1.0,
    "created": 2.0,
    "segments": [_FILE],
    "state": None,
}

_PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(["", "auto", "1e400", "7GiB", "../..", "{{ x", "{% for %}", "nan", "-1", "\0", "\ud800"]),
)
ANYTHING: st.SearchStrategy[Any] = st.recursive(
    _PLAIN,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _places(inner, (*path, key))


@st.composite
def replaced(draw: st.DrawFn, whole: dict[str, Any]) -> Any:
    """``whole`` with up to three of its pieces replaced, removed or added to."""
    value: Any = copy.deepcopy(whole)
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from([path for path in _places(value) if path] or [()]))
        if not path:
            return draw(st.dictionaries(st.text(max_size=6), ANYTHING, max_size=3))
        parent = value
        for key in path[:-1]:
            parent = parent[key]
        what = draw(st.sampled_from(["replace", "remove", "add"]))
        if what == "replace":
            parent[path[-1]] = draw(ANYTHING)
        elif what == "remove":
            del parent[path[-1]]
        elif isinstance(parent, dict):
            parent[draw(st.text(max_size=6))] = draw(ANYTHING)
        else:
            parent.append(draw(ANYTHING))
    return value


@st.composite
def damaged(draw: st.DrawFn, whole: st.SearchStrategy[bytes]) -> bytes:
    """Bytes with some flipped, cut out, doubled or put in."""
    data = bytearray(draw(whole))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        what = draw(st.sampled_from(["flip", "cut", "double", "put", "end"]))
        if what == "flip" and data:
            data[at] ^= draw(st.integers(1, 255))
        elif what == "cut":
            del data[at : at + draw(st.integers(1, 20))]
        elif what == "double":
            data[at:at] = data[at : at + draw(st.integers(1, 40))]
        elif what == "put":
            data[at:at] = draw(st.binary(max_size=12))
        else:
            del data[at:]
    return bytes(data)
