"""Tenants and families are hashes: the same for the same, and no name to be read from them."""

import pytest
from multidict import CIMultiDict

from kvferry.integrations.sglang.tenant import family_of, tenant_of
from kvferry.models.prefix import block_hashes

HEADER = "x-kvferry-tenant"


def test_a_tenant_is_a_keyed_hash_of_what_its_header_says() -> None:
    headers = CIMultiDict({"X-KVFerry-Tenant": " Acme "})
    told = tenant_of(headers, HEADER)
    assert (len(told), int(told, 16) > 0) == (12, True)
    assert told == tenant_of({HEADER: "Acme"}, HEADER)
    assert told != tenant_of({HEADER: "acme"}, HEADER)
    assert told != tenant_of(headers, HEADER, b"a key")
    assert tenant_of(headers, HEADER, b"k" * 200)


@pytest.mark.parametrize(("headers", "header"), [({}, HEADER), ({HEADER: " "}, HEADER), ({HEADER: "x"}, "")])
def test_without_a_name_there_is_no_tenant(headers: dict[str, str], header: str) -> None:
    assert tenant_of(headers, header) == ""


def test_a_family_begins_alike() -> None:
    system = b"You are helpful. " * 40
    one, other = (block_hashes(system + end) for end in (b"Hi", b"What is a ferry?" * 99))
    assert family_of(one) == family_of(other) != family_of(block_hashes(b"Another" * 99))
    assert family_of(one) != family_of(one, b"a key")
    assert family_of(block_hashes(b"short")) == ""


def test_a_name_that_is_no_text_is_a_name() -> None:
    assert len(tenant_of({HEADER: "\udcff"}, HEADER)) == 12
