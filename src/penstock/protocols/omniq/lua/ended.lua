-- needs: base
-- ended: the state of a job, the token of the lease that ended last, and its due time. ARGV: id.

return call('HMGET', job_key(ARGV[1]), 'state', 'x_ended', 'due_ms')
