"""Benchmarks: how long encoding, decoding and exchanges take, and whether compression pays."""
