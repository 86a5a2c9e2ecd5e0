"""How we measure, stated once: timing, peers, counters and the records they leave."""
