"""The names of the scenes, in their order. Nothing here imports JAX."""

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
