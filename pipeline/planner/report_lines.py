"""A forecast as numbers with their units and formulas: what ``plan --json`` prints and the report sets beside
the outcome.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from pipeline.planner.forecast import Forecast
from pipeline.planner.model.shape import ModelShape
from pipeline.system.units import amount, duration

Unit = Literal[
    "bytes",
    "seconds",
    "tokens",
    "rows",
    "documents an hour",
    "tokens a second",
    "times",
    "parameters",
    "percent",
]


_STEP_ON_CARD = (
    "a prediction: max((weights + 16-bit copies + cache + logits) / 80 % of the bandwidth, "
    "operations / 50 % of the rate) + launches x 6 us (a replay: 10 us + 1 us a node) + waits x 15 us"
)


@dataclass(frozen=True, slots=True)
class Quantity:
    """One number. ``value`` None: not known, as a rate of the machine is not."""

    name: str
    value: float | None
    unit: Unit
    formula: str

    @property
    def shown(self) -> str:
        """For people."""
        if self.value is None:
            return "not known"
        if self.unit == "bytes":
            return amount(self.value)
        if self.unit == "seconds":
            return duration(self.value) if self.value >= 0 else f"-{duration(-self.value)}"
        if self.unit == "percent":
            return f"{self.value:.0f} %"
        return f"{self.value:,.1f} times" if self.unit == "times" else f"{self.value:,.0f} {self.unit}"

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def quantities(forecast: Forecast, shape: ModelShape, dtype: str) -> list[Quantity]:
    """Every number of the forecast, in the order in which people ask for them."""
    return [
        *_model(shape, dtype),
        *_memory(forecast),
        *_speed(forecast),
        *_night(forecast),
        *_store(forecast),
    ]


def _model(shape: ModelShape, dtype: str) -> list[Quantity]:
    return [
        Quantity(
            "parameters",
            shape.parameters,
            "parameters",
            "sum of rows x columns x copies over all weights, tied ones once",
        ),
        Quantity(
            "kv_bytes_per_token",
            shape.kv_bytes_per_token(dtype),
            "bytes",
            "sum over layers of KV heads x (key + value width) x bytes",
        ),
        Quantity(
            "fixed_bytes_per_row",
            shape.fixed_bytes_per_row(dtype),
            "bytes",
            "recurrent and convolution states, whatever the length",
        ),
    ]


def _memory(forecast: Forecast) -> list[Quantity]:
    weights = forecast.weights_bytes
    return [
        Quantity(
            "weights_on_device",
            weights["device"],
            "bytes",
            "by module at its quantization; what bitsandbytes does not shrink is full",
        ),
        Quantity("weights_in_ram", weights["ram"], "bytes", "what the device does not hold, and RAM does"),
        Quantity("weights_on_disk", weights["disk"], "bytes", "the rest"),
        Quantity(
            "cache",
            forecast.cache_bytes,
            "bytes",
            "pages of the longest rows together, and shared prefixes; elsewhere rows x length",
        ),
        Quantity(
            "cache_room", forecast.cache_room_bytes, "bytes", "half of what is left beside weights and a pass"
        ),
        Quantity(
            "activations",
            forecast.activation_bytes,
            "bytes",
            "the fullest moment of a pass x the allocator's share",
        ),
        Quantity(
            "vram_peak",
            forecast.vram_peak_bytes,
            "bytes",
            "CUDA context + weights + cache + activations on the cards",
        ),
        Quantity(
            "ram_peak",
            forecast.ram_peak_bytes,
            "bytes",
            "max of loading and working: process + weights + mapped files + cache + pass",
        ),
        Quantity(
            "ram_mapped",
            forecast.ram_mapped_bytes,
            "bytes",
            "of the RAM peak, pages of weight files that the system takes back",
        ),
        Quantity(
            "disk_peak",
            forecast.disk_peak_bytes,
            "bytes",
            "offloaded weights + offloaded cache + kept documents' caches",
        ),
        Quantity("rows", forecast.rows, "rows", "min(limit, cache room / cache of a typical row)"),
    ]


def _speed(forecast: Forecast) -> list[Quantity]:
    step = forecast.step
    tokens = forecast.rows / step.seconds if step else None
    return [
        Quantity(
            "load",
            forecast.load_seconds,
            "seconds",
            "measured, else max(file bytes / disk rate, file bytes / link rate)",
        ),
        Quantity(
            "prefill_of_full_context",
            forecast.prefill_seconds,
            "seconds",
            "(2 N n + 4 d n^2 / 2) / arithmetic rate",
        ),
        Quantity(
            "decode_step",
            step.seconds if step else None,
            "seconds",
            _STEP_ON_CARD
            if forecast.bandwidth_share is not None
            else "max(weights + cache over memory rate, 2 N rows / arithmetic, transfer)",
        ),
        Quantity("decode_rate", tokens, "tokens a second", "rows / step"),
        Quantity(
            "bandwidth_share",
            None if forecast.bandwidth_share is None else 100 * forecast.bandwidth_share,
            "percent",
            "a prediction: (weights once + valid cache once) / bandwidth of the data sheet / step",
        ),
        Quantity("transferred_a_step", forecast.transfer_bytes, "bytes", "offloaded weights and cache"),
        Quantity(
            "transfer_a_step",
            step.transfer_seconds if step else None,
            "seconds",
            "transferred bytes / link rate, one way",
        ),
        Quantity(
            "slowdown", step.slowdown if step else None, "times", "step / step with everything on the device"
        ),
    ]


def _night(forecast: Forecast) -> list[Quantity]:
    work = forecast.work
    spare = None
    if work and forecast.deadline_seconds is not None:
        spare = forecast.deadline_seconds - (forecast.load_seconds or 0.0) - work.seconds
    found = [
        Quantity(
            "work",
            work.seconds if work else None,
            "seconds",
            "sum over tasks of reading and writing, by regression on the sample",
        ),
        Quantity(
            "work_error",
            work.seconds * work.relative_error if work else None,
            "seconds",
            "one standard error by the sample of lengths",
        ),
        Quantity("until_deadline", forecast.deadline_seconds, "seconds", "from now to the next run.deadline"),
        Quantity("spare_time", spare, "seconds", "until deadline - load - work; below nought it is too late"),
        Quantity(
            "documents_an_hour",
            work.documents_per_hour if work else None,
            "documents an hour",
            "documents / work x 3600",
        ),
    ]
    for task in forecast.tasks:
        found += [
            Quantity(
                f"{task.name}: tokens to read",
                task.read_tokens.value,
                "tokens",
                "prompts behind what is shared, and label trees",
            ),
            Quantity(
                f"{task.name}: tokens to write",
                task.written_tokens.value,
                "tokens",
                "answers x expected length, else max_output_tokens",
            ),
            Quantity(f"{task.name}: reading", task.read_seconds.value, "seconds", "sum of prefill times"),
            Quantity(f"{task.name}: writing", task.write_seconds.value, "seconds", "tokens x step / rows"),
        ]
    return found


def _store(forecast: Forecast) -> list[Quantity]:
    return [
        Quantity(
            "reuse_crossover",
            forecast.crossover_tokens,
            "tokens",
            "the least n whose stored bytes / read rate < its prefill time: what the store decides by",
        ),
        Quantity(
            "store",
            forecast.store_bytes,
            "bytes",
            "caches of all documents as they would be stored, whatever the quota",
        ),
    ]
