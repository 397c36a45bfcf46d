"""Name servers: their settings, and the key-value table."""

from collections.abc import Mapping

from reput import config
from reput.client.admin.cluster_calls import AdminConnection
from reput.client.core import requests
from reput.errors import BrokerError
from reput.format import bodies, headers
from reput.format.codes import RequestCode, ResponseCode


async def name_server_config(admin: AdminConnection) -> dict[str, str]:
    """Return the settings of one name server."""
    reply = await admin.calls.ask_name_server(requests.make(RequestCode.GET_NAMESRV_CONFIG))
    return config.parse_properties(reply.body.decode())


async def update_name_server_config(admin: AdminConnection, settings: Mapping[str, str]) -> None:
    """Change settings of all name servers. Raises ``PartlyDone``."""
    body = requests.property_lines(settings)
    await admin.calls.change_name_servers(
        lambda: requests.make(RequestCode.UPDATE_NAMESRV_CONFIG, body=body)
    )


async def kv(admin: AdminConnection, namespace: str, key: str) -> str | None:
    """Return a value of the key-value table; None if missing."""
    header = headers.KvHeader(namespace=namespace, key=key)
    try:
        reply = await admin.calls.ask_name_server(requests.make(RequestCode.GET_KV_CONFIG, header))
    except BrokerError as error:
        if error.response_code == ResponseCode.QUERY_NOT_FOUND:
            return None
        raise
    return headers.decode(headers.KvReplyHeader, reply.ext_fields).value


async def kv_of_namespace(admin: AdminConnection, namespace: str) -> dict[str, str]:
    """Return all keys and values of a namespace."""
    header = headers.NamespaceHeader(namespace=namespace)
    try:
        reply = await admin.calls.ask_name_server(
            requests.make(RequestCode.GET_KVLIST_BY_NAMESPACE, header)
        )
    except BrokerError as error:
        if error.response_code == ResponseCode.QUERY_NOT_FOUND:
            return {}
        raise
    return bodies.decode(bodies.KvTable, reply.body).table


async def put_kv(admin: AdminConnection, namespace: str, key: str, value: str) -> None:
    """Set a value at all name servers. Raises ``PartlyDone``."""
    header = headers.KvHeader(namespace=namespace, key=key, value=value)
    await admin.calls.change_name_servers(lambda: requests.make(RequestCode.PUT_KV_CONFIG, header))


async def delete_kv(admin: AdminConnection, namespace: str, key: str) -> None:
    """Delete a value at all name servers. Raises ``PartlyDone``."""
    header = headers.KvHeader(namespace=namespace, key=key)
    await admin.calls.change_name_servers(
        lambda: requests.make(RequestCode.DELETE_KV_CONFIG, header)
    )
