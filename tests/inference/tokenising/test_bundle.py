import pytest

from inference.tokenising.bundle import NotABundle, decode_bundle, digest_of, encode_bundle
from inference.tokenising.counter import PromptCounter, Uncountable
from tests.fakes.tokeniser import byte_bundle


def test_a_bundle_survives_its_bytes() -> None:
    bundle = byte_bundle(template_kwargs={"a": [1, None]}, tool_template="x", drops_unused_tools=True)
    assert decode_bundle(encode_bundle(bundle)) == bundle


def test_the_same_bundle_has_the_same_digest_and_another_has_another() -> None:
    first, again = byte_bundle(template_kwargs={"a": 1, "b": 2}), byte_bundle(template_kwargs={"b": 2, "a": 1})
    assert digest_of(encode_bundle(first)) == digest_of(encode_bundle(again))
    assert digest_of(encode_bundle(first)) != digest_of(encode_bundle(byte_bundle()))


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b'{"format":"headway-tokeniser-2"}'])
def test_other_bytes_are_no_bundle(content: bytes) -> None:
    with pytest.raises(NotABundle):
        decode_bundle(content)


def test_a_damaged_tokeniser_is_said_to_be() -> None:
    with pytest.raises(Uncountable) as refused:
        PromptCounter(byte_bundle(tokenizer_json="{}"))
    assert refused.value.reason == "damaged"
