"""A model without weights: which layers it is a list of, which of its tensors belong to which layer, and what
lies outside of them.

Parameters are on the meta device; buffers that are computed and not stored (rotary frequencies) are real.
Products in 4 bits are plain products here: their weights come dequantized, once for all rows that pass.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook

from pipeline.config import ModelConfig
from pipeline.engine.model.library_logging import import_bitsandbytes
from pipeline.engine.model.location import Location
from pipeline.engine.model.meta import build_on_meta
from pipeline.engine.model.precision import architecture, resolve_attention
from pipeline.errors import ConfigError


@dataclass(slots=True)
class MetaModel:
    """``model`` and the path of its list of layers. ``quantizer`` is the library's, None in plain numbers."""

    model: Any
    layers_path: str
    quantizer: Any
    tensors: dict[str, str] = field(default_factory=dict)
    """The group of every stored tensor: ``layer-00007`` or, for what lies outside of the layers, the tensor's
    own name.
    """

    @property
    def layers(self) -> list[Any]:
        """The decoder's layers, in order."""
        return list(self.model.get_submodule(self.layers_path))

    def groups(self) -> dict[str, list[str]]:
        """Names of tensors by group, in the model's order."""
        found: dict[str, list[str]] = {}
        for name, group in self.tensors.items():
            found.setdefault(group, []).append(name)
        return found


def build_skeleton(config: ModelConfig, location: Location, dtype: str) -> MetaModel:
    """The quantized model as the library would fill it, on the meta device. Raises ConfigError with the
    reason where it cannot stream.
    """
    built = architecture(location, config)
    if getattr(built, "quantization_config", None) is not None:
        raise ConfigError(
            f"{config.id} is stored quantized, and weights are streamed from a model stored in plain "
            f"numbers; name that one, or set "
            "engine.weights: resident"
        )
    model, quantizer = build_on_meta(
        built,
        config,
        dtype,
        attention=resolve_attention(config.attention, location, config),
        place=parameters_on_meta(),
    )
    model.eval()
    meta_model = MetaModel(model, _layers_path(model, config.id), quantizer)
    meta_model.tensors = _grouped(meta_model)
    return meta_model


@contextlib.contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Inside, parameters of modules that this thread builds are moved to the meta device as soon as a module
    has them; memory that nobody touches is never taken.
    """
    builder = threading.get_ident()

    def on_meta(
        _: torch.nn.Module, __: str, parameter: torch.nn.Parameter | None
    ) -> torch.nn.Parameter | None:
        if parameter is None or parameter.device.type == "meta" or threading.get_ident() != builder:
            return None  # it stays as it is
        return torch.nn.Parameter(parameter.to("meta"), requires_grad=False)

    # the library's signature forgets that a hook may return another parameter
    registration = register_module_parameter_registration_hook(on_meta)  # type: ignore[arg-type]
    try:
        yield
    finally:
        registration.remove()


def _layers_path(model: Any, name: str) -> str:
    """Path of the one list that has as many modules as the model has layers. Raises ConfigError."""
    count = getattr(model.config.get_text_config(), "num_hidden_layers", None)
    lists = [
        path
        for path, module in model.named_modules()
        if isinstance(module, torch.nn.ModuleList) and len(module) == count
    ]
    outermost = [
        path for path in lists if not any(path.startswith(f"{other}.") for other in lists if other != path)
    ]
    if len(outermost) != 1:
        raise ConfigError(
            f"the weights of {name} cannot be streamed: its decoder ({type(model).__name__}) is not one "
            f"list of {count} layers; "
            "use a model that fits, or engine.weights: resident with model.quantization: none"
        )
    return str(outermost[0])


def _grouped(meta_model: MetaModel) -> dict[str, str]:
    """Group of each parameter and stored buffer; a tied one is listed under its first name only."""
    prefix, groups, seen = f"{meta_model.layers_path}.", {}, set()
    unsaved = {
        f"{path}.{name}".lstrip(".")
        for path, module in meta_model.model.named_modules()
        for name in module._non_persistent_buffers_set  # noqa: SLF001  # there is no other way to ask
    }
    tied = set(meta_model.model.all_tied_weights_keys)
    named = [*meta_model.model.named_parameters(remove_duplicate=False), *meta_model.model.named_buffers()]
    for name, tensor in named:
        if name in unsaved or name in tied or (id(tensor) in seen and isinstance(tensor, torch.nn.Parameter)):
            continue
        seen.add(id(tensor))
        inside = name.startswith(prefix)
        groups[name] = f"layer-{int(name[len(prefix) :].split('.')[0]):05}" if inside else name
    return groups


def plain_products(meta_model: MetaModel) -> None:
    """Put plain products in the places of those in 4 bits, for weights that come dequantized."""
    if meta_model.quantizer is None:
        return
    kind = import_bitsandbytes().nn.Linear4bit
    for path, module in list(meta_model.model.named_modules()):
        if type(module) is kind:
            with torch.device("meta"):
                plain = torch.nn.Linear(
                    module.in_features,
                    module.out_features,
                    module.bias is not None,
                    dtype=module.compute_dtype,
                )
            meta_model.model.set_submodule(path, plain.requires_grad_(False).eval())
