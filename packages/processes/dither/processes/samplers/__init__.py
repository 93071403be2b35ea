"""Samplers walk a process back from t = 1 and yield every state on the way, the clean sample last."""
