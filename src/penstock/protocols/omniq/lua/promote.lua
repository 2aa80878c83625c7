-- needs: base mirror lanes
-- promote: jobs that are due go to the back of their lane. ARGV: now, most. Answers how many were taken
-- from delayed, and how many of them wait now: ids without a delayed job are dropped.

local now = clock(ARGV[1])
local ids = call('ZRANGEBYSCORE', DELAYED, '-inf', now, 'LIMIT', 0, int(ARGV[2], 1000))
local moved = 0

for _, id in ipairs(ids) do
  call('ZREM', DELAYED, id)
  left('delayed', id)
  tally('delayed', -1)
  local job = call('HMGET', job_key(id), 'state', 'gid')
  if job[1] == 'delayed' then
    call('HSET', job_key(id), 'state', 'wait', 'updated_ms', now)
    push('RPUSH', id, job[2] or '', now)
    moved = moved + 1
  end
end
if moved > 0 then noted(now) end
ring(now)
return {#ids, moved}
