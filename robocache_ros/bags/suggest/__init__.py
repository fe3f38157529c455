"""A first fusion spec for a recording: which fields become streams, with which limits."""
