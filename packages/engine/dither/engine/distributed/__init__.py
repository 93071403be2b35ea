"""Ranks and their rendezvous."""
