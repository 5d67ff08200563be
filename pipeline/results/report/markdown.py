"""The report as Markdown. Whatever comes from documents, files or the model passes through ``escape``
first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipeline.results.report.evaluation import render_evaluation
from pipeline.results.report.markdown_table import table
from pipeline.results.report.plan_vs_actual import estimated_again
from pipeline.system.escape import escape
from pipeline.system.units import amount, duration
from pipeline.tasks.registry import answers_of

_LOOK = {
    "length": "cut off at max_output_tokens: worth a look",
    "repetition": "stopped because they repeated themselves: worth a look",
}


def render_markdown(report: Mapping[str, Any]) -> str:
    """The whole report, for people."""
    lines = ["# Report", "", *_headline(report), *_inputs(report)]
    for name, task in report["tasks"].items():
        lines += _task(name, task)
    lines += [
        *render_evaluation(report.get("evaluation")),
        *_rejects(report["rejects"]),
        *_outcome(report.get("outcome")),
    ]
    lines += [*_machine(report), *_runs(report["runs"])]
    return "\n".join(lines).rstrip("\n") + "\n"


def _headline(report: Mapping[str, Any]) -> list[str]:
    inputs, last = report["inputs"], report["runs"][-1] if report["runs"] else None
    lines = [f"**{_how_far(report)}.**"]
    if report.get("now"):
        lines = [f"**{escape(report['now'][0].upper() + report['now'][1:], 1000)}.**"]
    elif last is not None and last["exit_code"] not in (0, 3):
        lines.append(
            f"The last run ended early: {escape(last['reason'], 1000)} (exit code {last['exit_code']})."
        )
    if not inputs["documents"]:
        lines.append("**NO DOCUMENTS WERE READ. Look at source.path, and at the rejected rows below.**")
    return [*lines, ""]


def _how_far(report: Mapping[str, Any]) -> str:
    """Whether anything is left, and what would do it: running again is only spoken of where that helps."""
    reading = report["reading"]
    if report["inputs"]["complete"]:
        return "Complete"
    if reading["waiting"]:
        return "Not complete: run the same command again to go on"
    if reading["limited"]:
        return "Not complete: the last run was limited (--limit); one without a limit reads the rest"
    if reading["unreadable"]:
        return f"All that could be read is answered, but {reading['unreadable']}"
    return "Not complete"


def _inputs(report: Mapping[str, Any]) -> list[str]:
    inputs = report["inputs"]
    lines = [
        "## Inputs",
        "",
        f"- {inputs['documents']:,} documents",
        f"- {inputs['rejected']:,} rows rejected",
    ]
    if inputs["duplicates"]:
        lines.append(
            f"- {inputs['duplicates']:,} rows repeat an id and its text exactly; they share the answer"
        )
    if inputs["clashing_ids"]:
        lines.append(
            f"- **{inputs['clashing_ids']:,} ids stand for several different texts**; each text has its "
            f"own row in the export"
        )
        lines += [f"  - {escape(clash['id'])}: {clash['texts']:,} texts" for clash in inputs["clashes"]]
    return [*lines, *(f"- **{sentence}**" for sentence in report["reading"]["sentences"]), ""]


def _task(name: str, task: Mapping[str, Any]) -> list[str]:
    states = (
        ", ".join(f"{count:,} {state}" for state, count in task["states"].items() if count) or "nothing to do"
    )
    lines = [f"## Task {escape(name)} ({task['kind']})", "", f"- {states}", f"- {_speed(task)}"]
    if task["tokens_dropped"]:
        lines.append(
            f"- **{task['tokens_dropped']:,} tokens of {task['documents_cut']:,} documents were left "
            f"out**, as truncate asks for"
        )
    answers = answers_of(task["kind"])
    lines += answers.report_lines(task)
    lines += [
        f"- finish reason {escape(reason)}: {count:,}{_look(reason)}"
        for reason, count in task["finish_reasons"].items()
    ]
    lines += [
        f"- KV cache placement {escape(place)}: {count:,} documents"
        for place, count in task["placements"].items()
    ]
    lines += [f"- {escape(note)}: {count:,} documents" for note, count in task["notes"].items()]
    return [
        *lines,
        "",
        *answers.report_section(task),
        *_failures(task["failures"]),
        *_long(task["long_documents"]),
        *_slowest(task["slowest"]),
    ]


def _speed(task: Mapping[str, Any]) -> str:
    found = task["tokens_in"] - task["tokens_computed"]
    known = f" ({found:,} of them from caches or earlier attempts)" if found > 0 else ""
    text = (
        f"{task['tokens_in']:,} tokens read{known}, "
        f"{task['tokens_out']:,} written, "
        f"{duration(task['working_seconds'])} of work"
    )
    if task["tokens_per_second"] is None:
        return text
    return (
        f"{text}: {task['tokens_per_second']:,.1f} tokens/s, {task['documents_per_hour']:,.0f} "
        f"documents an hour"
    )


def _look(reason: str) -> str:
    return f" (**{_LOOK[reason]}**)" if reason in _LOOK else ""


def _failures(failures: Mapping[str, Any]) -> list[str]:
    if not failures["by_reason"]:
        return []
    lines = ["### Without an answer", "", *table(("reason", "documents"), _reasons(failures["by_reason"]))]
    rows = [
        (
            escape(row["id"]),
            row["state"],
            escape(row["kind"]),
            escape(row["message"], 400),
            f"{row['attempts']}",
        )
        for row in failures["first"]
    ]
    return [*lines, *table(("id", "state", "kind", "reason", "attempts"), rows)]


def _long(long: Mapping[str, Any]) -> list[str]:
    if not long["count"]:
        return []
    whole = f"{long['read_whole']:,} of {long['count']:,} documents in parts were read whole"
    lines = [
        "### Long documents",
        "",
        f"{whole}." if long["read_whole"] == long["count"] else f"**Only {whole}.**",
        "",
    ]
    rows = [
        (escape(row["id"]), f"{row['parts']:,}", f"{row['covered']:,} of {row['characters']:,}")
        for row in long["most_parts"]
    ]
    return lines + table(("id", "parts", "characters read"), rows)


def _slowest(slowest: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [
        (
            escape(row["id"]),
            f"{row['seconds']:,.2f}",
            f"{row['tokens_in']:,}",
            f"{row['tokens_out']:,}",
            f"{row['parts']:,}",
        )
        for row in slowest
    ]
    return (
        ["### Slowest documents", "", *table(("id", "seconds", "tokens in", "tokens out", "parts"), rows)]
        if rows
        else []
    )


def _rejects(rejects: Mapping[str, Any]) -> list[str]:
    if not rejects["by_reason"]:
        return []
    lines = [
        "## Rejected rows",
        "",
        *table(("reason", "rows"), _reasons(rejects["by_reason"])),
        "The first ones; all are in rejects.jsonl:",
        "",
    ]
    rows = [
        (f"{escape(row['file'])}:{row['line']}", _offset(row["offset"]), escape(row["reason"], 400))
        for row in rejects["first"]
    ]
    return lines + table(("place", "byte offset", "reason"), rows)


def _offset(offset: int | None) -> str:
    return "" if offset is None else f"{offset:,}"


def _reasons(reasons: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    return [(escape(item["reason"], 300), f"{item['count']:,}") for item in reasons]


def _machine(report: Mapping[str, Any]) -> list[str]:
    lines = ["## Model and machine", ""]
    for title in ("model", "plan", "loaded", "versions"):
        facts = report[title]
        if facts:
            lines += [
                f"{title.capitalize()}:",
                "",
                *(f"- {escape(name)}: {_fact(value)}" for name, value in facts.items()),
                "",
            ]
    waiting = report["waiting"]
    if waiting:
        share = f"{waiting['waited_seconds'] / waiting['seconds']:.1%}"
        lines += [f"The loaded model waited for work {share} of {duration(waiting['seconds'])}.", ""]
    lines += _store(report.get("store"))
    notes = report["notes"] or ()
    if notes:
        lines += ["Notes:", "", *(f"- {escape(note, 400)}" for note in notes), ""]
    return lines if len(lines) > 2 else []


def _outcome(outcome: Mapping[str, Any] | None) -> list[str]:
    """Prediction beside outcome."""
    if not outcome or not outcome["lines"]:
        return []
    rows = [
        (
            escape(line["name"]),
            *(_quantity(line[key], line["unit"]) for key in ("predicted", "measured")),
            _ratio(line["ratio"]),
        )
        for line in outcome["lines"]
    ]
    head = f"Speeds {escape(outcome['speeds'])}; lengths by a sample of {outcome['sampled']:,} documents"
    head += f"; planned {escape(outcome['planned'])}." if outcome["planned"] else "."
    if outcome["pace"] is not None:
        told = estimated_again(**outcome["pace"])
        head += f" {told[0].upper()}{told[1:]}."
    return [
        "## Plan and outcome",
        "",
        head,
        "",
        *table(("what", "predicted", "measured", "measured / predicted"), rows),
    ]


def _quantity(value: float | None, unit: str) -> str:
    if value is None:
        return "not known"
    if unit == "bytes":
        return amount(value)
    return duration(value) if unit == "seconds" else f"{value:,.0f}"


def _ratio(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"


def _store(store: Mapping[str, Any] | None) -> list[str]:
    """What persisted caches did for the run."""
    if not store:
        return []
    parts = [
        ("loaded", "loaded"),
        ("shared", "shared in memory"),
        ("recomputed", "recomputed"),
        ("computed", "not there yet"),
        ("stored", "stored"),
    ]
    counts = ", ".join(f"{words} {store[name]:,}" for name, words in parts if store.get(name))
    saved = f": {duration(store['saved_seconds'])} saved" if store.get("saved_seconds", 0) > 0 else ""
    lines = [f"Caches of documents and instructions: {counts or 'none'}{saved}.", ""]
    warnings = {name: count for name, count in store.get("warnings", {}).items() if count}
    if warnings:
        lines += [
            f"**The KV store met with trouble, which cost time and no answers:** {_fact(warnings)}.",
            "",
        ]
    if store.get("declined"):
        lines += [f"Caches that were not stored: {_fact(store['declined'])}.", ""]
    return lines + [f"{escape(note, 400)}" for note in store.get("notes", ())]


def _fact(value: Any) -> str:
    if isinstance(value, Mapping):
        shown = ", ".join(f"{name} {inner}" for name, inner in list(value.items())[:50])
    else:
        shown = (
            "; ".join(map(str, value))
            if isinstance(value, list)
            else f"{value:,}"
            if type(value) is int
            else str(value)
        )
    return escape(shown, 1000)


def _runs(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [
        (
            f"{run['run']}",
            run["started"],
            run["ended"] or "",
            "" if run["seconds"] is None else duration(run["seconds"]),
            _code(run["exit_code"]),
            escape(run["reason"] or "", 300),
        )
        for run in runs[-20:]
    ]
    return (
        ["## Runs", "", *table(("run", "started", "ended", "time", "exit code", "ended because"), rows)]
        if rows
        else []
    )


def _code(code: int | None) -> str:
    return "" if code is None else str(code)
