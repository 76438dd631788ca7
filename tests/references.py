"""Naive float64 oracles, one section a package: slow, obvious, and written without funcloop."""
