-- needs: base
-- checkpoint: keep a worker's notes on the job while its lease holds. ARGV: id, token, text.

local id, token = ARGV[1], ARGV[2]
if token == '' then return 'TOKEN_REQUIRED' end
if call('HGET', job_key(id), 'lease_token') ~= token then return 'TOKEN_MISMATCH' end
if not call('ZSCORE', ACTIVE, id) then return 'NOT_ACTIVE' end
if ARGV[3] == '' then
  call('HDEL', job_key(id), 'x_checkpoint')
else
  call('HSET', job_key(id), 'x_checkpoint', ARGV[3])
end
return 'OK'
