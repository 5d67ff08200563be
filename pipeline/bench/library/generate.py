"""Static batches by the library's ``generate``: left-padded, prompts of near lengths together, the longest
first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
)

from pipeline.bench.library.base import LibraryEngine
from pipeline.engine.backoff import RowLimits
from pipeline.engine.batching import batch_columns, chunk_columns, new_tokens, next_batch
from pipeline.engine.model.forward import Forward, attention_as, left_padded
from pipeline.engine.out_of_memory import free_memory, is_out_of_memory, without_frames
from pipeline.engine.static.engine import generation_of
from pipeline.engine.static.generate import NON_FINITE, Output
from pipeline.records import Decode, Generation, Request


class GenerateEngine(LibraryEngine):
    """``model.generate`` on one batch a step. See ``LibraryEngine``."""

    spread = True

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._forward = Forward(self._model)
        self._limits = RowLimits()

    def _work(self) -> Sequence[Generation]:
        batch = next_batch(
            self._queue.values(),
            self._plan,
            row_limit=self._limits.rows,
            equal_lengths=self._forward.equal_lengths,
        )
        for request in batch:
            del self._queue[request.request_id]
        if self.listener is not None:
            self.listener.started([request.request_id for request in batch])
        started = time.perf_counter()
        outcome = self._attempt(batch)
        seconds = (time.perf_counter() - started) / len(batch)
        if isinstance(outcome, Exception):
            self._after_failure(batch, outcome)
            return ()
        done = [(request, output.reply) for request, output in zip(batch, outcome, strict=True)]
        # Numbers that broke in company may hold alone; if not, the static engine records it.
        self._static.admit([request for request, reply in done if reply.error is not None])
        placement = self._plan.placement
        return [
            generation_of(request, reply, placement, len(batch), seconds)
            for request, reply in done
            if reply.error is None
        ]

    def _after_failure(self, batch: Sequence[Request], error: Exception) -> None:
        if is_out_of_memory(error):
            free_memory()
            if len(batch) > 1:
                self._limits.failed(batch_columns(batch), len(batch))
                self._queue.update((request.request_id, request) for request in batch)
                return
        self._give_up(batch, error)

    def _attempt(self, batch: Sequence[Request]) -> list[Output] | Exception:
        """Texts of ``batch``; what the model raises is returned without the frames that hold its tensors."""
        outputs = [Output(request.ask, self._end_ids) for request in batch if isinstance(request.ask, Decode)]
        ids, mask, _ = left_padded([request.ids for request in batch], self._pad_id, self._forward.device)
        watch = _Watch(outputs, self.listener.pulse if self.listener is not None else lambda: None)
        shipped = self._model.generation_config
        # generate fills gaps of what it is given from the model's own
        self._model.generation_config = _settings()
        try:
            with torch.inference_mode(), attention_as(self._model, self._attention):
                self._model.generate(
                    ids,
                    attention_mask=mask,
                    generation_config=self._settings(batch),
                    logits_processor=LogitsProcessorList([_Numbers(watch)]),
                    stopping_criteria=StoppingCriteriaList([watch]),
                )
        except Exception as error:  # noqa: BLE001  # whatever the library raises, the static engine finds out whose it is
            return without_frames(error)
        finally:
            self._model.generation_config = shipped
        return outputs

    def _settings(self, batch: Sequence[Request]) -> GenerationConfig:
        columns = chunk_columns(len(batch), self._plan.prefill_chunk_tokens)
        chunked = columns < max(len(request.ids) for request in batch) and not self._forward.equal_lengths
        return _settings(
            do_sample=False,
            max_new_tokens=max(map(new_tokens, batch)),
            eos_token_id=sorted(self._end_ids) or None,
            pad_token_id=self._pad_id,
            prefill_chunk_size=columns if chunked else None,
        )


def _settings(**values: Any) -> GenerationConfig:
    return GenerationConfig(**values)  # type: ignore[no-untyped-call]  # the library's signature has no types


class _Watch(StoppingCriteria):
    """Takes each row's new token into its output, and tells ``generate`` which rows have ended."""

    def __init__(self, outputs: Sequence[Output], pulse: Callable[[], None]) -> None:
        self._outputs = outputs
        self._pulse = pulse
        self.finite: list[bool] = []

    # the library's signature
    def __call__(self, input_ids: torch.Tensor, scores: object, **_: object) -> torch.Tensor:  # noqa: ARG002
        """(rows,) booleans. ``input_ids`` is (rows, columns), the new token last."""
        for output, token, finite in zip(self._outputs, input_ids[:, -1].tolist(), self.finite, strict=True):
            if not output.ended and not finite:
                output.fail(NON_FINITE)
            elif not output.ended:
                output.push(token)
        self._pulse()
        return torch.tensor([output.ended for output in self._outputs], device=input_ids.device)


class _Numbers(LogitsProcessor):
    """Looks whether the next logits are numbers, and changes nothing."""

    def __init__(self, watch: _Watch) -> None:
        self._watch = watch

    # the library's signature
    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        """``scores`` (rows, vocabulary) as they are."""
        self._watch.finite = scores.max(dim=-1).values.isfinite().tolist()
        return scores
