"""The library's decoders by name, each over a model that is already loaded. One that is not for this model is
replaced by our static batches, and the sentence beside it says so and why.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pipeline.bench.library.base import LibraryEngine, disagreement
from pipeline.bench.library.generate import GenerateEngine
from pipeline.bench.library.generate_batch import ContinuousLibraryEngine
from pipeline.engine.interface import Engine
from pipeline.engine.model.forward import attention_as
from pipeline.engine.model.loading import LoadedModel
from pipeline.engine.packed.support import spread
from pipeline.engine.select import static_engine
from pipeline.engine.static.plain import PlainEngine
from pipeline.records import Plan

LibraryDecoder = Literal["generate", "generate_batch"]
_KINDS: dict[LibraryDecoder, type[LibraryEngine]] = {
    "generate": GenerateEngine,
    "generate_batch": ContinuousLibraryEngine,
}
_WORDS = {
    "generate": "generate of transformers",
    "generate_batch": "continuous batching of transformers",
}


def open_library(
    name: LibraryDecoder, loaded: LoadedModel, plan: Plan, *, end_ids: Sequence[int], pad_id: int
) -> tuple[Engine, str]:
    """The library's decoder called ``name``, and what it is. Scores, which the library has none of, are ours
    in static batches.
    """
    static, told = static_engine(loaded, plan, end_ids=end_ids, pad_id=pad_id)
    if plan.placement != "device":
        return static, told
    if not isinstance(static, PlainEngine):
        return static, f"{told}; {_WORDS[name]} is not for streamed weights"
    attention = str(loaded.facts["attention"])
    with attention_as(loaded.model, attention):
        reason = loaded.trials.reason_against(
            _WORDS[name], lambda: _unsuited(_KINDS[name], loaded, plan, pad_id, attention)
        )
        if reason is not None:
            return static, f"{told}; {_WORDS[name]} is off for this model: {reason}"
        engine = _KINDS[name](
            loaded.model, plan, end_ids=end_ids, pad_id=pad_id, static=static, attention=attention
        )
    return engine, f"texts by {_WORDS[name]}, scores in static batches"


def _unsuited(
    kind: type[LibraryEngine], loaded: LoadedModel, plan: Plan, pad_id: int, attention: str
) -> str | None:
    if not kind.spread and (reason := spread(loaded.model)) is not None:
        return reason
    static = PlainEngine(loaded.model, plan, end_ids=(), pad_id=pad_id, attention=attention)
    trial = kind(loaded.model, plan, end_ids=(), pad_id=pad_id, static=static, attention=attention)
    return disagreement(trial, loaded.model, plan)
