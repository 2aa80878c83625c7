"""The acts, in the order they are played."""

from __future__ import annotations

from examples.demo.act import Act
from examples.demo.acts import natq, omniq

__all__ = ["ACTS"]

ACTS: tuple[Act, ...] = (natq.ACT, omniq.ACT)
