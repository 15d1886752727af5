"""The load of `flotilla bench`: what it sends, what it measures, and how it reports that."""
