"""Transformers behind the ``Backend`` seam: what a model is, and an engine on its loaded weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from pipeline.config import Config
from pipeline.engine.base import Engine
from pipeline.engine.caches import Caches, open_caches
from pipeline.engine.choice import Decoder, chosen_decoder, remember
from pipeline.engine.contest import Contest
from pipeline.engine.decoders import open_decoder
from pipeline.engine.disk_cache import DiskLayer
from pipeline.engine.identity import tokenizer_identity, weights_identity
from pipeline.engine.loading import LoadedModel, load_model
from pipeline.engine.location import Location, locate
from pipeline.engine.numerics import architecture, resolve_attention, resolve_dtype
from pipeline.engine.streaming.opening import open_streamed, why_streamed
from pipeline.engine.tokenizer import ChatTokenizer, load_tokenizer
from pipeline.records import Plan


class TransformersBackend:
    """Any causal language model with safetensors weights; see ``pipeline.engine.base.Backend``."""

    def __init__(self, config: Config, say: Callable[[str], None] = lambda _: None) -> None:
        self._config = config
        self._say = say
        self._caches: Caches | None = None

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
            "id": self._config.model.id,
            "revision": self._config.model.revision,
            "weights": self._weights,
            "tokenizer": tokenizer_identity(self._location),
        }

    def resolve(self) -> Mapping[str, str]:
        """What ``auto`` means on this machine."""
        model = self._config.model
        attention = resolve_attention(model.attention, self._location, model)
        return {"dtype": resolve_dtype(model.dtype, model.device_map), "attention": attention}

    def model_config(self) -> Mapping[str, Any]:
        """The model's configuration with its defaults filled in."""
        described: dict[str, Any] = architecture(self._location, self._config.model).to_dict()
        return described

    def open_engine(self, plan: Plan, offload_folder: Path, say: Callable[[str], None]) -> tuple[Engine, Mapping[str, Any]]:
        """Load the weights; the decoder asked for where it is for this model, else static batches, with the reason."""
        if plan.threads is not None:
            torch.set_num_threads(plan.threads)
        loaded = self._load(plan, offload_folder, say)
        tokenizer = self._tokenizer
        DiskLayer.folder = offload_folder / "kv"
        name = chosen_decoder(self._config, plan.dtype, device_name(loaded.input_device))
        self._caches, told = open_caches(self._config, plan, loaded, self._weights, say)
        engine, kind = open_decoder(name, loaded, plan, end_ids=tokenizer.end_ids, pad_id=tokenizer.pad_id, caches=self._caches)
        return engine, {**loaded.facts, "engine": kind, "kv_store": told}

    def _load(self, plan: Plan, offload_folder: Path, say: Callable[[str], None]) -> LoadedModel:
        reason = why_streamed(self._config, self._location, plan)
        if reason is not None:
            return open_streamed(self._config, self._location, plan.dtype, self._weights, say, reason, plan.streaming)
        return load_model(self._config.model, plan.dtype, offload_folder, say, self._location)

    def store_facts(self, *, close: bool = False) -> Mapping[str, Any]:
        """What became of persisted caches so far; with ``close`` after the last of them is written."""
        if self._caches is None:
            return {}
        return self._caches.shelf.close() if close else self._caches.shelf.facts()

    def open_contest(self, plan: Plan, offload_folder: Path, say: Callable[[str], None], *, to_the_end: bool) -> Contest:
        """Load the weights for a comparison of decoders. ``to_the_end``: end tokens are tokens like others."""
        if plan.threads is not None:
            torch.set_num_threads(plan.threads)
        loaded = self._load(plan, offload_folder, say)
        DiskLayer.folder = offload_folder / "kv"
        end_ids = () if to_the_end else self._tokenizer.end_ids
        return Contest(loaded, plan, end_ids=end_ids, pad_id=self._tokenizer.pad_id)

    def keep_decoder(self, contest: Contest, decoder: Decoder) -> None:
        """Remember ``decoder`` as what ``engine.decoder: auto`` means for this model on this device."""
        remember(self._config, contest.plan.dtype, device_name(contest.device), decoder)


def device_name(device: torch.device) -> str:
    """The card's name, or the kind of device where there is one kind."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
