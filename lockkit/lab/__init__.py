"""The workshop: what breaks the library, what proves it, and what shows it.

The library never imports it.
"""
