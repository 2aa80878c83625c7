-- leave: how a job gets out of active, and where it goes when it did not succeed.

local function drop_slot(gid, now)
  if gid == '' then return end
  local inflight = group_key(gid, 'inflight')
  if call('DECR', inflight) <= 0 then call('DEL', inflight) end
  ready_if_possible(gid, now)
end

-- After the id was taken from the active set.
local function leave_active(id, gid, now)
  left('active', id)
  tally('active', -1)
  if gid ~= '' then
    call('HDEL', LEASED, id)
    drop_slot(gid, now)
  end
end

local function park(id, due, now)
  call('HSET', job_key(id), 'state', 'delayed', 'due_ms', due, 'lease_token', '',
    'lock_until_ms', '', 'updated_ms', now)
  call('ZADD', DELAYED, due, id)
  entered('delayed', id, now)
  tally('delayed', 1)
end

local function bury(id, now)
  local key = job_key(id)
  call('HSET', key, 'state', 'failed', 'lease_token', '', 'lock_until_ms', '', 'updated_ms', now)
  call('LPUSH', base .. ':failed', id)
  entered('failed', id, now)
  tally('failed', 1)
  stamp(key, 'failed_ms', now)
end

-- Another attempt at `due`, or none is left. Returns the due time or nil.
local function retry_or_bury(id, attempt, max_attempts, due, now)
  if attempt >= max_attempts then
    bury(id, now)
    return nil
  end
  park(id, due, now)
  return due
end
