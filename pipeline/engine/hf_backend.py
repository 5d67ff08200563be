"""Transformers behind the ``Backend`` seam: what a model is, and an engine on its loaded weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from pipeline.config import Config
from pipeline.engine.device_failure import naming_the_device, require_cards
from pipeline.engine.interface import Engine, ModelFacts, PlanRequest
from pipeline.engine.model.cpu_products import speed_up
from pipeline.engine.model.facts import model_facts
from pipeline.engine.model.identity import digest_of_files, tokenizer_identity, weights_identity
from pipeline.engine.model.loading import LoadedModel, load_model
from pipeline.engine.model.location import Location, locate
from pipeline.engine.model.precision import (
    architecture,
    require_quantizer,
    resolve_attention,
    resolve_dtype,
)
from pipeline.engine.model.tokenizer import ChatTokenizer, load_tokenizer
from pipeline.engine.reuse.fingerprint import CacheAccess, open_cache_access
from pipeline.engine.select import select_engine
from pipeline.engine.streaming.load import open_streamed, why_streamed
from pipeline.planner.forecast import decide
from pipeline.planner.plan import plan_of, usable
from pipeline.records import Plan


class TransformersBackend:
    """Any causal language model with safetensors weights; see ``pipeline.engine.interface.Backend``."""

    def __init__(self, config: Config, say: Callable[[str], None] = lambda _: None) -> None:
        self._config = config
        self._say = say
        self._caches: CacheAccess | None = None

    @cached_property
    def _location(self) -> Location:
        return locate(self._config.model, self._say)

    @cached_property
    def _tokenizer(self) -> ChatTokenizer:
        return load_tokenizer(self._config.model, self._location)

    @cached_property
    def _weights(self) -> dict[str, str]:
        return weights_identity(self._config.model, self._location)

    def tokenizer(self) -> ChatTokenizer:
        """The model's tokenizer and chat template."""
        return self._tokenizer

    def identity(self) -> Mapping[str, Any]:
        """Weights and tokenizer, by digest or commit."""
        return {
            "weights": self._weights | digest_of_files(self._location),
            "tokenizer": tokenizer_identity(self._location),
        }

    def resolve(self) -> Mapping[str, str]:
        """What ``auto`` means on this machine. Raises ConfigError."""
        model = self._config.model
        require_quantizer(model)
        attention = resolve_attention(model.attention, self._location, model)
        return {"dtype": resolve_dtype(model.dtype, model.device_map), "attention": attention}

    @cached_property
    def _facts(self) -> ModelFacts:
        model = self._config.model
        return model_facts(architecture(self._location, model), model)

    def facts(self) -> ModelFacts:
        """From the model itself, built without weights."""
        return self._facts

    def plan(self, request: PlanRequest) -> Plan:
        """What the planner decides for this model on that machine. Raises DoesNotFit."""
        shape = self._facts.shape
        assert shape is not None
        forecast = decide(shape, usable(self._config, request.machine), request.wish)
        return plan_of(self._config, shape, request.machine, request.resolved, forecast)

    def open_engine(
        self, plan: Plan, offload_folder: Path, say: Callable[[str], None]
    ) -> tuple[Engine, Mapping[str, Any]]:
        """Load the weights; packed passes where they are for this model, else static batches, with the
        reason. Raises DeviceLost where a card of the plan is gone, or fails.
        """
        require_cards(plan.cards)
        with naming_the_device(plan.cards):
            return self._opened(plan, offload_folder, say)

    def _opened(
        self, plan: Plan, offload_folder: Path, say: Callable[[str], None]
    ) -> tuple[Engine, Mapping[str, Any]]:
        loaded = self.load(plan, offload_folder, say)
        products = speed_up(loaded.model, exact=plan.dtype == "float32")
        tokenizer = self._tokenizer
        self._caches, told = open_cache_access(self._config, plan, loaded, self._weights, say)
        engine, kind = select_engine(
            loaded, plan, end_ids=tokenizer.end_ids, pad_id=tokenizer.pad_id, caches=self._caches
        )
        return engine, {**loaded.facts, "products": products, "engine": kind, "kv_store": told}

    def load(self, plan: Plan, offload_folder: Path, say: Callable[[str], None]) -> LoadedModel:
        """The weights alone, resident or streamed, where the plan wants them."""
        if plan.threads is not None:
            torch.set_num_threads(plan.threads)
        reason = why_streamed(self._config, self._location, plan)
        loaded = (
            load_model(
                self._config.model,
                plan.dtype,
                offload_folder,
                say,
                self._location,
                plan.unpacked,
                plan.weights,
            )
            if reason is None
            else open_streamed(
                self._config, self._location, plan.dtype, self._weights, say, reason, plan.streaming
            )
        )
        return replace(loaded, kv_folder=offload_folder / "kv")

    def store_facts(self, *, close: bool = False) -> Mapping[str, Any]:
        """What became of persisted caches so far; with ``close`` after the last of them is written."""
        if self._caches is None:
            return {}
        return self._caches.session.close() if close else self._caches.session.facts()
