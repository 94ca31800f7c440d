import pytest

from kvferry.integrations.redis.url import StoreError, parse, redact

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("url", "kind", "hosts", "service"),
    [
        ("redis://h", "single", (("h", 6379),), ""),
        ("valkey://h:1/3", "single", (("h", 1),), ""),
        ("unix:///tmp/s", "single", (), ""),
        ("redis+sentinel://a:1,b/kv/2", "sentinel", (("a", 1), ("b", 26379)), "kv"),
        ("rediss+cluster://a:1,[::1]:2", "cluster", (("a", 1), ("::1", 2)), ""),
    ],
)
def test_every_form_is_understood(url: str, kind: str, hosts: tuple[object, ...], service: str) -> None:
    address = parse(url)
    assert (address.kind, address.hosts, address.service) == (kind, hosts, service)


def test_users_passwords_databases_and_tls_reach_the_client() -> None:
    address = parse("rediss+sentinel://u:p%2Fw@a:1/kv/2?ssl_ca_certs=/ca.pem&sentinel_password=x")
    assert address.options["username"] == "u"
    assert address.options["password"] == "p/w"
    assert address.options["db"] == 2
    assert address.options["ssl"] is True
    assert address.options["ssl_ca_certs"] == "/ca.pem"
    assert address.sentinel_options["password"] == "x"


@pytest.mark.parametrize(
    "url",
    ["http://u:hunter2@h", "h:6379", "redis://u:hunter2@h:port", "redis+sentinel://:hunter2@h:1",
     "redis+cluster://", "redis://u:hunter2/x@h:1", "redis+nope://h", "",
     "redis//u:hunter2@h", "u:hunter2@h", "redis:/u:hunter2@h", "nope://u:x hunter2@h"],
)  # fmt: skip
def test_a_bad_url_is_one_line_without_its_secret(url: str) -> None:
    with pytest.raises(StoreError) as told:
        parse(url)
    assert "cannot use store URL" in str(told.value)
    assert SECRET not in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    "url",
    ["redis://u:hunter2@h:1/0", "rediss://:hunter2@h", "redis://h/0?password=hunter2&x=1",
     "redis+sentinel://a:1/kv?sentinel_password=hunter2", "redis://u:p@hunter2@h", "redis://u:a/hunter2@h"],
)  # fmt: skip
def test_no_url_is_printed_with_its_secret(url: str) -> None:
    assert SECRET not in redact(f"cannot reach {url} today")
    assert redact(f"cannot reach {url} today").endswith(" today")


def test_an_address_does_not_print_its_secret() -> None:
    assert SECRET not in repr(parse("redis+sentinel://u:hunter2@a/kv?sentinel_password=hunter2"))
