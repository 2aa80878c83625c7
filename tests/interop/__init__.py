"""Foreign clients, unchanged and in processes of their own, on the same brokers as ours."""
