"""Three activations, the last of which has a constant of its own type."""

import jax
import jax.numpy as jnp
import numpy as np

branches = [
    lambda x: (x, 0),
    lambda x: (jnp.tanh(x), 1),
    lambda x: (x * np.float32(2), 2),  # branches[2]: scaled
]
jax.lax.switch(1, branches, jnp.ones(3, jnp.bfloat16))
# told: scaled: branches[0] gives bfloat16[3] (as it was given)
# told: scaled: branches[2] gives float32[3]
