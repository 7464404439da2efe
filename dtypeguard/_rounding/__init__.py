"""Stochastic rounding: stores float32 values in fewer bits with the right mean.

May import `_leaves`. Read `rounding.py` first, which draws the random bits and rounds.
`apply.py` has the public `apply_updates`, which rounds the sum of params and updates.
"""
