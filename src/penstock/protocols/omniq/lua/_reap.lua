-- reap: leases that lapsed end as a failed attempt.

-- Group slots of a job whose hash is gone are known from our own note of the lease.
local function reap_one(id, now)
  call('ZREM', ACTIVE, id)
  local job = call('HMGET', job_key(id), 'state', 'gid', 'attempt', 'max_attempts', 'backoff_ms')
  if job[1] then
    leave_active(id, job[2] or '', now)
  else
    leave_active(id, call('HGET', LEASED, id) or '', now)
  end
  if job[1] ~= 'active' then return end
  retry_or_bury(id, int(job[3], 0), positive(job[4], 1), now + int(job[5], 0), now)
end

-- Other clients end leases of ours without knowing of the note: look at a few each time.
local function sweep_notes()
  for _, id in ipairs(call('HRANDFIELD', LEASED, 8)) do
    if not call('ZSCORE', ACTIVE, id) then call('HDEL', LEASED, id) end
  end
end

local function reap(now, most)
  local ids = call('ZRANGEBYSCORE', ACTIVE, '-inf', now, 'LIMIT', 0, most)
  for _, id in ipairs(ids) do reap_one(id, now) end
  sweep_notes()
  if #ids > 0 then noted(now) end
  return #ids
end
