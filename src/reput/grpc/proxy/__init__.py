"""A separate server with the front of 5.x clients, before any brokers of some name servers.

    Proxy -> Front -> RemoteBackend -> a connection to each broker for each client
                                    -> Cluster: routes, types of topics, groups, with their ages

Brokers see each client as one of remoting: with its own id, groups and connection.
Source: rocketmq-proxy 5.5.0 in cluster mode, whose clients brokers do not see.
"""
