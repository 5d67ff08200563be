"""``overnight plan``: the decision with its reasons, what it predicts, what would make it better; tables and
plots of the model.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.cli.common import AsJson, ConfigPath, Overrides, print_facts
from pipeline.errors import EXIT_DONE, EXIT_USAGE, UsageError

if TYPE_CHECKING:
    from pipeline.prepare.preview import Preview
    from pipeline.system.hardware import Hardware

_BAR = 30
_FREE = "200GB"


def plan(
    config: ConfigPath,
    overrides: Overrides = None,
    hardware: Annotated[
        Path | None, typer.Option(help="Plan for the machine that this YAML or JSON file describes.")
    ] = None,
    vram: Annotated[
        str | None,
        typer.Option(
            help="Plan for another machine: its graphics card(s), e.g. 24GiB, 2x24GiB or rtx4060; 0 for none."
        ),
    ] = None,
    ram: Annotated[str | None, typer.Option(help="... its RAM, e.g. 64GiB.")] = None,
    pcie: Annotated[str | None, typer.Option(help="... the link between them, e.g. 4.0x16.")] = None,
    cores: Annotated[int | None, typer.Option(min=1, help="... its processor cores.")] = None,
    disk: Annotated[
        str,
        typer.Option(
            help=f"... its disk: nvme, sata or hdd, and what is free, e.g. nvme:500GB; else {_FREE}."
        ),
    ] = "nvme",
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Load the model and time it on a few of the documents first; kept."),
    ] = False,
    tables: Annotated[
        bool,
        typer.Option(
            "--tables", help="Also tables: cache by context, tokens by kind of attention, models by card."
        ),
    ] = False,
    plots: Annotated[
        Path | None,
        typer.Option(help="Also write plots of memory and time by context length into this folder."),
    ] = None,
    plot_format: Annotated[str, typer.Option(help="png or svg.")] = "png",
    as_json: AsJson = False,
) -> None:
    """Show what a run would decide and how long it would take, on this machine or another one, without
    loading weights.
    """
    from pipeline.config import load_config

    settings = load_config(config, overrides or ())
    machine = _machine(hardware, vram, ram, pcie, cores, disk)
    if plots is not None:
        from pipeline.results.plots import require_plots

        require_plots(plots, plot_format)
    if measure:
        if machine is not None:
            raise UsageError(
                "--measure times this machine; it says nothing about another one. Leave out one of the two"
            )
        from pipeline.bench.compare import measure_speeds

        measure_speeds(settings, lambda text: print(text, file=sys.stderr))
    from pipeline.prepare.preview import look

    found = look(settings, machine)
    drawn = []
    if plots is not None:
        from pipeline.cli.plan_plots import draw

        drawn = draw(found, plots, plot_format)
    _show(found, tables=tables, drawn=drawn, as_json=as_json)
    raise typer.Exit(EXIT_USAGE if found.refused and machine is None else EXIT_DONE)


def _machine(
    hardware: Path | None, vram: str | None, ram: str | None, pcie: str | None, cores: int | None, disk: str
) -> Hardware | None:
    """The machine asked about; None for this one. Raises ConfigError, UsageError."""
    words = {"--vram": vram, "--ram": ram, "--pcie": pcie, "--cores": cores}
    if hardware is not None:
        used = [name for name, value in words.items() if value is not None]
        if used:
            raise UsageError(f"{used[0]} and --hardware both describe the machine; use one of them")
        from pipeline.system.hardware_spec import read_hardware

        return read_hardware(hardware)
    if all(value is None for value in words.values()):
        return None
    from pipeline.system.hardware_spec import described

    return described(
        None if vram == "0" else vram, ram, pcie, cores, disk if ":" in disk else f"{disk}:{_FREE}"
    )


def _show(found: Preview, *, tables: bool, drawn: list[Path], as_json: bool) -> None:
    if as_json:
        print_facts(facts(found, tables=tables, drawn=drawn), [])
        return
    lines = [*_decision(found), *_predictions(found), *_documents(found), *_advice(found)]
    print("\n".join(lines))
    if tables:
        print("\n" + "\n".join(_tables(found)))
    for path in drawn:
        print(f"plot: {path}")


def facts(found: Preview, *, tables: bool = False, drawn: list[Path] | None = None) -> dict[str, Any]:
    """Everything as plain values: every number with its unit and formula."""
    forecast, tokens = found.forecast, found.tokens
    said: dict[str, Any] = {
        "plan": dataclasses.asdict(found.plan) if found.plan else None,
        "refused": found.refused,
        "cannot_plan": found.ground.cannot_plan,
        "tasks": found.fingerprints,
        "notes": [*dict.fromkeys(note for task in found.tasks for note in task.notes), *found.remarks],
        "model": found.ground.facts.shape.describe() if found.ground.facts.shape else None,
        "machine": dataclasses.asdict(found.ground.machine),
        "quantities": {quantity.name: quantity.to_json() for quantity in found.quantities},
        "documents": {
            "count": found.documents,
            "characters": found.characters,
            "sampled": len(found.lengths),
            "tokens": tokens.value if tokens else None,
            "tokens_error": tokens.error if tokens else None,
            "histogram": [
                {"from": low, "to": high, "sampled": count} for low, high, count in found.histogram()
            ],
        },
        "plots": [str(path) for path in drawn or ()],
    }
    if forecast is not None:
        names = (
            "verdict",
            "reasons",
            "warnings",
            "next_steps",
            "layout",
            "keep_documents",
            "cache_place",
            "rows",
        )
        said["forecast"] = {name: getattr(forecast, name) for name in names}
    if tables:
        said["tables"] = _table_facts(found)
    return said


def _decision(found: Preview) -> list[str]:
    if found.forecast is None:
        return [str(found.ground.cannot_plan), *_not_foretold(found)]
    verdicts = {
        "resident": "it fits",
        "cache offloaded": "it fits with its cache outside of the card",
        "split": "it works, split over memories",
        "does not fit": "it does not fit",
    }
    lines = [
        f"Decision: {verdicts[found.forecast.verdict]}.",
        *(f"  - {reason}" for reason in found.forecast.reasons),
    ]
    if found.plan is not None:
        lines.append(
            f"  - batches of at most {found.plan.max_batch_rows} rows and {found.plan.batch_tokens:,} "
            f"tokens; layout {found.plan.layout}"
        )
    return lines


def _not_foretold(found: Preview) -> list[str]:
    if found.ground.facts.shape is not None:
        return [
            "a run works all the same, with batches as for a Llama of these widths; memory is not predicted"
        ]
    reasons = found.plan.reasons if found.plan else ()
    return [
        "a run works all the same; memory and time are not predicted",
        *(f"  - {reason}" for reason in reasons),
    ]


def _predictions(found: Preview) -> list[str]:
    shown = [
        quantity
        for quantity in found.quantities
        if quantity.value or (quantity.value is None and quantity.unit == "seconds")
    ]
    if not shown:
        return []
    width = max(len(quantity.name) for quantity in shown)
    origin = found.ground.machine.rates.origin
    head = f"Predictions (speeds: {origin})" + (
        "" if found.ground.calibration.measured else "; --measure times the model itself"
    )
    return [
        "",
        f"{head}:",
        *(f"  {quantity.name.replace('_', ' '):{width}}  {quantity.shown}" for quantity in shown),
    ]


def _documents(found: Preview) -> list[str]:
    from pipeline.tasks.registry import kind_of

    tokens = found.tokens
    if tokens is None:
        return []
    lines = [
        "",
        (
            f"Documents: {found.documents:,}, about {tokens.value:,.0f} tokens (± {tokens.error:,.0f} by a "
            f"sample of {len(found.lengths)}):"
        ),
    ]
    for low, high, count in found.histogram():
        if not count:
            continue
        bar = "#" * round(_BAR * count / len(found.lengths))
        lines.append(f"  {low:>9,} to {high - 1:>9,} tokens  {count / len(found.lengths):>4.0%}  {bar}")
    for load in found.loads:
        expected = (
            "as long as max_output_tokens allows"
            if load.output_tokens is None
            else f"{load.output_tokens:.0f} tokens, as seen before"
        )
        if kind_of(load.kind).writes_text:
            lines.append(
                f"  task {load.name}: {load.questions_a_document:.1f} requests a document; answers {expected}"
            )
    return lines


def _advice(found: Preview) -> list[str]:
    from pipeline.prepare.preview import advice_lines

    lines = [f"  ! {line}" for line in advice_lines(found)]
    steps = [f"  > {step}" for step in (found.forecast.next_steps if found.forecast else ())]
    return [
        *(["", "Worth knowing:", *lines] if lines else []),
        *(["", "For the next better step:", *steps] if steps else []),
    ]


def _free_bytes(found: Preview) -> int:
    """What is left for a cache beside the weights."""
    from pipeline.planner.budget import rooms
    from pipeline.planner.plan import usable

    shape, wish = found.ground.shape, found.ground.wish
    return max(
        0,
        rooms(usable(found.config, found.ground.machine)).device_bytes
        - shape.weights_bytes(wish.quantization, wish.dtype),
    )


def _tables(found: Preview) -> list[str]:
    from pipeline.planner import tables

    shape, dtype, free = found.ground.shape, found.ground.wish.dtype, _free_bytes(found)
    return [
        tables.render_cache(shape, dtype, tables.cache_table(shape, dtype)),
        tables.render_attention(free, tables.attention_table(shape, dtype, free)),
        tables.render_sizes(tables.sizes_table([("this model", shape), *tables.common_sizes()])),
    ]


def _table_facts(found: Preview) -> dict[str, Any]:
    from pipeline.planner import tables

    shape, dtype = found.ground.shape, found.ground.wish.dtype
    rows = {
        "cache": tables.cache_table(shape, dtype),
        "attention": tables.attention_table(shape, dtype, _free_bytes(found)),
        "sizes": tables.sizes_table([("this model", shape), *tables.common_sizes()]),
    }
    return {name: [dataclasses.asdict(row) for row in found_rows] for name, found_rows in rows.items()}  # type: ignore[attr-defined]
