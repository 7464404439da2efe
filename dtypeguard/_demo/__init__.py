"""Ten scenes of `dtypeguard demo`: what happens unguarded, and what one call changes.

It may import every room but the command line. Each file in `scenes/` is one, as a user
would write it; `scene.py` runs it. Read a scene first. This file does not import JAX.
"""

NAMES = (
    "prodigy",
    "schedule_free",
    "lbfgs",
    "fromage",
    "zero_nans",
    "failing_scan",
    "compiles_again",
    "stalled_loss",
    "as_on_a_tpu",
    "lost_cast",
)
