"""Implicit schemes over layers: stages solved sample by sample, and their derivatives."""
