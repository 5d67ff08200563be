"""What the card is and how fast, beside what the product measures of it."""

from __future__ import annotations

from importlib.metadata import version

import torch

from pipeline.system.hardware_rates import measured_rates
from tests.first_minutes.results import DEVICE, OUT, TINY, say, seconds_of


def machine() -> None:
    """Name, memory, versions; bandwidth, products and the link, by hand and by the product."""
    properties = torch.cuda.get_device_properties(0)
    say(
        "machine",
        name=properties.name,
        capability=f"{properties.major}.{properties.minor}",
        multiprocessors=properties.multi_processor_count,
        total=properties.total_memory,
        free=torch.cuda.mem_get_info()[0],
        versions={name: version(name) for name in ("torch", "transformers", "accelerate", "bitsandbytes")},
        **_memory(),
        matmul_flops=_products(),
        links=_links(),
        ours="" if TINY else _ours(properties.name),
    )


def _memory() -> dict[str, float]:
    numbers = torch.ones(2**20 if TINY else 2**30, device=DEVICE)
    other = torch.empty_like(numbers)
    size = numbers.numel() * 4
    return {
        "read": size / seconds_of(numbers.sum),
        "copied": 2 * size / seconds_of(lambda: other.copy_(numbers)),
    }


def _products() -> float:
    side = 256 if TINY else 8192
    left = torch.randn(side, side, device=DEVICE, dtype=torch.bfloat16)
    return 2 * side**3 / seconds_of(lambda: left @ left)


def _links() -> dict[str, float]:
    """Bytes a second each way, from pinned and plain host memory."""
    found = {}
    for pinned in (True, False):
        host = torch.ones(2**18 if TINY else 2**28, pin_memory=pinned)
        near = torch.empty_like(host, device=DEVICE)
        size = host.numel() * 4
        for name, to, of in (("to the card", near, host), ("from the card", host, near)):
            work = lambda to=to, of=of: to.copy_(of, non_blocking=True)  # noqa: E731
            found[f"{name}, {'pinned' if pinned else 'plain'}"] = size / seconds_of(work, 3, 1)
    return found


def _ours(name: str) -> str:
    """The rates that the planner would work with."""
    rates = measured_rates(OUT, OUT, "bfloat16", (name,), unpacking=lambda _: None, again=True)
    return str(rates)
