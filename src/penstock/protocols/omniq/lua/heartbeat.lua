-- needs: base
-- heartbeat: extend leases. ARGV: now, then per lease id, token. Answers the new lock_until_ms of each,
-- or a code. A lease is never shortened, and beats never add up.

local now = clock(ARGV[1])

local function beat(id, token)
  if token == '' then return 'TOKEN_REQUIRED' end
  local key = job_key(id)
  local job = call('HMGET', key, 'lease_token', 'timeout_ms')
  if job[1] ~= token then return 'TOKEN_MISMATCH' end
  local lock = call('ZSCORE', ACTIVE, id)
  if not lock then return 'NOT_ACTIVE' end
  local lock_until = math.max(int(lock, 0), now + positive(job[2], 60000))
  call('HSET', key, 'lock_until_ms', lock_until, 'updated_ms', now)
  call('ZADD', ACTIVE, lock_until, id)
  return lock_until
end

local answers = {}
for at = 2, #ARGV, 2 do answers[#answers + 1] = beat(ARGV[at], ARGV[at + 1]) end
return answers
