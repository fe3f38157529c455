"""Readers of the formats that only this project exports, and of what its exports add to other formats."""
