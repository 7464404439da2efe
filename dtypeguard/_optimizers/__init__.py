"""Optimizers and gradient accumulation that fix what Optax gets wrong beyond dtypes.

May import `_leaves`, `_rounding` and `_guard`. Read `fromage.py` first, the shortest
optimizer. `prodigy.py` has the formulas of Prodigy, `moments.py` its state in few bits, and
`checked.py` what an update checks first. `multi_steps.py` accumulates gradients; `emit.py`
runs the inner optimizer on the mini-step that emits.
"""
