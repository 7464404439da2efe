"""Short names of the dtypes that most tests compare."""

import jax.numpy as jnp

BF16, F16, F32, F64 = jnp.bfloat16, jnp.float16, jnp.float32, jnp.float64
I8, I32, U32, C64 = jnp.int8, jnp.int32, jnp.uint32, jnp.complex64
