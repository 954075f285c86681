"""The way to a collector: what the agent of a rank and the relay of a node share.

delivery.py, resend_buffer.py and reconnect.py are pure rules: when to send what, what to hold, when to knock.
connection.py and handshake.py are the ZeroMQ socket behind them. It knows neither of the programs that use it.
"""
