"""ZeroMQ's protocol, the side that listens: ZMTP 3 (RFC 23 and 37) with the mechanisms NULL and CURVE (RFC 25 and 26).

    bytes -> frames.py -> null.py or curve.py, until both sides know each other -> messages    session.py joins these
    sockets, who is who, what waits to be sent                                     connection.py, server.py

Ranks and relays connect with libzmq, and the collector could listen with it: its ROUTER does all that is done here.
But it keeps two queues for each connection, in blocks of 256 messages of 64 bytes whose size is fixed when it is
compiled, and a buffer of 8 KiB for each way: 40 KiB a connection at first, and 88 once some hundred messages have come.
16,384 ranks were 1.4 GiB of that. A collector needs no queues. It reads when it has time, and until then what has come
waits in the kernel and, beyond that, with whoever sent it, which is bounded too.

Nothing here knows what the messages mean.
"""
