-- promote: jobs that are due go to the back of their lane.

-- How many were taken from delayed, and how many of them wait now: ids without a delayed job are
-- dropped.
local function promote(now, most)
  local ids = call('ZRANGEBYSCORE', DELAYED, '-inf', now, 'LIMIT', 0, most)
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
  return #ids, moved
end
