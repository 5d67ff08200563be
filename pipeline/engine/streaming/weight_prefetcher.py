"""The weights of a streamed model while it runs: one unit at a time is in its modules, the next is on its
way.

One thread reads. Beside a graphics card it reads into pinned memory and copies a unit as a whole, on a stream
of its own, into one of two buffers there; the computing stream waits for the copy's event, the host for none.
What describes how weights are quantized is read from the host's memory, once. Storage is used again and
again: nothing is allocated in the middle of a sweep.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import torch

from pipeline.engine.model.library_logging import import_bitsandbytes
from pipeline.engine.model.nf4 import dequantize, statistics
from pipeline.engine.streaming.buffer_pool import Buffer, BufferPool, filled, load
from pipeline.engine.streaming.card_slabs import CardSlabs
from pipeline.engine.streaming.embedding_rows import place_tables
from pipeline.engine.streaming.meta_model import MetaModel
from pipeline.engine.streaming.prepared_weights import Prepared
from pipeline.engine.streaming.tiers import Tiers, Unit, head_blocks
from pipeline.engine.streaming.weight_file import Block, BlockFiles, DamagedWeights
from pipeline.errors import ConfigError

_T = TypeVar("_T")
_Tensors = list[torch.Tensor]
# A buffer in host memory, tensors on the device, and the event after which they are there.
_Arrival = tuple[Buffer | None, _Tensors, Any]
_NOTHING: _Arrival = (None, [], None)

_ALIGNED = 64  # where a matrix begins, as kernels read whole lines


class WeightPrefetcher:
    """See the module. Made with everything that stays in its place. ``dequantized`` counts how often each
    unit became plain numbers.
    """

    def __init__(self, meta_model: MetaModel, prepared: Prepared, tiers: Tiers, device: torch.device) -> None:
        self.tiers, self.device = tiers, device
        self.dequantized: Counter[str] = Counter()
        self.sweeps = 0
        self._model, self._prepared = meta_model.model, prepared
        self._units = list(tiers.units)
        self.files = BlockFiles(prepared.folder)
        self._kept: dict[int, _Tensors] = {}
        self._pending: dict[int, Future[_Arrival]] = {}
        self._empty: list[tuple[Any, str, Any]] = []
        self._head_piece = torch.empty(0)  # of the part of the head that was opened last
        self._open: int | None = None
        self._last: int | None = None
        self._buffer: Buffer | None = None  # of the unit that is open, to be given back
        self._states: dict[str, Any] = {}
        self._in_ram: dict[int, Buffer] = {}
        self._after = {index: (index + 1) % len(self._units) for index in range(len(self._units))}
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="weights")
        placed = list(zip(self._units, tiers.tiers, strict=True))
        from_disk = [unit.blocks for unit, tier in placed if tier == "disk"]
        passing = [unit.blocks for unit, tier in placed if tier != "device"]
        self._card = CardSlabs(passing, device) if device.type == "cuda" else None
        self._pool = BufferPool(from_disk, pinned=self._card is not None)
        weakref.finalize(self, self._reader.shutdown, wait=False)
        with torch.inference_mode(mode=False), torch.no_grad():
            self._plain = torch.empty(_plain_room(self._units), dtype=torch.uint8, device=device)
            self._place_small(meta_model)
            for index, tier in enumerate(tiers.tiers):
                if tier != "disk":
                    self._keep(index, tier)
        self.files.read_bytes = 0
        self.head_path = head_blocks(meta_model, prepared.files)[0]
        self.by_module: dict[str, int] = {
            unit.module: index for index, unit in enumerate(self._units) if not unit.head
        }
        self.head_units = [index for index, unit in enumerate(self._units) if unit.head]

    # ── use ─────────────────────────────────────────────────────────────────────────────────────────────────

    def open(self, index: int) -> None:
        """Put the weights of unit ``index`` into its modules, after those of the unit before it are taken
        out.
        """
        if self._open == index:
            return
        with torch.inference_mode(mode=False), torch.no_grad():
            if self._last is not None:
                self._after[self._last] = (
                    index  # modules are not always used in the order in which they are listed
                )
            self._last = index
            self._close()
            tensors = self._take(index)
            self._fetch_after(index)
            unit = self._units[index]
            if not unit.head:
                try:
                    self._bind(
                        unit, {block.name: tensor for block, tensor in zip(unit.blocks, tensors, strict=True)}
                    )
                except BaseException:  # as out of memory; what is half there must not be taken for all of it
                    self._close()
                    raise
            self._open = index

    def head(self, inputs: Sequence[torch.Tensor], bias: torch.Tensor | None) -> list[torch.Tensor]:
        """The head's products with each of ``inputs`` (..., hidden), piece by piece: each piece is loaded
        once for all of them.
        """
        rows = sum(self._units[index].blocks[0].shape[0] for index in self.head_units)
        outputs = [states.new_empty((*states.shape[:-1], rows)) for states in inputs]
        begin = 0
        for index in self.head_units:
            self.open(index)
            matrix = self._head_piece
            end = begin + len(matrix)
            for states, output in zip(inputs, outputs, strict=True):
                part = None if bias is None else bias[begin:end]
                output[..., begin:end] = torch.nn.functional.linear(states, matrix, part)
            begin = end
        self.sweeps += 1
        return outputs

    def settle(self) -> None:
        """Wait for what is on its way."""
        for pending in self._pending.values():
            pending.exception()

    def close(self) -> None:
        """Take weights out of the modules and end the reader."""
        self._close()
        self._reader.shutdown(wait=True, cancel_futures=True)
        self.files.close()

    def _close(self) -> None:
        for module, name, empty in self._empty:
            module._parameters[name] = empty  # noqa: SLF001  # no checks wanted
            state = getattr(module, "state", None)
            if state is not None and hasattr(state, "SCB"):
                state.CB = state.SCB = None
        self._empty.clear()
        self._give_back(self._buffer)
        self._buffer = self._open = None

    def _take(self, index: int) -> _Tensors:
        """The unit's tensors on the device."""
        near = self._kept[index] if self.tiers.tiers[index] == "device" else self._arrived(index)
        if self._units[index].head:
            self._head_piece = near[0]
        return near

    def _arrived(self, index: int) -> _Tensors:
        try:
            buffer, near, arrived = self._fetched(index)
        except DamagedWeights as damage:
            self._rebuild(damage)
            buffer, near, arrived = self._fetched(index)
        if self._card is not None:
            self._card.take(arrived)
        self._buffer = buffer
        return near

    def _fetched(self, index: int) -> _Arrival:
        if index not in self._pending:
            self._start(index)
        return self._pending.pop(index).result()

    def _rebuild(self, damage: DamagedWeights) -> None:
        self.files.close(damage.file)
        blocks = {block.name: block for block in self._prepared.rebuild(damage.file)}
        for index, unit in enumerate(self._units):
            if unit.blocks[0].file == damage.file:
                fresh = tuple(blocks[block.name] for block in unit.blocks)
                self._units[index] = Unit(unit.module, fresh, unit.plain_bytes, unit.head)
                self._pending.pop(index, None)
                for block in fresh:
                    self._states.pop(block.name, None)

    # ── on the way ──────────────────────────────────────────────────────────────────────────────────────────

    def _fetch_after(self, index: int) -> None:
        """Start to read the next unit that is not on the device. One more than what is in use is on its way,
        never two.
        """
        following = self._after[index]
        for _ in self._units:
            if self.tiers.tiers[following] != "device":
                break
            following = self._after[following]
        if following != index and self.tiers.tiers[following] != "device" and following not in self._pending:
            self._start(following)

    def _start(self, index: int) -> None:
        for other in [other for other in self._pending if other != index]:
            self._give_back(self._settled(other)[0])  # it was expected next and was not
        free = self._card.launched() if self._card is not None else None
        self._pending[index] = self._reader.submit(self._fetch, index, free)

    def _settled(self, index: int) -> _Arrival:
        try:
            return self._pending.pop(index).result()
        except Exception:  # noqa: BLE001  # nobody needs it; whoever does reads it again
            return _NOTHING

    def _fetch(self, index: int, free: Any) -> _Arrival:
        """In the reader's thread; ``free``: see ``CardSlabs``."""
        blocks = self._units[index].blocks
        if index in self._in_ram:
            buffer = self._in_ram[index]
        elif index in self._kept:
            return None, self._kept[index], None
        else:
            buffer = self._pool.take()
        try:
            if index not in self._in_ram:
                self.files.read(blocks, buffer.landing(blocks))
            if self._card is None:
                return buffer, buffer.tensors(blocks), None
            return buffer, *self._card.bring(blocks, buffer, free)
        except BaseException:
            if self._card is not None:
                self._card.settle()  # some of it may be on its way
            if index not in self._in_ram:
                self._pool.give_back(buffer)
            raise

    def _give_back(self, buffer: Buffer | None) -> None:
        if buffer is not None and buffer not in self._in_ram.values():
            self._pool.give_back(buffer)

    # ── what stays ──────────────────────────────────────────────────────────────────────────────────────────

    def _place_small(self, meta_model: MetaModel) -> None:
        for block in self.tiers.small:
            (tensor,) = self._loaded([block])
            path, _, name = block.name.rpartition(".")
            module = meta_model.model.get_submodule(path)
            # no checks wanted
            place = module._parameters if name in module._parameters else module._buffers  # noqa: SLF001
            floats = tensor.is_floating_point() and place[name].is_floating_point()
            # files of earlier versions have biases in 32 bits
            dtype = place[name].dtype if floats else tensor.dtype
            place[name] = tensor.to(self.device, dtype, copy=True)  # without the pages around it
        for buffers in (module._buffers for module in meta_model.model.modules()):  # noqa: SLF001  # as above
            for name, buffer in buffers.items():
                if buffer is not None and buffer.device.type != "meta":
                    buffers[name] = buffer.to(self.device)
        self._check_tables()
        place_tables(meta_model.model, self.files, self._prepared.files, self.device)

    def _check_tables(self) -> None:
        """Rows are read without checks, so their files are read once as a whole."""
        for blocks in list(self._prepared.files.values()):
            if isinstance(self._owner(blocks[0].name.partition(".weight")[0]), torch.nn.Embedding):
                for block in blocks:
                    self._loaded([block])

    def _loaded(self, blocks: Sequence[Block]) -> _Tensors:
        return self._sound(lambda: load(self.files, blocks))

    def _sound(self, read: Callable[[], _T]) -> _T:
        """What ``read`` reads; a file that is damaged is made again first."""
        try:
            return read()
        except DamagedWeights as damage:
            self.files.close(damage.file)
            self._prepared.rebuild(damage.file)
            return read()

    def _keep(self, index: int, tier: str) -> None:
        blocks = self._units[index].blocks
        if tier == "ram" and self._card is not None:
            self._in_ram[index] = self._sound(lambda: filled(self.files, blocks, pinned=True))
            return
        host = self._loaded(blocks)
        self._kept[index] = [tensor.to(self.device) for tensor in host] if tier == "device" else host

    # ── into the modules ────────────────────────────────────────────────────────────────────────────────────

    def _bind(self, unit: Unit, tensors: dict[str, torch.Tensor]) -> None:
        used = 0  # of the memory for plain numbers
        for name, tensor in tensors.items():
            path, _, last = name.rpartition(".")
            module = self._owner(path)
            # statistics of a weight
            if module is None or last not in {**module._parameters, **module._buffers}:  # noqa: SLF001
                continue
            if f"{name}.absmax" in tensors:
                out = self._plain_storage(used, module._parameters[last])  # noqa: SLF001
                used += _aligned(out.nbytes)
                dequantize(tensor, self._statistics(unit, tensors, name), out)
                self._set(module, last, out)
            elif f"{name}.SCB" in tensors:
                self._set(module, last, _int8(tensor, tensors[f"{name}.SCB"]))
            else:
                self._set(module, last, tensor)
        if used:
            self.dequantized[unit.module] += 1

    def _statistics(self, unit: Unit, tensors: dict[str, torch.Tensor], name: str) -> Any:
        """The quantization state of a weight. Beside a card it is read in host memory, where it stays, and
        only the scales are looked up on the card.
        """
        if self._card is None:
            return statistics(tensors, name, self.device)
        if name not in self._states:
            host = self._buffer.tensors(unit.blocks) if self._buffer is not None else tensors.values()
            described = {block.name: tensor for block, tensor in zip(unit.blocks, host, strict=True)}
            self._states[name] = statistics(described, name, self.device)
        state = self._states[name]
        state.absmax = tensors[f"{name}.absmax"]
        if state.nested:
            state.state2.absmax = tensors[f"{name}.nested_absmax"]
        return state

    def _owner(self, path: str) -> Any:
        try:
            return self._model.get_submodule(path)
        except AttributeError:
            return None

    def _set(self, module: Any, name: str, tensor: torch.Tensor) -> None:
        if name in module._buffers:  # noqa: SLF001  # no checks wanted
            module._buffers[name] = tensor  # noqa: SLF001  # small; it may stay
            return
        self._empty.append((module, name, module._parameters[name]))  # noqa: SLF001
        module._parameters[name] = tensor  # noqa: SLF001

    def _plain_storage(self, begin: int, like: torch.Tensor) -> torch.Tensor:
        """Room for the numbers of ``like``, from byte ``begin`` on of what all units use in turn."""
        return self._plain[begin:][: like.nbytes].view(like.dtype).view(like.shape)


def _plain_room(units: Sequence[Unit]) -> int:
    """Bytes for the plain numbers of any of ``units``, whatever its shapes."""
    return max((unit.plain_bytes + _ALIGNED * len(unit.blocks) for unit in units), default=0)


def _aligned(bytes_: int) -> int:
    return bytes_ + -bytes_ % _ALIGNED


def _int8(weight: torch.Tensor, scales: torch.Tensor) -> Any:
    return import_bitsandbytes().nn.Int8Params(
        weight, requires_grad=False, has_fp16_weights=False, CB=weight, SCB=scales
    )


def require_plain_head(model: Any, name: str) -> None:
    """Raises ConfigError where the head is no plain product."""
    head = model.get_output_embeddings()
    if not isinstance(head, torch.nn.Linear):
        raise ConfigError(
            f"the weights of {name} cannot be streamed: its head is {type(head).__name__}, not one matrix"
        )
