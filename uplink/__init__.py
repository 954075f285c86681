"""The connection to a collector, shared by the agent of a rank and the relay of a node.

delivery.py, resend_buffer.py and reconnect.py are pure: when to send, what to keep, when to connect. connection.py and
handshake.py use the ZeroMQ socket. Nothing here depends on the agent or the collector.
"""
