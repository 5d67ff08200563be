"""From the model's own files to one group of tensors as the model computes with them, by transformers' own
loading.

The library renames, merges (experts) and quantizes; here it is given the files' tensors of one layer at a
time, so that no more than a layer is ever in memory, and every number is the one that loading the whole model
would give.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import torch

from pipeline.config import ModelConfig
from pipeline.engine.model.location import Location, weight_files
from pipeline.engine.model.nf4 import quantizing_in_pieces
from pipeline.engine.model.precision import torch_dtype
from pipeline.engine.streaming.checkpoint_shards import StoredTensor, stored_tensors
from pipeline.engine.streaming.meta_model import MetaModel, build_skeleton
from pipeline.errors import ConfigError


class Conversion:
    """One model's files, and a meta_model that the library fills group by group. ``device`` is where it
    quantizes.
    """

    def __init__(self, config: ModelConfig, location: Location, dtype: str, device: torch.device) -> None:
        from transformers.conversion_mapping import get_model_conversion_mapping

        self._config, self._dtype, self._device = config, torch_dtype(dtype), device
        self.meta_model: MetaModel = build_skeleton(config, location, dtype)
        self._mapping: Any = get_model_conversion_mapping(
            self.meta_model.model, None, self.meta_model.quantizer
        )
        self._sources = self._by_group(stored_tensors(weight_files(location)))
        missing = [group for group in self.meta_model.groups() if group not in self._sources]
        if missing:
            raise ConfigError(
                f"the weight files of {config.id} lack {len(missing)} parts of its architecture, such as "
                f"{missing[0]}"
            )

    def group(self, group: str) -> dict[str, torch.Tensor]:
        """The tensors of ``group`` by name; a weight of a quantized product with its statistics as
        ``name.absmax`` and so on.

        Raises ConfigError where the files lack some or the library cannot convert them.
        """
        names = [name for name, of in self.meta_model.tensors.items() if of == group]
        empty = {name: _tensor(self.meta_model.model, name) for name in names}
        problems = self._load(self._sources[group])
        found: dict[str, torch.Tensor] = {}
        try:
            for name in names:
                tensor = _tensor(self.meta_model.model, name)
                if tensor.device.type == "meta":
                    raise ConfigError(
                        f"the weight files of {self._config.id} lack {name}, or it cannot be made from "
                        f"them{problems}"
                    )
                found.update(_described(name, tensor))
        finally:
            for name, tensor in empty.items():
                _put(self.meta_model.model, name, tensor)
        return found

    def _load(self, sources: Mapping[str, StoredTensor]) -> str:
        from transformers.core_model_loading import convert_and_load_state_dict_in_model
        from transformers.modeling_utils import LoadStateDictConfig

        settings = LoadStateDictConfig(
            dtype=self._dtype,
            # as from_pretrained does
            dtype_plan=self.meta_model.model._get_dtype_plan(self._dtype),  # noqa: SLF001
            device_map={"": str(self._device)},
            hf_quantizer=self.meta_model.quantizer,
            weight_mapping=self._mapping,
        )
        in_pieces = (
            quantizing_in_pieces() if self.meta_model.quantizer is not None else contextlib.nullcontext()
        )
        with in_pieces:
            report, _ = convert_and_load_state_dict_in_model(self.meta_model.model, dict(sources), settings)
        wrong = [
            *report.conversion_errors.values(),
            *(f"{name} has shape {have}, not {want}" for name, have, want in report.mismatched_keys),
        ]
        return f" ({' '.join(str(wrong[0]).split())})" if wrong else ""

    def _by_group(self, stored: Mapping[str, StoredTensor]) -> dict[str, dict[str, StoredTensor]]:
        """The files' tensors by the group that the library would put them into."""
        from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

        renamings = [entry for entry in self._mapping if isinstance(entry, WeightRenaming)]
        converters = [entry for entry in self._mapping if isinstance(entry, WeightConverter)]
        model = self.meta_model.model
        known = model.state_dict()
        found: dict[str, dict[str, StoredTensor]] = {}
        for key, tensor in stored.items():
            target, _ = rename_source_key(key, renamings, converters, model.base_model_prefix, known)
            if target not in known and key in known:
                target, _ = rename_source_key(key, [], [], model.base_model_prefix, known)
            group = self.meta_model.tensors.get(target)
            if group is not None:
                found.setdefault(group, {})[key] = tensor
        return found


def _tensor(model: Any, name: str) -> torch.Tensor:
    path, _, last = name.rpartition(".")
    tensor: torch.Tensor = getattr(model.get_submodule(path), last)
    return tensor


def _put(model: Any, name: str, tensor: torch.Tensor) -> None:
    path, _, last = name.rpartition(".")
    module = model.get_submodule(path)
    if (
        getattr(module, "quant_state", None) is not None
    ):  # a module in 4 bits keeps its weight's statistics, too
        module.quant_state = None
    # no checks wanted
    (module._parameters if last in module._parameters else module._buffers)[last] = tensor  # noqa: SLF001


def _described(name: str, tensor: Any) -> dict[str, torch.Tensor]:
    """A tensor as what is stored of it: a quantized one is several."""
    state = getattr(tensor, "quant_state", None)
    if state is not None:
        return {
            name: tensor.data,
            **{f"{name}.{key}": value for key, value in state.as_dict(packed=True).items()},
        }
    scales = getattr(tensor, "SCB", None)
    if scales is not None:
        return {name: tensor.CB if tensor.CB is not None else tensor.data, f"{name}.SCB": scales}
    return {name: tensor.data}
