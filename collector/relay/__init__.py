"""The relay of a node: forwards the frames of its ranks to their collector over one connection.

It keeps frames only briefly. A rank holds what it has sent until the collector acknowledges it, as it would without a
relay; so nothing is lost when a relay stops or crashes.
"""
