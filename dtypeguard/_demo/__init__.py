"""Ten scenes of `dtypeguard demo`: what happens bare, the line, and what one call changes.

It may import every room but the command line. Each file in `scenes/` is one, as a user
would write it; `scene.py` runs it. Read a scene first.
"""
