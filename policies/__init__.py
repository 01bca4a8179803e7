"""Prefix caching policies: one file, one policy, one name."""
