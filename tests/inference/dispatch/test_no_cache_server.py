"""B46, B49: limits live in the brain's memory and in the ledger. There is no cache to lose them, to forget them or to hang."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
CODE = """
import sys
sys.path.insert(1, "platform")
import django
django.setup()
import inference.wiring
from django.core.cache import caches
clients = {"redis", "valkey", "kombu", "celery", "django_redis", "channels_redis"}
found = {name.partition(".")[0] for name in sys.modules} & clients
print(sorted(found), len(caches.all(initialized_only=True)))
"""


def test_b46_b49_the_data_plane_talks_to_no_cache_server(tmp_path: Path) -> None:
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "headway.settings_data_plane", "HEADWAY_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", CODE], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[-2] == "[] 0"
