"""Passes from a scheduled program to a kernel. Start with `pipeline.py`."""

from tilewright.lowering.pipeline import lower

__all__ = ["lower"]
