"""The version of funcloop; `pyproject.toml` says the same."""

VERSION = "0.1.0"
