"""An installation for this folder alone: its gateway is killed again and again."""

from tests.e2e.conftest import service

__all__ = ["service"]
