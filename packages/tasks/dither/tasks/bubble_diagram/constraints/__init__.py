"""Constraints on samples: options, rules, contradiction checks, and sampling guidance."""
