"""Findings and results as text for people and as JSON for programs. Computes nothing new."""
