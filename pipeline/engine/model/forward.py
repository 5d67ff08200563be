"""How a causal language model is called: which arguments its family takes, on which device, and what comes
back.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import torch

from pipeline.engine.kv.cache import AnyCache, needs_equal_lengths
from pipeline.engine.transfers import carried

_CACHE_ARGUMENTS = ("cache", "past_key_values", "cache_params")
# Families without position ids that place tokens by the attention mask (ALiBi): padding on the left is fine
# for them.
_POSITIONS_BY_MASK = frozenset({"bloom", "mpt"})


def input_device(model: Any) -> torch.device:
    """Where token ids go: the device of the input embedding. An offloaded or streamed one computes where it
    says.
    """
    embedding = model.get_input_embeddings()
    if (streamed := getattr(embedding, "computes_on", None)) is not None:
        return torch.device(streamed)
    hook = getattr(embedding, "_hf_hook", None)
    execution_device = getattr(hook, "execution_device", None)
    return torch.device(execution_device if execution_device is not None else embedding.weight.device)


def attend_by(model: Any, implementation: str) -> None:
    """From now on ``model`` attends by ``implementation``. Costs nothing where nothing changes."""
    # the setting has no public reader
    if model.config._attn_implementation != implementation:  # noqa: SLF001
        model.set_attn_implementation(implementation)


@contextlib.contextmanager
def attention_as(model: Any, implementation: str) -> Iterator[None]:
    """Inside, ``model`` attends by ``implementation``; afterwards as it did before."""
    found = model.config._attn_implementation  # noqa: SLF001  # as above
    attend_by(model, implementation)
    try:
        yield
    finally:
        attend_by(model, found)


def lay_out_for_head(model: Any) -> None:
    """Give the model's head its input in one piece.

    The last column of many is a slice; a product with it is done on a processor row by row, and copies the
    head's whole matrix for each. Measured with the demo model's head and 8 rows: 2.1 times as long in
    float32, 290 times in bfloat16.
    """
    head = model.get_output_embeddings()
    if head is not None:
        head.register_forward_pre_hook(lambda _module, inputs: (inputs[0].contiguous(), *inputs[1:]))


def _layers(model: Any) -> Sequence[Any]:
    """The model's layers: the first list of as many modules as its configuration counts."""
    count = getattr(model.config.get_text_config(decoder=True), "num_hidden_layers", None)
    lists = (module for module in model.modules() if isinstance(module, torch.nn.ModuleList))
    return next((list(layers) for layers in lists if len(layers) == count), [])


def _device_of(layer: Any, otherwise: torch.device) -> torch.device:
    """Where ``layer`` computes: where the library's hook brings it, or where its weights are."""
    for module in layer.modules():
        execution_device = getattr(getattr(module, "_hf_hook", None), "execution_device", None)
        if execution_device is not None:
            return torch.empty(0, device=execution_device).device  # it may be a number or a name
    weights = next(layer.parameters(), None)
    return otherwise if weights is None or weights.device.type == "meta" else weights.device


class Forward:
    """One model behind one signature. The model is already loaded and placed; it is never moved."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model: Any = model
        self.after_pass: Callable[[], None] = lambda: None
        self.config: Any = model.config
        parameters = inspect.signature(type(model).forward).parameters
        names = [name for name in _CACHE_ARGUMENTS if name in parameters]
        if not names:
            raise TypeError(
                f"{type(model).__name__} takes no cache: only decoder models that keep keys and values "
                f"can be used"
            )
        self._cache_argument = names[0]
        self._takes_positions = "position_ids" in parameters
        self._keeps_few_logits = "logits_to_keep" in parameters
        placed = self._takes_positions or getattr(self.config, "model_type", "") in _POSITIONS_BY_MASK
        self.equal_lengths = needs_equal_lengths(self.config) or not placed

    @property
    def device(self) -> torch.device:
        """Where ids go."""
        return input_device(self.model)

    @cached_property
    def layer_devices(self) -> Sequence[torch.device]:
        """Where each layer computes, in their order; empty where all do so on the device of the ids."""
        layers = _layers(self.model)
        found = [_device_of(layer, self.device) for layer in layers]
        return found if set(found) - {self.device} else ()

    @property
    def vocabulary_tokens(self) -> int:
        """Rows of the input embedding: ids at or above it cannot be looked up."""
        return int(self.model.get_input_embeddings().weight.shape[0])

    def __call__(
        self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, cache: AnyCache, keep: int = 1
    ) -> torch.Tensor:
        """Logits (rows, keep, vocabulary) of the last ``keep`` columns; the cache grows by the columns of
        ``ids``.

        ``ids`` and ``positions`` are (rows, columns), ``mask`` is (rows, cached + new columns) with 0 at
        padding.
        """
        arguments: dict[str, Any] = {
            "input_ids": ids,
            "attention_mask": mask,
            self._cache_argument: cache,
            "use_cache": True,
        }
        if self._takes_positions:
            arguments["position_ids"] = positions
        if self._keeps_few_logits:
            arguments["logits_to_keep"] = keep
        logits: torch.Tensor = self.model(**arguments).logits
        self.after_pass()
        return logits[:, -keep:]


def left_padded(
    rows: Sequence[Sequence[int]], pad_id: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(ids, mask, positions) of shape (rows, longest), padding on the left; positions count real tokens from
    0.
    """
    longest = max(len(row) for row in rows)
    ids = torch.tensor([[pad_id] * (longest - len(row)) + list(row) for row in rows], dtype=torch.long)
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows], dtype=torch.long)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    return carried(ids, device), carried(mask, device), carried(positions, device)


def right_padded(
    rows: Sequence[Sequence[int]], pad_id: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids, mask) of shape (rows, longest), padding on the right."""
    longest = max(len(row) for row in rows)
    ids = torch.tensor([list(row) + [pad_id] * (longest - len(row)) for row in rows], dtype=torch.long)
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows], dtype=torch.long)
    return carried(ids, device), carried(mask, device)


def synchronize() -> None:
    """Wait for what the device still has to compute; nothing to wait for on a CPU."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
