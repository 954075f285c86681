"""The relay of a node: takes the frames of its ranks and carries them to their collector over one connection.

It knows nothing for long. What a rank has sent stays in that rank until the collector has it, as it would without a
relay; so whatever becomes of a relay, nothing is lost.
"""
