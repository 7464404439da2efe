"""Stochastic rounding: float32 values kept in fewer bits with the right mean.

May import `_leaves`. Read `rounding.py` first, which draws the bits and rounds; `apply.py`
is the public `apply_updates`, which rounds the sum of params and updates.
"""
