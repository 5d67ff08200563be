"""Graphics cards, as a process sees them that holds none of their memory.

Whoever asks CUDA for a card's name or for its free bytes keeps a context on it until the process ends: 250 to
450 MiB, which a runner would take from its own worker all night. So a process that does not use the cards has
them looked at by a child that ends, and keeps what it said for a minute.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from pipeline.errors import ConfigError, DeviceLost
from pipeline.system.child_python import command_of, environment

# What a CUDA context takes of a card: 250 to 450 MiB by card and driver; the most of it.
CONTEXT_BYTES = 450 * 2**20
_KEPT_SECONDS = 60.0
_PATIENCE_SECONDS = 180.0
_VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class GraphicsCard:
    """One CUDA device. ``free_bytes`` are those beside the context of whoever looked; ``has_kernels``:
    whether this build of torch can compute on it.
    """

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    total_bytes: int
    free_bytes: int
    has_kernels: bool = True

    @property
    def room_bytes(self) -> int:
        """Free for a process that has no context yet: with what the one that looked has given back."""
        return min(self.total_bytes, self.free_bytes + CONTEXT_BYTES)


def graphics_cards() -> tuple[GraphicsCard, ...]:
    """The cards that this process may use, none where torch has none; those of at most a minute ago.

    Raises DeviceLost where there are cards and they cannot be looked at, ConfigError where torch cannot
    compute on one of them.
    """
    import torch

    if not torch.cuda.is_available():  # which makes no context
        return ()
    in_use: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    cards = seen_here() if in_use else _kept()
    for card in cards:
        if not card.has_kernels:
            raise ConfigError(without_kernels(card.name, card.capability))
    return cards


def has_kernels(capability: tuple[int, int], architectures: Iterable[str]) -> bool:
    """Whether a build of torch for ``architectures`` (``sm_86``, ``compute_90``, as it lists them) computes
    on cards of ``capability``: by kernels of the same major number and no later minor one, or by such as the
    driver compiles for later cards. True where nothing is listed.
    """
    listed = [re.fullmatch(r"(sm|compute)_(\d+)(\d)([a-z]?)", each) for each in architectures]
    known = [(each[1], (int(each[2]), int(each[3])), each[4]) for each in listed if each]
    for kind, built, only in known:
        if only == "a":  # for this one capability
            fits = built == capability
        else:
            fits = built <= capability and (kind == "compute" or built[0] == capability[0])
        if fits:
            return True
    return not known


def without_kernels(name: str, capability: tuple[int, int]) -> str:
    """What is said of a card on which torch cannot compute."""
    import torch

    major, minor = capability
    return (
        f"the graphics card {name} has compute capability {major}.{minor}, for which PyTorch "
        f"{torch.__version__} has no kernels; install a build of torch that has, leave the card out by "
        f"{_VISIBLE}, or set model.device_map: cpu"
    )


def seen_here() -> tuple[GraphicsCard, ...]:
    """The cards by this very process, which has a context on each of them from now on."""
    import torch

    found = []
    for index in range(torch.cuda.device_count()):
        has = torch.cuda.get_device_properties(index)
        free, total = torch.cuda.mem_get_info(index)
        capability = (has.major, has.minor)
        runs = has_kernels(capability, torch.cuda.get_arch_list())
        found.append(GraphicsCard(str(has.name), capability, has.multi_processor_count, total, free, runs))
    return tuple(found)


# When, under which choice of cards, and what was seen then.
_last: tuple[float, str | None, tuple[GraphicsCard, ...]] | None = None


def _kept() -> tuple[GraphicsCard, ...]:
    global _last  # noqa: PLW0603  # one machine a process
    chosen = os.environ.get(_VISIBLE)
    if _last is None or _last[1] != chosen or time.monotonic() - _last[0] > _KEPT_SECONDS:
        cards = _seen_by_a_child()
        _last = time.monotonic(), chosen, cards
    return _last[2]


def _seen_by_a_child() -> tuple[GraphicsCard, ...]:
    try:
        ended = subprocess.run(
            command_of(__name__),
            env=environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE_SECONDS,
            check=False,
        )
        described = json.loads(ended.stdout.splitlines()[-1])
        return tuple(GraphicsCard(**{**card, "capability": tuple(card["capability"])}) for card in described)
    except subprocess.TimeoutExpired:
        why = f"it did not answer within {_PATIENCE_SECONDS:.0f} s"
    except (ValueError, IndexError, TypeError, KeyError):
        why = (ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"])[-1]
    raise DeviceLost(
        f"this machine has a graphics card, and it cannot be looked at: {why}; see what nvidia-smi says of "
        f"it, or set model.device_map: cpu"
    )


if __name__ == "__main__":
    print(json.dumps([asdict(card) for card in seen_here()]))
