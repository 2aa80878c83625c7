"""Open Job Spec: a job server on JetStream and KV that cannot lose a job."""
