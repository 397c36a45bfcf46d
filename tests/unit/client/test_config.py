import pytest

from reput import config
from reput.client.config import (
    ClientConfig,
    ConsumeFromWhere,
    ConsumerConfig,
    MessageModel,
    ProducerConfig,
    client_config,
    name_servers,
)
from reput.errors import InvalidOption


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:9876", ("127.0.0.1:9876",)),
        (" a:1 ; b:2; ", ("a:1", "b:2")),
        ("ns.example.org", ("ns.example.org:9876",)),
        ("[::1]:9876;[::1]", ("[::1]:9876", "[::1]:9876")),
    ],
)
def test_name_servers(text: str, expected: tuple[str, ...]) -> None:
    assert name_servers(text) == expected


@pytest.mark.parametrize("text", ["", " ; ", "a:", ":9876", "a:0", "a:65536", "a:b"])
def test_no_name_servers(text: str) -> None:
    with pytest.raises(InvalidOption, match=r"namesrvAddr.*host:port"):
        ClientConfig(namesrv_addr=text)


@pytest.mark.parametrize("text", ["h1:9876,h2:9876", "h1:9876 h2:9876", "h1:9876, h2:9876"])
def test_name_servers_with_another_separator_are_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match="did you mean 'h1:9876;h2:9876'"):
        ClientConfig(namesrv_addr=text)


@pytest.mark.parametrize(
    ("where", "meant"),
    [("earliest", "FIRST_OFFSET"), ("latest", "LAST_OFFSET"), ("Beginning", "FIRST_OFFSET")],
)
def test_words_of_other_systems_are_explained(where: str, meant: str) -> None:
    with pytest.raises(InvalidOption, match=rf"did you mean ConsumeFromWhere\.{meant}\?"):
        ConsumerConfig(consume_from_where=where)  # type: ignore[arg-type]


def test_values_of_enums_may_be_texts_and_nothing_else() -> None:
    given = ConsumerConfig(
        consume_from_where="CONSUME_FROM_FIRST_OFFSET",  # type: ignore[arg-type]
        message_model="BROADCASTING",  # type: ignore[arg-type]
    )
    assert given.consume_from_where is ConsumeFromWhere.FIRST_OFFSET
    assert given.message_model is MessageModel.BROADCASTING
    for wrong in (0, None, "nonsense"):
        with pytest.raises(InvalidOption, match=r"consumeFromWhere.*TIMESTAMP$"):
            ConsumerConfig(consume_from_where=wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidOption, match=r"messageModel.*MessageModel.BROADCASTING$"):
            ConsumerConfig(message_model=wrong)  # type: ignore[arg-type]


def test_option_names_of_rocketmq_are_accepted() -> None:
    loaded = config.Settings(
        {
            "namesrvAddr": "a:1",
            "clientIP": "192.0.2.1",
            "pollNameServerInterval": "10",
            "heartbeatBrokerInterval": "20",
            "persistConsumerOffsetInterval": "30",
            "mqClientApiTimeout": "40",
            "sendMsgTimeout": "50",
            "compressMsgBodyOverHowmuch": "60",
            "retryTimesWhenSendFailed": "7",
            "retryAnotherBrokerWhenNotStoreOK": "true",
            "maxMessageSize": "80",
            "sendLatencyFaultEnable": "true",
            "messageModel": "BROADCASTING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "pullBatchSize": "16",
        }
    )
    client = loaded.make(ClientConfig)
    producer = loaded.make(ProducerConfig)
    consumer = loaded.make(ConsumerConfig)

    assert loaded.unknown() == ()
    assert client == ClientConfig(
        namesrv_addr="a:1",
        client_ip="192.0.2.1",
        poll_name_server_ms=10,
        heartbeat_ms=20,
        persist_offsets_ms=30,
        request_timeout_ms=40,
    )
    assert producer == ProducerConfig(
        send_timeout_ms=50,
        compress_body_over_bytes=60,
        retry_times_when_send_failed=7,
        retry_another_broker_when_not_store_ok=True,
        max_message_bytes=80,
        send_latency_fault_enable=True,
    )
    assert consumer.message_model is MessageModel.BROADCASTING
    assert consumer.consume_from_where is ConsumeFromWhere.FIRST_OFFSET
    assert consumer.pull_batch_size == 16


def test_numbers_out_of_range_are_refused() -> None:
    with pytest.raises(InvalidOption, match="sendTimeoutMs"):
        ProducerConfig(send_timeout_ms=0)
    with pytest.raises(InvalidOption, match="compressLevel"):
        ProducerConfig(compress_level=10)
    with pytest.raises(InvalidOption, match="heartbeatMs"):
        ClientConfig(namesrv_addr="a:1", heartbeat_ms=0)
    with pytest.raises(InvalidOption, match=r"pullTimeoutMs.*more than"):
        ConsumerConfig(pull_timeout_ms=10, broker_suspend_ms=10)


def test_a_client_takes_a_config_or_an_address_not_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = ClientConfig(namesrv_addr="a:1")

    assert client_config("a:1", None) == whole
    assert client_config(None, whole) is whole
    with monkeypatch.context() as environment:
        environment.delenv("NAMESRV_ADDR", raising=False)
        with pytest.raises(InvalidOption, match="or NAMESRV_ADDR is set"):
            client_config(None, None)
        environment.setenv("NAMESRV_ADDR", "b:2;c:3")
        assert client_config(None, None) == ClientConfig(namesrv_addr="b:2;c:3")
        assert client_config("a:1", None) == whole
    with pytest.raises(InvalidOption, match="as well"):
        client_config("a:1", whole)


def test_keys_of_tls() -> None:
    paths = {
        "tls.client.trustCertPath": "/ca.pem",
        "tls.client.certPath": "/c.pem",
        "tls.client.keyPath": "/c.key",
        "tls.client.keyPassword": "hidden",
    }
    loaded = config.Settings({"namesrvAddr": "a:1", "tls.enable": "true", **paths})
    client = loaded.make(ClientConfig)
    assert client == ClientConfig(
        namesrv_addr="a:1",
        use_tls=True,
        tls_client_trust_cert_path="/ca.pem",
        tls_client_cert_path="/c.pem",
        tls_client_key_path="/c.key",
        tls_client_key_password="hidden",
    )
    assert "hidden" not in repr(client)
    with pytest.raises(InvalidOption, match=r"tls\.client.*/c\.key|tls\.client.*/c\.pem"):
        client.tls_context()


@pytest.mark.parametrize(
    "options",
    [
        {"namesrv_addr": "127.0.0.1:9876", "namespace": "tenant"},
        {"namesrv_addr": "http://MQ_INST_123_abc.example.com:8080"},
    ],
)
def test_two_kinds_of_namespace_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(InvalidOption, match="namespace or namespaceV2, not both"):
        ClientConfig(**options, namespace_v2="tenant")  # type: ignore[arg-type]


def test_certificates_without_tls_are_refused() -> None:
    with pytest.raises(InvalidOption, match="useTLS"):
        ClientConfig(namesrv_addr="a:1", tls_client_trust_cert_path="/ca.pem")
