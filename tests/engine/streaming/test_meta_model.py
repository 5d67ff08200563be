"""Building without memory: parameters go to the meta device, for the one who builds and only meanwhile."""

from __future__ import annotations

import threading

import pytest
import torch

from pipeline.engine.streaming.meta_model import parameters_on_meta


def devices(module: torch.nn.Module) -> set[str]:
    return {tensor.device.type for tensor in module.parameters()}


def test_parameters_go_to_the_meta_device_and_buffers_stay() -> None:
    with parameters_on_meta():
        built = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
        built.more = torch.nn.Parameter(torch.ones(2))
    assert devices(built) == {"meta"}
    assert not any(parameter.requires_grad for parameter in built.parameters())
    assert {buffer.device.type for buffer in built.buffers()} == {"cpu"}


def test_what_another_thread_builds_meanwhile_is_left_alone() -> None:
    beside = []
    with parameters_on_meta():
        thread = threading.Thread(target=lambda: beside.append(torch.nn.Linear(3, 4)))
        thread.start()
        thread.join()
    assert devices(beside[0]) == {"cpu"}


def test_afterwards_everything_is_as_before() -> None:
    with pytest.raises(KeyError), parameters_on_meta():
        raise KeyError("while building")
    assert devices(torch.nn.Linear(3, 4)) == {"cpu"}
