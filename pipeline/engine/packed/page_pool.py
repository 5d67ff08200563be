"""The one pool of keys and values: as many pages as the plan allows, allocated once, never more.

Who has which page is the allocator's business (``page_allocator``); here lie the numbers. A layer's keys are
(tokens of the pool, G, D), its values likewise, so that a run is a slice. On a processor each head's keys lie
together, which reads 1.8 times as fast as all heads of a token side by side; memory is taken from the system
page by page as it is first written. On a card all layers are one piece of memory, taken at once: layer by
layer, each would lie in a hole that a pass has left and would need again (Qwen3-8B on 12 GiB held 1.6 GiB of
such pieces). One page more is there for rows that only fill up a pass to a shape that was captured.

Shapes: G KV heads, D head width.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch

from pipeline.engine.packed.page_allocator import Move, Run
from pipeline.engine.packed.sequence import PAGE_TOKENS, first_token

_KeysValues = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class TokenForm:
    """What a layer keeps of one token as keys, or as values: ``heads`` x ``width`` numbers."""

    heads: int
    width: int
    dtype: torch.dtype

    @classmethod
    def of(cls, states: torch.Tensor) -> TokenForm:
        """Of keys or values (..., G, D)."""
        heads, width = states.shape[-2:]
        return cls(heads, width, states.dtype)

    @property
    def nbytes(self) -> int:
        """Of one token."""
        return self.heads * self.width * self.dtype.itemsize


Forms = Mapping[int, tuple[TokenForm, TokenForm]]
"""Of keys and of values, by layer."""


class KvPool:
    """Keys and values of ``pages`` pages, for all layers: allocated when they are first written, or together
    (``allocate``).
    """

    def __init__(self, pages: int, device: torch.device) -> None:
        self.device = device
        self.tokens = 0
        self.generation = 0
        """Grows when the memory is another; what was captured with the old one is void."""
        self._layers: dict[int, _KeysValues] = {}
        self.resize(pages)

    def resize(self, pages: int) -> None:
        """``pages`` pages from now on, of which nothing is known; the old ones are given back first."""
        self.release()
        self.tokens = (pages + (self.device.type != "cpu")) * PAGE_TOKENS

    def release(self) -> None:
        """Give the memory back; whatever was in it is lost."""
        self.generation += bool(self._layers)
        self._layers.clear()

    def allocate(self, forms: Forms) -> None:
        """Have all layers' memory now, where that is of a card; nothing where it is there already."""
        if self._layers or self.device.type == "cpu":
            return
        each = [form for pair in forms.values() for form in pair]
        ends = list(accumulate((form.nbytes * self.tokens for form in each), initial=0))
        memory = torch.zeros(ends[-1], dtype=torch.uint8, device=self.device)
        parts = (
            memory[begin:end].view(form.dtype).view(self.tokens, form.heads, form.width)
            for form, (begin, end) in zip(each, pairwise(ends), strict=True)
        )
        self._layers.update(zip(forms, zip(parts, parts, strict=True), strict=True))

    @property
    def forms(self) -> Forms:
        """Of the layers that are allocated."""
        return {
            layer: (TokenForm.of(keys), TokenForm.of(values))
            for layer, (keys, values) in self._layers.items()
        }

    @property
    def nbytes(self) -> int:
        """Allocated, of all layers."""
        return sum(states.nbytes for pair in self._layers.values() for states in pair)

    @property
    def scratch(self) -> int:
        """The first token of the page that belongs to nobody; on a card alone."""
        return self.tokens - PAGE_TOKENS

    def layer(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> _KeysValues:
        """Keys and values of ``layer``, (tokens, G, D) each, allocated like ``key`` and ``value`` (..., G, D)
        if need be.
        """
        held = self._layers.get(layer)
        if held is None:
            held = self._layers[layer] = (self._allocated(key), self._allocated(value))
        return held

    def write(
        self,
        layer: int,
        places: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
    ) -> _KeysValues:
        """Put ``key`` and ``value`` (n, G, D) at ``places`` (n,) of the pool; all keys and values of the
        layer.
        """
        keys, values = self.layer(layer, key, value)
        keys.index_copy_(0, places, key)
        values.index_copy_(0, places, value)
        return keys, values

    def fill(self, layer: int, run: Run, states: Sequence[torch.Tensor]) -> None:
        """Put keys and values (n, G, D), from wherever they are, into the first n tokens of ``run``."""
        first = first_token(run)
        for kept, new in zip(self.layer(layer, *states), states, strict=True):
            kept[first : first + len(new)] = new

    def read(self, run: Run, begin: int, end: int) -> Iterator[tuple[int, _KeysValues]]:
        """Of each layer, views of the tokens ``begin`` to ``end`` of ``run``, (n, G, D) each."""
        first = first_token(run)
        for layer, (keys, values) in sorted(self._layers.items()):
            yield layer, (keys[first + begin : first + end], values[first + begin : first + end])

    def move(self, move: Move) -> None:
        """Carry a move out. Where both places overlap, what is moved is copied in pieces that do not."""
        step = min(move.pages, move.source - move.target)
        for begin in range(0, move.pages, step):
            tokens = min(step, move.pages - begin) * PAGE_TOKENS
            source, target = (move.source + begin) * PAGE_TOKENS, (move.target + begin) * PAGE_TOKENS
            for pair in self._layers.values():
                for states in pair:
                    states[target : target + tokens] = states[source : source + tokens]

    def scrub(self, run: Run) -> None:
        """Zeros in ``run``: a number that is none would spread to whoever reads past its own end."""
        first = first_token(run)
        end = first + run.pages * PAGE_TOKENS
        for pair in self._layers.values():
            for states in pair:
                states[first:end].zero_()

    def _allocated(self, states: torch.Tensor) -> torch.Tensor:
        heads, width = states.shape[-2:]
        if self.device.type != "cpu":
            return torch.zeros(self.tokens, heads, width, dtype=states.dtype, device=self.device)
        # anonymous memory is zero, and is there when it is first written
        memory = mmap.mmap(-1, max(1, self.tokens * heads * width * states.element_size()))
        numbers = torch.frombuffer(memory, dtype=states.dtype, count=self.tokens * heads * width)
        return numbers.view(heads, self.tokens, width).transpose(0, 1)
