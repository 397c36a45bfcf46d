"""Requests of brokers and of mqadmin to a controller, as Java 5.5.0 sends them."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from reput.format.codes import RequestCode
from reput.format.command import Command

CLUSTER, NAME = "DefaultCluster", "broker-a"


def next_id(name: str = NAME, cluster: str = CLUSTER) -> Command:
    return _request(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, clusterName=cluster, brokerName=name)


def apply_id(broker_id: int, code: str, name: str = NAME, cluster: str = CLUSTER) -> Command:
    return _request(
        RequestCode.CONTROLLER_APPLY_BROKER_ID,
        clusterName=cluster,
        brokerName=name,
        appliedBrokerId=broker_id,
        registerCheckCode=code,
    )


def register(broker_id: int, address: str, name: str = NAME, cluster: str = CLUSTER) -> Command:
    return _request(
        RequestCode.CONTROLLER_REGISTER_BROKER,
        clusterName=cluster,
        brokerName=name,
        brokerId=broker_id,
        brokerAddress=address,
        invokeTime=0,
    )


def heartbeat(
    broker_id: int | None,
    address: str,
    epoch: int = 0,
    end: int = 0,
    *,
    name: str = NAME,
    cluster: str = CLUSTER,
    timeout_ms: int = 10_000,
    priority: int = (1 << 31) - 1,
) -> Command:
    return _request(
        RequestCode.BROKER_HEARTBEAT,
        clusterName=cluster,
        brokerAddr=address,
        brokerName=name,
        brokerId=broker_id,
        epoch=epoch,
        maxOffset=end,
        confirmOffset=end,
        heartbeatTimeoutMills=timeout_ms,
        electionPriority=priority,
    )


def elect(
    broker_id: int = -1, name: str = NAME, cluster: str = CLUSTER, *, designate: bool = False
) -> Command:
    return _request(
        RequestCode.CONTROLLER_ELECT_MASTER,
        clusterName=cluster,
        brokerName=name,
        brokerId=broker_id,
        designateElect=designate,
        invokeTime=0,
    )


def alter(
    master_id: int, epoch: int, in_sync: Iterable[int], set_epoch: int, name: str = NAME
) -> Command:
    request = _request(
        RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
        brokerName=name,
        masterBrokerId=master_id,
        masterEpoch=epoch,
        invokeTime=0,
    )
    request.body = _json({"syncStateSet": list(in_sync), "syncStateSetEpoch": set_epoch})
    return request


def replica_info(name: str = NAME) -> Command:
    return _request(RequestCode.CONTROLLER_GET_REPLICA_INFO, brokerName=name)


def in_sync_data(names: Sequence[str] = (NAME,)) -> Command:
    request = _request(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA)
    request.body = _json(list(names))
    return request


def metadata() -> Command:
    return _request(RequestCode.CONTROLLER_GET_METADATA_INFO)


def clean(
    ids: str | None = None, name: str = NAME, cluster: str | None = CLUSTER, *, living: bool = False
) -> Command:
    return _request(
        RequestCode.CLEAN_BROKER_DATA,
        clusterName=cluster,
        brokerName=name,
        brokerControllerIdsToClean=ids,
        isCleanLivingBroker=living,
        invokeTime=0,
    )


def _request(code: int, **fields: Any) -> Command:
    return Command(
        code,
        ext_fields={
            key: str(value).lower() if isinstance(value, bool) else str(value)
            for key, value in fields.items()
            if value is not None
        },
    )


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
