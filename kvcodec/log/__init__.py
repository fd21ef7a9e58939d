"""The append-only log on a device: frames, commit, recovery. It moves records and knows no codec."""
