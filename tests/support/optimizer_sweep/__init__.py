"""Every optimizer of the installed Optax, bare and guarded, in every configuration."""
