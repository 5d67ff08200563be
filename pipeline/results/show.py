"""``overnight show``: how one document was asked and answered. Its task is replayed over the recorded
replies; no weights are loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.config import Config, parse_config
from pipeline.engine.registry import open_backend
from pipeline.errors import DocumentFailed, UsageError
from pipeline.prepare.prepare import prepare, resolve
from pipeline.prompts import Tokenizer
from pipeline.records import Decode, Document, Generation, Step
from pipeline.sources import read_source
from pipeline.stores.ledger.ledger import Ledger
from pipeline.stores.ledger.queries import InputRow
from pipeline.system.run_directory import LEDGER
from pipeline.system.units import moment
from pipeline.tasks import Task
from pipeline.tasks.registry import answers_of, kinds


def inspect(directory: Path, document_id: str) -> dict[str, Any]:
    """Facts about every document of this id (there may be several texts). Raises UsageError when the run has
    never seen it.
    """
    with Ledger.open(directory / LEDGER, write=False) as ledger:
        rows = ledger.documents(document_id)
        if not rows:
            raise UsageError(f"the run in {directory} has seen no document with the id {document_id!r}")
        config = parse_config(ledger.runs()[-1]["facts"]["config"])
        backend = open_backend(config)
        tasks = prepare(config, backend, resolve(config, backend, ledger.resolved())).tasks
        texts = _texts(config, tasks, {row.document_key for row in rows})
        told = [_told(ledger, backend.tokenizer(), tasks, row, texts.get(row.document_key)) for row in rows]
    return {"id": document_id, "documents": told}


def _texts(config: Config, tasks: Sequence[Task], keys: set[str]) -> dict[str, Document]:
    """The documents themselves, read again from the source as far as needed: the ledger keeps no texts."""
    fields = sorted({name for task in tasks for name in task.job.fields})
    found: dict[str, Document] = {}
    for item in read_source(config.source, fields):
        if isinstance(item, Document) and item.key in keys:
            found[item.key] = item
            if len(found) == len(keys):
                break
    return found


def _told(
    ledger: Ledger, tokenizer: Tokenizer, tasks: Sequence[Task], row: InputRow, document: Document | None
) -> dict[str, Any]:
    facts: dict[str, Any] = {"file": row.file, "line": row.line, "characters": row.characters, "tasks": {}}
    known = {row.job.name: row for row in ledger.tasks()}
    for task in tasks:
        if task.job.name not in known:
            continue
        key = row.work_key(task.job)
        result = ledger.result(task.job.name, key)
        story: dict[str, Any] = {"result": _dated(result)}
        story |= answers_of(task.job.kind).story(ledger, known[task.job.name], key, result)
        if document is None:
            story["note"] = "the document is no longer in the source, so its prompts cannot be shown"
        else:
            story["steps"] = [
                _step(tokenizer, step, reply)
                for step, reply in _replay(task, document, ledger.replies(task.job.name, key))
            ]
        facts["tasks"][task.job.name] = story
    return facts


def _dated(result: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """``result`` with its moment as people read it; a work that waits has none."""
    if result is None:
        return None
    recorded = result["recorded_at"]
    return {**result, "recorded_at": None if recorded is None else moment(recorded)}


def _replay(
    task: Task, document: Document, recorded: Mapping[str, Generation]
) -> Iterator[tuple[Step, Generation | None]]:
    """The steps of a document with their recorded replies; the last ones asked may have none."""
    work = task.work(document)
    try:
        steps = next(work)
        while True:
            replies = [recorded.get(step.key) for step in steps]
            yield from zip(steps, replies, strict=True)
            answered = [reply for reply in replies if reply is not None]
            if len(answered) < len(replies):
                return
            steps = work.send(answered)
    except (StopIteration, DocumentFailed):
        return


def _step(tokenizer: Tokenizer, step: Step, reply: Generation | None) -> dict[str, Any]:
    asked = (
        f"at most {step.ask.max_new_tokens} tokens"
        if isinstance(step.ask, Decode)
        else f"{len(step.ask.continuations)} scores"
    )
    facts: dict[str, Any] = {
        "name": step.name,
        "span": step.span,
        "prompt_tokens": len(step.prompt.ids),
        "prefix_tokens": step.prompt.prefix_tokens,
        "asked": asked,
        "prompt": tokenizer.decode_exactly(step.prompt.ids),
    }
    if reply is not None:
        facts |= {"seconds": reply.seconds, "finish_reason": reply.finish_reason}
        facts |= (
            {"scores": list(reply.scores)} if reply.scores else {"reply": tokenizer.decode(reply.token_ids)}
        )
    return facts


def render(facts: Mapping[str, Any]) -> list[str]:
    """Lines for people."""
    lines = []
    for document in facts["documents"]:
        lines += [
            (
                f"{facts['id']}  ({document['file']}, line {document['line']}, {document['characters']:,} "
                f"characters)"
            )
        ]
        for name, story in document["tasks"].items():
            lines += ["", f"== task {name} =="]
            lines += [
                f"{key}: {value}"
                for key, value in (story["result"] or {"state": "pending"}).items()
                if value is not None
            ]
            lines += [line for kind in kinds() for line in answers_of(kind).story_lines(story)]
            lines += [story["note"]] if "note" in story else []
            for step in story.get("steps", ()):
                span = f", characters {step['span'][0]:,} to {step['span'][1]:,}" if step["span"] else ""
                lines += [
                    "",
                    (
                        f"-- {step['name']}: {step['prompt_tokens']:,} tokens{span}, asked for "
                        f"{step['asked']} --"
                    ),
                    step["prompt"],
                ]
                lines += [f"-> {step['reply']}"] if "reply" in step else []
    return lines
