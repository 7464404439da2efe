"""What other programs call: pytest its plugin, IPython an extension.

It may import the rooms below the command line, and imports one only where an error is to be
explained: `pytest.py` neither imports JAX nor slows a collection. Read either file.
"""
