"""Stochastic rounding: stores float32 values in fewer bits with the right mean.

May import `_leaves`. `rounding.py` draws the random bits and rounds, and has the public
`apply_updates`, which rounds the sum of params and updates. `updates.py` checks that
updates fit their params.
"""
