"""Which cards a build of torch can compute on."""

from __future__ import annotations

import pytest

from pipeline.system.graphics_cards import has_kernels

CUDA_12 = ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90")
CUDA_13 = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120")


@pytest.mark.parametrize(
    ("capability", "architectures", "runs"),
    [
        ((8, 9), CUDA_13, True),  # by the kernels for 8.6
        ((7, 5), CUDA_13, True),
        ((7, 0), CUDA_13, False),
        ((6, 1), CUDA_13, False),
        ((6, 1), CUDA_12, True),
        ((12, 0), CUDA_12, False),
        ((12, 1), CUDA_13, True),
        ((13, 0), CUDA_13, True),  # compiled by the driver
        ((9, 0), ("sm_90a",), True),
        ((9, 1), ("sm_90a",), False),
        ((8, 0), ("sm_86",), False),
        ((8, 0), (), True),  # nothing is known
    ],
)
def test_kernels_are_for_their_generation_and_no_earlier_card(
    capability: tuple[int, int], architectures: tuple[str, ...], runs: bool
) -> None:
    assert has_kernels(capability, architectures) is runs
