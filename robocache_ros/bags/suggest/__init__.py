"""Generates a first fusion spec for a recording: selection of fields for streams, and limits."""
