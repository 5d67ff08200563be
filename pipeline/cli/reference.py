"""How the keys of the configuration are shown: ``overnight keys``, and ``configs/REFERENCE.md``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pipeline.config import RETIRED
from pipeline.config.keys import Key
from pipeline.errors import UsageError

_HEADER = """# Every key of the configuration

`overnight keys` prints what stands here, `overnight keys kv_cache` a part of it, `--json` all of it for
programs. `--set key=value` overrides a key, that of a task by its name (`--set tasks.topic.multi=true`).
There, a text is taken as it is typed (`--set run.deadline=22:30`, `--set 'source.path=*.jsonl'`), `null` as
null. A size is bytes, or a number with a unit: `7GiB`, `20GB`. A path may begin with `~` and name variables
of the environment (`$DATA/in.jsonl`, `${DATA}`; `$$` is a dollar sign); a relative one starts at the folder
in which the command is run; `source.path`, `gold` and `examples` may be patterns (`*`, `**`, `?`). What a
file says is used or refused with its line: keys that are unknown, given twice, or obeyed by nothing are
refused. Complete configurations:
[demo](demo.yaml), [8 GB card](gpu-8gb.yaml), [24 GB card](gpu-24gb.yaml).
"""


def chosen(keys: list[Key], begin: str | None) -> list[Key]:
    """The keys at or below a dotted path, with or without its list marks. Raises UsageError where there is
    none.
    """
    wanted = (begin or "").replace("[]", "")
    found = [
        key for key in keys if f"{key.key}.".replace("[]", "").startswith(f"{wanted}." if wanted else "")
    ]
    if begin in RETIRED:
        raise UsageError(f"{begin}: {RETIRED[begin]}")
    if not found:
        raise UsageError(f"there is no key {begin!r}; overnight keys prints all of them")
    return found


def text_lines(keys: list[Key]) -> list[str]:
    """For a terminal: each key with its default and values, and under it what it means."""
    return [
        line
        for key in keys
        for line in (
            f"{key.key}: {key.default}" + (f"   (kind: {key.of})" if key.of else ""),
            f"    {key.values}",
            f"    {_sentence(key.meaning)}",
        )
    ]


def to_json(keys: list[Key]) -> dict[str, Any]:
    """The keys as plain values."""
    return {"keys": [asdict(key) for key in keys]}


def markdown(keys: list[Key]) -> list[str]:
    """Lines of the page: a table for each section, tasks by their kind."""
    parts: dict[tuple[str, str], list[Key]] = {}
    for key in keys:
        parts.setdefault((key.key.split(".")[0].removesuffix("[]"), key.of), []).append(key)
    return [*_HEADER.splitlines(), *(line for part in parts.items() for line in _table(*part))]


def _table(part: tuple[str, str], keys: list[Key]) -> list[str]:
    name, kind = part
    return [
        "",
        f"## {name}" + (f", kind: {kind}" if kind else ""),
        "",
        "| Key | Value | Default | Meaning |",
        "|---|---|---|---|",
        *(
            f"| `{key.key}` | {key.values} | {_code(key.default)} | {_sentence(key.meaning)} |".replace(
                "\n", " "
            )
            for key in keys
        ),
    ]


def _code(default: str) -> str:
    return default if default == "required" else f"`{default}`"


def _sentence(meaning: str) -> str:
    """With a capital and a full stop; what begins with a value keeps that as it is written."""
    begins_with_value = meaning.split(" ", 1)[0].endswith(":")
    return f"{meaning if begins_with_value else meaning[:1].upper() + meaning[1:]}."
