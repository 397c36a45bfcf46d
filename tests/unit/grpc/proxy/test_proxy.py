"""A proxy before brokers that come, go and hang; its settings, its metrics and its health."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from grpc_client import OK, GrpcClient, message
from ports import free_port
from proxied_broker import ProxiedBroker
from reput.cli import serve
from reput.errors import InvalidOption
from reput.format.codes import RequestCode
from reput.format.command import Command
from reput.grpc.clients import Client
from reput.grpc.proxy import config
from reput.grpc.proxy.metrics import ProxyMeter, check
from reput.grpc.proxy.server import Proxy
from reput.remoting.tls_settings import TlsMode
from reput.testing import LocalBroker
from reput.testing.controls import Controls

PROXY_TIMEOUT = 50_400


def test_messages_go_to_the_brokers_that_are_there() -> None:
    with ProxiedBroker(topics={"T": 2}, brokers=2) as mq, GrpcClient(mq.grpc_endpoint) as client:
        route = client.call("QueryRoute", topic={"name": "T"})["message_queues"]
        places = [(queue["broker"]["name"], queue.get("id", 0)) for queue in route]
        assert places == [("broker-a", 0), ("broker-a", 1), ("broker-b", 0), ("broker-b", 1)]
        assert client.produce("T")["status"]["code"] == OK
        for number in range(4):
            client.call("SendMessage", messages=[message("T", b"%d" % number)])
        assert len({(item.broker_name, item.queue_id) for item in mq.messages("T")}) == 4

        async def stop_one(controls: Controls) -> None:
            await mq._brokers[1].stop()

        mq._call(stop_one)
        for number in range(4):
            reply = client.call("SendMessage", messages=[message("T", b"%d" % number)])
            assert reply["status"]["code"] == OK
        assert client.call("Heartbeat", client_type=1)["status"]["code"] == OK
        assert mq.proxy is not None
        assert list(mq.proxy.backend.unreachable) == ["broker-b"]
        assert check(mq.proxy).is_well
        assert len(check(mq.proxy).warnings) == 1


def test_a_broker_that_hangs_is_a_status_before_the_deadline() -> None:
    """After its deadline the client would raise an error instead of returning a status."""
    with ProxiedBroker(topics=["T"]) as mq, GrpcClient(mq.grpc_endpoint) as client:
        client.produce("T")
        mq.slow(60_000)
        reply = client.call("SendMessage", timeout_s=1.5, messages=[message("T")])
        assert reply["status"]["code"] == PROXY_TIMEOUT


def test_a_broker_is_used_again_after_a_restart() -> None:
    with ProxiedBroker(topics=["T"]) as mq, GrpcClient(mq.grpc_endpoint) as client:
        client.consume("g", "T")
        mq.restart()
        assert client.call("Heartbeat", client_type=3, group={"name": "g"})["status"]["code"] == OK
        client.call("SendMessage", messages=[message("T", b"after")])
        assert [item["body"] for item in client.messages("g", "T")] == [b"after"]


@pytest.mark.parametrize(
    ("kind", "asked_ms", "poll_ms"),
    [(LocalBroker, 200, 200), (ProxiedBroker, 200, 250), (ProxiedBroker, 0, 0)],
)
def test_a_proxy_lets_brokers_hold_pops_for_as_long_as_java_ends_them_early(
    monkeypatch: pytest.MonkeyPatch, kind: type[LocalBroker], asked_ms: int, poll_ms: int
) -> None:
    """RocketMQ's ``PopRequest`` is over 50 ms before its time."""
    sent: list[str] = []
    ask = Client.ask

    async def noted(self: Client, broker_name: str, request: Command, *more: int) -> Command:
        if request.code == RequestCode.POP_MESSAGE:
            assert request.ext_fields is not None
            sent.append(request.ext_fields["pollTime"])
        return await ask(self, broker_name, request, *more)

    monkeypatch.setattr(Client, "ask", noted)
    with kind(topics=["T"]) as mq, GrpcClient(mq.grpc_endpoint) as client:
        wait = {"nanos": asked_ms * 1_000_000} if asked_ms else {}
        assert client.messages("g", "T", long_polling_timeout=wait) == []
    assert sent == [str(poll_ms)]


def test_an_unknown_broker_has_no_handles_and_no_messages() -> None:
    # Push consumers repeat an ack for ever, unless the code is INVALID_RECEIPT_HANDLE.
    with ProxiedBroker(topics=["T"]) as mq, GrpcClient(mq.grpc_endpoint) as client:
        handle = f"0 {mq.now_ms} 60000 0 0 broker-z 0 0 0"
        acked = client.call(
            "AckMessage",
            group={"name": "g"},
            topic={"name": "T"},
            entries=[{"message_id": "01", "receipt_handle": handle}],
        )
        assert acked["entries"][0]["status"]["code"] == 40_013
        assert acked["entries"][0]["status"]["message"].startswith("cannot find broker broker-z")
        client.call("SendMessage", messages=[message("T", b"elsewhere")])
        queue = {"topic": {"name": "T"}, "id": -1, "broker": {"name": "broker-z"}}
        (item,) = client.messages("g", "T", message_queue=queue)  # another broker has it
        assert item["body"] == b"elsewhere"


def test_without_name_servers_a_call_fails_soon_and_health_says_why() -> None:
    settings = config.load(
        explicit={
            "namesrv_addr": f"127.0.0.1:{free_port()}",
            "bind_address": "127.0.0.1",
            "grpc_server_port": 0,
        }
    )

    async def main() -> None:
        async with Proxy(settings) as proxy:
            reply = await asyncio.to_thread(ask, proxy.port)
            assert reply["status"]["code"] == 50_001
            assert "cannot connect" in reply["status"]["message"]
            assert not check(proxy).is_well

    asyncio.run(main())


def ask(port: int) -> dict[str, dict[str, object]]:
    with GrpcClient(f"127.0.0.1:{port}") as client:
        return client.call("QueryRoute", topic={"name": "T"}, timeout_s=3)


def test_metrics_count_clients_and_brokers() -> None:
    with ProxiedBroker(topics=["T"]) as mq, GrpcClient(mq.grpc_endpoint) as client:
        client.produce("T")
        proxy = mq.proxy
        assert proxy is not None

        async def measure(controls: Controls) -> dict[str, float]:
            families = await ProxyMeter(proxy).measure()
            return {
                family.name: sum(family.values.values())
                for family in families
                if not hasattr(family, "buckets")
            }

        values = mq._call(measure)
    assert values["reput_proxy_clients"] == 1
    assert values["reput_proxy_brokers"] == 1
    assert values["reput_proxy_topics"] == 1
    assert values["reput_proxy_broker_connections_total"] == 1
    assert values["reput_healthy"] == 1


def test_brokers_and_name_servers_are_asked_with_tls() -> None:
    class Encrypted(ProxiedBroker):
        proxy_settings = {"tls_enable": True}

    settings = {"tls.server.mode": "enforcing"}
    with Encrypted(topics=["T"], settings=settings) as mq, GrpcClient(mq.grpc_endpoint) as client:
        client.consume("g", "T")
        sent = client.call("SendMessage", messages=[message("T", b"encrypted")])
        assert sent["status"]["code"] == OK
        assert [item["body"] for item in client.messages("g", "T")] == [b"encrypted"]


# --- settings -----------------------------------------------------------------------------------


def test_the_file_of_rocketmqs_proxy_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rmq-proxy.json"
    path.write_text(
        json.dumps(
            {
                "rocketMQClusterName": "DefaultCluster",
                "namesrvAddr": "10.0.0.1:9876;10.0.0.2",
                "grpcServerPort": 18081,
                "tlsTestModeEnable": True,
                "authenticationMetadataProvider": (
                    "org.apache.rocketmq.proxy.auth.ProxyAuthenticationMetadataProvider"
                ),
                "grpcServrPort": 1,
            }
        )
    )
    loaded = config.load(str(path))
    assert loaded.proxy.name_servers == ("10.0.0.1:9876", "10.0.0.2:9876")
    assert loaded.proxy.grpc_server_port == 18081
    assert loaded.tls.tls_test_mode_enable is True
    assert loaded.tls.tls_server_mode is TlsMode.PERMISSIVE
    assert loaded.access.authentication_metadata_provider == ""
    assert any("did you mean 'grpcServerPort'" in warning for warning in loaded.warnings)
    assert any("rocketMQClusterName has no effect" in warning for warning in loaded.warnings)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "namesrvAddr"),
        ("namesrvAddr=a:b", "namesrvAddr"),
        ("namesrvAddr=a\ngrpcServerPort=70000", "grpcServerPort"),
        ("namesrvAddr=a\nauthenticationEnabled=true", "innerClientAuthenticationCredentials"),
        ("namesrvAddr=a\nauthorizationEnabled=true", "authorizationEnabled"),
        ('{"namesrvAddr": ', "JSON"),
    ],
)
def test_a_wrong_setting_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "proxy.conf"
    path.write_text(text)
    with pytest.raises(InvalidOption, match=message):
        config.load(str(path))


def test_the_users_of_others_need_a_check_of_clients(tmp_path: Path) -> None:
    path = tmp_path / "proxy.conf"
    path.write_text(
        'namesrvAddr=a\ninnerClientAuthenticationCredentials={"accessKey":"a","secretKey":"b"}'
    )
    loaded = config.load(str(path))
    assert any("every client may do" in warning for warning in loaded.warnings)
    assert "secretKey" not in str(loaded)


# --- the command --------------------------------------------------------------------------------


def test_the_command_prints_its_settings_without_secrets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "proxy.conf"
    path.write_text(
        "authenticationEnabled=true\n"
        'innerClientAuthenticationCredentials={"accessKey":"a","secretKey":"hidden-word"}\n'
    )
    arguments = ["proxy", "-c", str(path), "-n", "10.0.0.1:9876", "--port", "18081", "-p"]
    assert serve.run(arguments) == 0
    printed = capsys.readouterr().out.splitlines()
    assert "namesrvAddr=10.0.0.1:9876" in printed
    assert "grpcServerPort=18081" in printed
    assert "authenticationEnabled=true" in printed
    assert not any("hidden-word" in line for line in printed)


def test_the_command_serves_until_a_signal(tmp_path: Path) -> None:
    with ProxiedBroker(topics=["T"]) as mq:
        port = free_port()
        with subprocess.Popen(
            [sys.executable, "-m", "reput", "proxy", "-n", mq.namesrv_addr, "--port", str(port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith(b"rocketmq-proxy startup successfully"), line
            with GrpcClient(f"127.0.0.1:{port}") as client:
                assert client.call("QueryRoute", topic={"name": "T"})["status"]["code"] == OK
            process.terminate()
            assert process.wait(20) == 0
