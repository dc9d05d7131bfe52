"""A gRPC client on the caller's own event loop: HTTP/2 (RFC 9113) and HPACK (RFC 7541), as much as gRPC needs of them.

It stands where a grpc.aio.Channel would and ends its calls as one does. There is no thread in it: what the network
brings is read by whoever waits for it.
"""
