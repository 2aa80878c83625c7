-- needs: base mirror lanes lease
-- regain: the leases that a holder was given in its turn of that number and that are still its own,
-- as reserve tells them, each for a whole term from now. ARGV: now, holder, number.

local now = clock(ARGV[1])
local kept = call('GET', base .. ':x:turn:' .. ARGV[2])
local taken = kept and cmsgpack.unpack(kept) or {}
if taken[1] ~= ARGV[3] then return {} end
local out = {}
for at = 2, #taken, 2 do
  local id, token = taken[at], taken[at + 1]
  local key = job_key(id)
  local job = call('HMGET', key, 'lease_token', 'payload', 'attempt', 'gid', 'max_attempts',
    'timeout_ms', 'x_checkpoint', 'x_returned')
  local lock = call('ZSCORE', ACTIVE, id)
  if job[1] == token and lock then
    local timeout = positive(job[6], 60000)
    local lock_until = math.max(int(lock, 0), now + timeout)
    call('HSET', key, 'lock_until_ms', lock_until, 'updated_ms', now)
    call('ZADD', ACTIVE, lock_until, id)
    tell(out, id, token, lock_until,
      {payload = job[2], attempt = int(job[3], 1), gid = job[4] or '', max_attempts = job[5],
        timeout = timeout, checkpoint = job[7], returned = job[8]})
  end
end
return out
