"""Headway's settings with a home of its own, so that tests never meet the checkout's installation."""

import os
import tempfile

os.environ.setdefault("HEADWAY_HOME", tempfile.mkdtemp(prefix="headway-test-"))

from headway.settings import *  # noqa: F403

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

# No Redis-protocol server: tests that need one start it (tests/chaos/test_background_dies.py).
CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
