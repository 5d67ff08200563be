"""What ``overnight doctor`` checks of the machine and its libraries, each as one finding with its remedy."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

import torch

from pipeline.engine.model.demo_model import DEMO_MODEL, cache_folder, find_gguf
from pipeline.engine.model.library_logging import import_bitsandbytes
from pipeline.engine.model.precision import cpu_computes_bfloat16, resolve_dtype
from pipeline.errors import ConfigError
from pipeline.system.graphics_cards import has_kernels, without_kernels
from pipeline.system.hardware import available_ram_bytes, disk_of
from pipeline.system.units import amount
from pipeline.system.versions import STACK, version_of

_LITTLE_MEMORY_BYTES = 2 * 2**30
_BLOCK = 64  # rows and columns of the product that is tried in 4 bits


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing checked. ``stop``: a run would fail; ``warn``: it works, but worse than it could;
    ``sentence`` says what to do.
    """

    name: str
    level: Literal["ok", "warn", "stop"]
    sentence: str


def check_environment() -> list[Finding]:
    """Everything, in the order in which to mend it. Takes a few seconds; never raises."""
    checks: tuple[Callable[[], Finding], ...] = (
        _versions,
        _cuda,
        _bitsandbytes,
        _memory,
        _bfloat16,
        _cache,
        _demo,
    )
    return [check() for check in checks]


def _versions() -> Finding:
    installed = {name: version_of(name) for name in STACK}
    missing = [name for name, version in installed.items() if version == "not installed"]
    if missing:
        return Finding(
            "libraries", "stop", f"missing: {', '.join(missing)}; run: pip install {' '.join(missing)}"
        )
    wrong = [wanted for wanted in _required() if not _satisfied(wanted)]
    listed = ", ".join(f"{name} {version}" for name, version in installed.items())
    if wrong:
        command = "pip install " + " ".join(f"'{wanted}'" for wanted in wrong)
        return Finding(
            "libraries",
            "warn",
            f"{listed}; some are outside of what this version is tested with, run: {command}",
        )
    return Finding("libraries", "ok", listed)


def _required() -> list[str]:
    """Requirements of this distribution, extras left out; none where it runs without being installed."""
    try:
        return [line for line in metadata.requires("overnight") or [] if ";" not in line]
    except metadata.PackageNotFoundError:
        return []


def _satisfied(requirement: str) -> bool:
    from packaging.requirements import Requirement

    wanted = Requirement(requirement)
    version = version_of(wanted.name)
    return version == "not installed" or wanted.specifier.contains(
        version.partition("+")[0], prereleases=True
    )


def _cuda() -> Finding:
    driver = _driver_version()
    if torch.version.cuda is None:
        if driver:
            build = f"PyTorch {torch.__version__} is built without CUDA"
            return Finding(
                "graphics card",
                "warn",
                f"an NVIDIA driver ({driver}) is there, but {build}; install a CUDA build of torch",
            )
        return Finding("graphics card", "ok", "none; models run on the CPU")
    if not torch.cuda.is_available():
        why = (
            f"driver {driver} is older than it needs; update the driver"
            if driver
            else "no NVIDIA driver is found"
        )
        return Finding(
            "graphics card",
            "warn",
            f"PyTorch is built for CUDA {torch.version.cuda}, but {why}; models run on the CPU",
        )
    cards = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    for card in cards:
        if not has_kernels((card.major, card.minor), torch.cuda.get_arch_list()):
            told = without_kernels(card.name, (card.major, card.minor))
            return Finding("graphics card", "stop", told)
    listed = ", ".join(
        f"{card.name} ({amount(card.total_memory)}, capability {card.major}.{card.minor})" for card in cards
    )
    return Finding(
        "graphics card", "ok", f"{listed}; CUDA {torch.version.cuda}, driver {driver or 'unknown'}"
    )


def _driver_version() -> str:
    """Version of the NVIDIA kernel driver, empty where there is none."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="ascii", errors="replace")
    except OSError:
        return "of unknown version" if shutil.which("nvidia-smi") else ""
    return next((word for word in text.split() if word[0].isdigit() and "." in word), "of unknown version")


def _bitsandbytes() -> Finding:
    name = "bitsandbytes"
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    try:
        errors = {device: four_bit_error(device) for device in devices}
    except Exception as error:  # noqa: BLE001  # binaries for the wrong machine raise almost anything
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        return Finding(
            name,
            "stop",
            f"4-bit products fail ({why}); reinstall bitsandbytes, or set model.quantization: none",
        )
    worst = max(errors.values())
    if worst > 0.05:
        return Finding(
            name,
            "stop",
            f"4-bit products are wrong by {worst:.0%}; reinstall bitsandbytes, or set model.quantization: "
            f"none",
        )
    return Finding(name, "ok", f"{version_of(name)}: nf4 works on {' and '.join(devices)}")


def four_bit_error(device: str) -> float:
    """Largest error of a 64 x 64 product in nf4 against the same weights dequantized, relative to the largest
    result.
    """
    bitsandbytes = import_bitsandbytes()
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(_BLOCK, _BLOCK, generator=generator)
    layer = bitsandbytes.nn.Linear4bit(
        _BLOCK, _BLOCK, bias=False, compute_dtype=torch.float32, quant_type="nf4"
    )
    layer.weight = bitsandbytes.nn.Params4bit(weight, requires_grad=False, quant_type="nf4")
    layer = layer.to(device).eval()
    inputs = torch.randn(3, _BLOCK, generator=generator).to(device)
    plain = bitsandbytes.functional.dequantize_4bit(layer.weight.data, layer.weight.quant_state).float()
    with torch.inference_mode():
        expected = inputs @ plain.T
        error = (layer(inputs) - expected).abs().max() / expected.abs().max()
    return float(error)


def _memory() -> Finding:
    free = available_ram_bytes()
    cards = (
        [torch.cuda.mem_get_info(index)[0] for index in range(torch.cuda.device_count())]
        if torch.cuda.is_available()
        else []
    )
    listed = ", ".join(
        [
            f"{amount(free)} of RAM",
            *(f"{amount(bytes_)} on GPU {index}" for index, bytes_ in enumerate(cards)),
        ]
    )
    if free < _LITTLE_MEMORY_BYTES:
        return Finding(
            "memory", "warn", f"free: {listed}; close other programs, or raise the limit of this container"
        )
    return Finding("memory", "ok", f"free: {listed}")


def _bfloat16() -> Finding:
    chosen = resolve_dtype("auto")
    if torch.cuda.is_available() or cpu_computes_bfloat16():
        return Finding("compute dtype", "ok", f"auto means {chosen} here")
    return Finding(
        "compute dtype",
        "ok",
        f"auto means {chosen} here: this processor would only emulate bfloat16, which is slower",
    )


def _cache() -> Finding:
    folder = cache_folder()
    free = disk_of(folder).free_bytes
    level: Literal["ok", "warn"] = "warn" if free < _LITTLE_MEMORY_BYTES else "ok"
    return Finding("cache folder", level, f"{folder}, {amount(free)} free (OVERNIGHT_CACHE moves it)")


def _demo() -> Finding:
    try:
        find_gguf()
    except ConfigError as error:
        return Finding("demo model", "warn", f"{error} (only needed for {DEMO_MODEL})")
    if importlib.util.find_spec("gguf") is None:
        return Finding(
            "demo model",
            "warn",
            "the package gguf, which reads it, is missing; run: pip install 'overnight[demo]'",
        )
    return Finding("demo model", "ok", f"{DEMO_MODEL} is installed")
